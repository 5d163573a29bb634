"""What the model can do: the builtin tools, own tools, and the host that starts their processes."""

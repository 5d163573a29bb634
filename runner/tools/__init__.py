"""The model's tools: builtin tools, own tools, and the host that starts their processes."""

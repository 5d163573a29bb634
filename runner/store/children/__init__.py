"""Sub-agents: starting them with their parent's step, what the parent sees of them, and waking it."""

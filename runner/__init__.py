"""A durable, queue-backed batch runner for Claude agents."""

__version__ = "0.1.0"

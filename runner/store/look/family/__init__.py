"""Runs and the sub-agents that they have started."""

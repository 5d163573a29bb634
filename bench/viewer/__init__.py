"""Inspect's viewer, as a peer of a run's page."""

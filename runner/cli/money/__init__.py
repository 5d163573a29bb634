"""What model calls cost, and what a job may spend."""

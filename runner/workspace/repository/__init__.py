"""A repository as it is when a job over it is submitted: read without running anything of its own."""

"""SQL of a person over the record: it reads, and can do nothing else."""

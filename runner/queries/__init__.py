"""Everything that people read of jobs and runs. Nothing here writes a run."""

"""The files that a run works on: where they are, what is recorded of them, what a crash left in doubt."""

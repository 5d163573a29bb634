"""The books of a small stockroom: what is there, what it costs, when it arrives."""

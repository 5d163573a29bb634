"""Sections of a job file that are more than a few keys: what they say, and what is wrong with them."""

"""Grep and Glob. The patterns are the model's, so matching runs in a child that can be killed."""

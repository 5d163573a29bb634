"""The walk over the syntax tree."""

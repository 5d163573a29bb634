"""Use cases: what the command line, the web app and the Python API call."""

"""Read, Write and Edit, and the places that they may go to. They run in the worker itself."""

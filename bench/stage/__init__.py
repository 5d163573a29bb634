"""What is measured on: the server, the databases, the material, and the sides that are compared."""

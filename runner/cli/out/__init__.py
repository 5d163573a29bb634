"""What comes out of runs: their changes and results, and the workspaces that they leave."""

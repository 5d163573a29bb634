"""``runner.ports.Workspaces``: where runs work."""

from runner.engine.workspaces.around import COPIES
from runner.engine.workspaces.leftovers import Leftover, Pruned, list_workspaces, prune
from runner.engine.workspaces.port import RunWorkspaces

__all__ = ["COPIES", "Leftover", "Pruned", "RunWorkspaces", "list_workspaces", "prune"]

"""Worktrees of a repository: one for each run. The repository's and the user's own settings hold here;
hooks do not run, and the user's checkout, index and branches are left alone."""

from runner.workspace.worktrees.repository import RUNNER, RUNNERS_ADDRESS, Repository
from runner.workspace.worktrees.worktree import Head, Worktree

__all__ = ["RUNNER", "RUNNERS_ADDRESS", "Head", "Repository", "Worktree"]

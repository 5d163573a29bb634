"""Where a run's worktree stands, beside its files: its commit, its branch, and what is staged. An agent
that commits expects to find its commits, and one whose `git commit` is done again must not."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from runner.workspace.git import GitError
from runner.workspace.worktrees.worktree import Head, Worktree

_REF = re.compile(rb"ref: refs/heads/(.+)\n?")
_COMMIT = re.compile(rb"([0-9a-f]{40,64})\n?")
_OWN = "."  # is no branch's name
_Stamp = tuple[int, int, int]


class Standing:
    """Reads it, at little cost where nothing has changed since it was read last."""

    def __init__(self, worktree: Worktree) -> None:
        self._worktree = worktree
        self._staged: tuple[_Stamp, str, str | None] | None = None

    def read(self) -> Head | None:
        """Where the worktree stands; None on a branch that has no commit.

        Raises:
            GitError: it is no worktree any more. OSError.
        """
        admin = self._worktree.admin()
        if admin is None:
            raise GitError(f"{self._worktree.path} is no worktree of its repository any more")
        on = _REF.fullmatch((admin / "HEAD").read_bytes())
        branch = os.fsdecode(on[1]) if on else None
        commit = self._commit(admin, branch)
        if commit is None:
            return None
        return Head(commit, branch, self._index(admin / "index", commit))

    def _commit(self, admin: Path, branch: str | None) -> str | None:
        if branch is not None:
            try:
                loose = (admin.parent.parent / "refs" / "heads" / branch).read_bytes()
            except OSError:  # packed, or in a store of another kind
                return self._worktree.head()
            if (found := _COMMIT.fullmatch(loose)) is not None:
                return found[1].decode()
        return self._worktree.head()

    def _index(self, index: Path, commit: str) -> str | None:
        """The tree of what is staged, unless that is the commit's, or a merge is half done."""
        try:
            status = index.stat()
        except FileNotFoundError:
            return None
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if self._staged is None or self._staged[:2] != (stamp, commit):
            self._staged = (stamp, commit, self._worktree.staged(commit))
        return self._staged[2]


def to_note(head: Head, own_branch: str) -> str:
    """The text that a snapshot carries of it. The run's own branch is not named in it: a run that goes
    on from there has another."""
    branch = _OWN if head.branch == own_branch else head.branch
    return json.dumps([head.commit, branch, head.index])


def from_note(note: str, own_branch: str) -> Head:
    """What ``to_note`` gave. Raises ``ValueError``."""
    commit, branch, index = json.loads(note)
    return Head(commit, own_branch if branch == _OWN else branch, index)

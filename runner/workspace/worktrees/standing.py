"""Where a run's worktree stands, beside its files: its commit, its branch, what is staged, and its other
branches, tags and stash. An agent that commits expects to find its commits, and one whose `git commit`
is done again must not."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

from runner.workspace.git import GitError
from runner.workspace.identity import beginning
from runner.workspace.worktrees.refs import Refs, read
from runner.workspace.worktrees.repository import BRANCHES
from runner.workspace.worktrees.worktree import Head, Worktree

_REF = re.compile(rb"ref: refs/heads/(.+)\n?")
_MOST_BYTES = 4_096
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
        on = _REF.fullmatch(beginning(admin / "HEAD", _MOST_BYTES) or b"")
        branch = os.fsdecode(on[1]) if on else None
        commit = self._worktree.head()
        if commit is None:
            return None
        refs = read(self._worktree.own, branch)
        return Head(commit, branch, self._index(admin / "index", commit), refs)

    def _index(self, index: Path, commit: str) -> str | None:
        """The tree of what is staged, unless that is the commit's, or a merge is half done."""
        try:
            status = index.stat()
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if self._staged is None or self._staged[:2] != (stamp, commit):
            self._staged = (stamp, commit, self._worktree.staged(commit))
        return self._staged[2]


def to_note(head: Head, own_branch: str) -> str:
    """The text that a snapshot carries of it. The run's own branch is not named in it: a run that goes
    on from there has another."""
    refs = {_unnamed(name, own_branch): commit for name, commit in head.refs.changed}
    branch = _OWN if head.branch == own_branch else head.branch
    return json.dumps([head.commit, branch, head.index, refs, head.refs.stash])


def from_note(note: str, own_branch: str) -> Head:
    """What ``to_note`` gave, without saying which refs are commits. Raises ``ValueError``."""
    commit, branch, index, refs, stash = json.loads(note)
    own = f"{BRANCHES}{own_branch}"
    changed = tuple(sorted((own if name == _OWN else name, each) for name, each in refs.items()))
    named = own_branch if branch == _OWN else branch
    return Head(commit, named, index, Refs(changed, stash=stash))


def _unnamed(ref: str, own_branch: str) -> str:
    return _OWN if ref == f"{BRANCHES}{own_branch}" else ref

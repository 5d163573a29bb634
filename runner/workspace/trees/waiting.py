"""Finding out that git waits for ever: for whoever writes into a pipe that it takes for its rules."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator

from runner.workspace.git import Check, GitError, shown

_FIRST_LOOK = 1.0  # seconds: hardly any git takes longer, and a look costs as much as a short one
_RULES = frozenset({b".gitignore", b".gitattributes", b".gitmodules"})


def unless_waiting(root: bytes, check: Check) -> Check:
    """A check that looks more and more rarely, from the first second on, for what git would wait for.

    Args:
        root: the work tree's folder. check: what is to be called each time as well.

    Returns:
        A function that raises ``GitError`` when git's rules are no file somewhere, and what ``check``
        raises.
    """
    began = time.monotonic()
    next_look = began + _FIRST_LOOK

    def look_too() -> None:
        nonlocal next_look
        check()
        if time.monotonic() < next_look:
            return
        for path in _no_files(root, check):
            raise GitError(
                f"{shown(path.removeprefix(root + b'/'))} is no file, and git would wait for it for "
                "ever: remove it from the workspace"
            )
        next_look = time.monotonic() + (time.monotonic() - began)

    return look_too


def _no_files(root: bytes, check: Check) -> Iterator[bytes]:
    """What is in the place of git's rules and can be read without an end, or not at all."""
    for folder, _, names in os.walk(root):
        check()
        for name in _RULES.intersection(names):
            path = folder + b"/" + name
            try:
                mode = os.lstat(path).st_mode
            except OSError:  # gone by now
                continue
            if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):  # git follows no link there
                yield path

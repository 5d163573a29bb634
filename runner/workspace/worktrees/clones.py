"""Runner's own clones of repositories that are not on this host: bare, one for each URL."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.workspace.copy import remove
from runner.workspace.git import GitError
from runner.workspace.worktrees.repository import Repository

BASES = "refs/runner/bases/"

_ALL = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
_KEY_LENGTH = 32


def clone_of(home: Path, url: str) -> Path:
    """Where the clone of a URL is, or would be.

    Args:
        home: RUNNER_HOME.
    """
    key = hashlib.sha256(url.encode("utf-8", "surrogateescape")).hexdigest()[:_KEY_LENGTH]
    return home / "repositories" / f"{key}.git"


def have_clone(clone: Path, url: str, commit: str) -> None:
    """Have a clone that holds a commit: made at first, fetched into when the commit is newer. One at a
    time does it; others wait, and find it done.

    Raises:
        GitError: the URL does not answer, or has no such commit. OSError.
    """
    clone.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(clone):
        _remove_drafts(clone)
        if not clone.is_dir():
            draft = clone.with_name(f"{clone.name}.partial-{secrets.token_hex(4)}")
            draft.mkdir(mode=0o700)
            Repository(draft).git("init", "--quiet", "--bare", "--template=")
            _fetch(Repository(draft), url, commit)
            draft.rename(clone)
        elif not Repository(clone).has(commit):
            _fetch(Repository(clone), url, commit)


def _fetch(clone: Repository, url: str, commit: str) -> None:
    """Branches and tags, and when the commit is in none of them, the commit."""
    fetch = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-gc", "--", url)
    clone.git(*fetch, *_ALL)
    base = f"{BASES}{commit}"
    for wanted in (f"+{base}:{base}", f"+{commit}:{base}"):
        if clone.has(commit):
            return
        try:
            clone.git(*fetch, wanted)
        except GitError as error:
            failure = error
    if not clone.has(commit):
        raise GitError(f"{url} has no commit {commit}: {failure}") from failure


@contextmanager
def _alone(clone: Path) -> Iterator[None]:
    descriptor = os.open(f"{clone}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_drafts(clone: Path) -> None:
    """What a clone that was cut off left."""
    for path in clone.parent.glob(f"{clone.name}.partial-*"):
        remove(path)

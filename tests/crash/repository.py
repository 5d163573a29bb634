"""The repository that the sweep's runs have worktrees of, and what must still hold of it at the end."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from tests.crash.record import hold

_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    **{
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "Someone"), ("EMAIL", "someone@example.org"))
    },
}


def git(folder: Path, *arguments: str) -> str:
    """What a git command prints, without blanks around it."""
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=_ENVIRONMENT, capture_output=True, check=False
    )
    hold(done.returncode == 0, f"git {arguments} failed", done.stderr)
    return done.stdout.decode().strip()


def make(folder: Path) -> None:
    """Make a repository of a folder: a commit, something staged, something changed, and a stash; with
    a remote beside it, and an identity for those who commit in worktrees of it."""
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "user.name", "An agent")
    git(folder, "config", "user.email", "agent@example.org")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "begin")
    git(folder, "clone", "-q", "--bare", str(folder), str(remote_of(folder)))
    (folder / "stashed.txt").write_text("stashed")
    git(folder, "stash", "-qu")
    (folder / "staged.txt").write_text("staged")
    git(folder, "add", "staged.txt")
    (folder / "changed.txt").write_text("changed")
    (folder / ".git" / "as-it-was").write_text(_state(folder))


def head(folder: Path) -> str:
    """The commit that runs begin at."""
    return git(folder, "rev-parse", "main")


def remote_of(folder: Path) -> Path:
    """The bare repository that hosts share."""
    return folder.parent / "remote.git"


def check_untouched(folder: Path) -> None:
    """Raise ``Violation`` unless checkout, index, stash and branches are the user's as they were."""
    before = (folder / ".git" / "as-it-was").read_text()
    hold(_state(folder) == before, "the user's repository was touched", before, _state(folder))


def _state(folder: Path) -> str:
    index = hashlib.sha256((folder / ".git" / "index").read_bytes()).hexdigest()
    refs = git(folder, "for-each-ref", "--format=%(refname) %(objectname)")
    own = [ref for ref in refs.splitlines() if not ref.startswith("refs/heads/runner/")]
    head = (folder / ".git" / "HEAD").read_text()
    status = git(folder, "status", "--porcelain=v2", "--untracked-files=all")
    return "\n".join((index, head, status, *own))

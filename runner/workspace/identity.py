"""Which folder is which: an id in a workspace's root says that it is there, and the right one."""

from __future__ import annotations

import base64
import os
import re
import secrets
import shutil
import stat
import subprocess
from pathlib import Path

from runner.errors import UsageError

MARKER = ".runner-workspace"
EXCLUDED = f"{MARKER}*"

_ID = re.compile(r"ws_[a-z2-7]{26}")


def identify(root: Path) -> str:
    """The id of a workspace; one is made and written into its root when it has none.

    In a git repository the id's file is excluded (``info/exclude``), so that ``git status`` stays
    clean and nobody commits it.

    Args:
        root: the workspace's folder.

    Returns:
        ``ws_`` and 26 characters.

    Raises:
        UsageError: the id cannot be written, or what is in its place is no id.
    """
    try:
        if not os.path.lexists(root / MARKER):
            exclude_from_git(root)
        return mark(root)
    except OSError as error:
        raise UsageError(
            f"cannot keep the workspace's id in {root / MARKER}: {error.strerror or error}; "
            "make the folder writable or choose another workspace"
        ) from error


def mark(root: Path) -> str:
    """Like ``identify``, but git is told nothing, and an OSError stays one."""
    marker = root / MARKER
    if not os.path.lexists(marker):
        _create(marker)
    identity = _read(marker)
    if identity is None:
        raise UsageError(f"{marker} does not hold a workspace's id; delete that file and try again")
    return identity


def visible(path: Path, identity: str) -> bool:
    """Whether the workspace of that id is at that path, as seen from here."""
    try:
        return _read(path / MARKER) == identity
    except OSError:
        return False


def exclude_from_git(root: Path) -> None:
    """Have git overlook the id's file in the repository that ``root`` is in, if it is in one."""
    listing = _exclude_file(root)
    if listing is None:
        return
    text = listing.read_bytes() if listing.exists() else b""
    if EXCLUDED.encode() in text.splitlines():
        return
    listing.parent.mkdir(parents=True, exist_ok=True)
    start = "" if not text or text.endswith(b"\n") else "\n"
    with listing.open("a", encoding="utf-8") as file:
        file.write(f"{start}{EXCLUDED}\n")


def _exclude_file(root: Path) -> Path | None:
    """The repository's own ignore list, wherever git keeps it (worktrees share one)."""
    git = shutil.which("git")
    if git is None:
        return root / ".git" / "info" / "exclude" if (root / ".git").is_dir() else None
    found = subprocess.run(
        [git, "rev-parse", "--git-path", "info/exclude"],
        cwd=root,
        # Inside a git hook these name another repository.
        env={name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if found.returncode != 0:
        return None
    return root / os.fsdecode(found.stdout.removesuffix(b"\n"))


def _create(marker: Path) -> None:
    """Write a new id, whole or not at all; an id that another process wrote meanwhile stays."""
    code = base64.b32encode(secrets.token_bytes(16)).decode().rstrip("=").lower()
    draft = marker.with_name(f"{MARKER}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"ws_{code}\n")
        # A link, unlike a rename, never replaces what is there.
        os.link(draft, marker)
    except FileExistsError:
        return
    finally:
        draft.unlink()


def _read(marker: Path) -> str | None:
    """The id, or None when something else is there. An agent may have put anything in its place:
    links are not followed, and a pipe does not hold us up."""
    descriptor = os.open(marker, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        text = os.read(descriptor, 200).decode("ascii", "replace").strip()
    finally:
        os.close(descriptor)
    return text if _ID.fullmatch(text) else None

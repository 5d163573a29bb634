"""Folders that runs work in: their ids, and copies of them."""

from __future__ import annotations

import base64
import errno
import os
import re
import secrets
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.errors import UsageError, WorkspaceError

MARKER = ".runner-workspace"


EXCLUDED = f"{MARKER}*"


MARKED = "ws_"  # what ids begin with that are written in their folders


_MOST_EXCLUDES = 1 << 20  # bytes


_GIT_SECONDS = 10.0


_ID_BYTES = 200


# Whatever an agent or a repository put in a file's place: links are not followed, pipes not waited for.
_CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


# What opening so says of a link, of a link or file instead of a folder, of a folder, of a socket.
_SOMETHING_ELSE = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO})


_ID = re.compile(rf"{MARKED}[a-z2-7]{{26}}")


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
    with _explained(root):
        if not os.path.lexists(root / MARKER):
            exclude_from_git(root)
        return mark(root)


def mark(root: Path) -> str:
    """Like ``identify``, but git is told nothing, and an OSError stays one."""
    marker = root / MARKER
    if not os.path.lexists(marker):
        code = base64.b32encode(secrets.token_bytes(16)).decode().rstrip("=").lower()
        _create(marker, f"{MARKED}{code}")
    identity = _read(marker)
    if identity is None:
        raise UsageError(f"{marker} does not hold a workspace's id; delete that file and try again")
    return identity


def restore(root: Path, identity: str) -> bool:
    """Write a workspace's id back into its folder, from which a ``git clean`` or an agent removed it.
    Whether it is the same folder still is for the caller to know.

    Args:
        root: the workspace's folder.
        identity: the id that it had.

    Returns:
        Whether it was written: False when something is in its place, or there is no such folder.

    Raises:
        UsageError: the id cannot be written.
    """
    if not root.is_dir() or os.path.lexists(root / MARKER):
        return False
    with _explained(root):
        exclude_from_git(root)
        return _create(root / MARKER, identity)


def visible(path: Path, identity: str) -> bool:
    """Whether the workspace of that id is at that path, as seen from here."""
    try:
        return _read(path / MARKER) == identity
    except OSError:
        return False


def exclude_from_git(root: Path) -> None:
    """Have git overlook the id's file in the repository that ``root`` is in, if it is in one.

    The repository is not trusted: an ignore list that is a link, no regular file, or over 1 MiB is
    left alone, and ``git status`` shows the id's file then.
    """
    listing = _exclude_file(root)
    if listing is None:
        return
    try:
        descriptor = _open_listing(listing)
    except OSError as error:
        if error.errno in _SOMETHING_ELSE:
            return
        raise
    with open(descriptor, "rb+", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return
        text = _first_bytes(descriptor, _MOST_EXCLUDES + 1)
        if len(text) <= _MOST_EXCLUDES and EXCLUDED.encode() not in text.splitlines():
            start = "" if not text or text.endswith(b"\n") else "\n"
            file.write(f"{start}{EXCLUDED}\n".encode())


def beginning(path: str | Path, most: int) -> bytes | None:
    """The first ``most`` bytes of a file; None when something else than a regular file is there.

    Raises:
        OSError: it cannot be read, or is a link.
    """
    descriptor = os.open(path, os.O_RDONLY | _CAREFULLY)
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return _first_bytes(descriptor, most) if regular else None
    finally:
        os.close(descriptor)


@contextmanager
def _explained(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot keep the workspace's id in {root / MARKER}: {error.strerror or error}; "
            "make the folder writable or choose another workspace"
        ) from error


def _open_listing(listing: Path) -> int:
    """A descriptor of an ignore list, to read and to append to; made when it is missing. From git's
    own folder on (two above it) nothing on the way is a link."""
    git_folder = os.open(listing.parent.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(FileExistsError):
            os.mkdir(listing.parent.name, dir_fd=git_folder)
        info = os.open(
            listing.parent.name, os.O_RDONLY | os.O_DIRECTORY | _CAREFULLY, dir_fd=git_folder
        )
    finally:
        os.close(git_folder)
    try:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | _CAREFULLY
        return os.open(listing.name, flags, 0o666, dir_fd=info)
    finally:
        os.close(info)


def _first_bytes(descriptor: int, most: int) -> bytes:
    found = bytearray()
    while len(found) < most and (piece := os.read(descriptor, most - len(found))):
        found += piece
    return bytes(found)


def _exclude_file(root: Path) -> Path | None:
    """The repository's own ignore list, wherever git keeps it (worktrees share one)."""
    git = shutil.which("git")
    if git is None:
        folder = root / ".git"
        plain = folder.is_dir() and not folder.is_symlink()
        return folder / "info" / "exclude" if plain else None
    try:
        found = subprocess.run(
            [git, "rev-parse", "--git-path", "info/exclude"],
            cwd=root,
            # Inside a git hook these name another repository.
            env={name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_GIT_SECONDS,
        )
    except subprocess.TimeoutExpired:  # a pipe or device in the place of one of git's files
        return None
    if found.returncode != 0:
        return None
    return root / os.fsdecode(found.stdout.removesuffix(b"\n"))


def _create(marker: Path, identity: str) -> bool:
    """Write an id, whole or not at all; one that another process wrote meanwhile stays, and False is
    the answer."""
    draft = marker.with_name(f"{MARKER}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{identity}\n")
        # A link, unlike a rename, never replaces what is there.
        os.link(draft, marker)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def _read(marker: Path) -> str | None:
    """The id, or None when something else is there."""
    content = beginning(marker, _ID_BYTES)
    text = (content or b"").decode("ascii", "replace").strip()
    return text if _ID.fullmatch(text) else None


_TRIES = 3


_CHECK_EVERY = 200  # files


_LONGEST_GIT_FILE = 8_192  # a path, and a word before it


def copy(
    source: Path,
    target: Path,
    leave_out: Sequence[Path],
    check: Callable[[], None] = lambda: None,
) -> str:
    """Copy a workspace, or take the copy that an earlier attempt finished.

    Links stay links, permissions and times are kept. Sockets, pipes and devices are left out, and so
    is a ``.git`` file that points out of the workspace (as in a git worktree: commands in the copy
    would change the original's index). The copy is made beside ``target`` and moved there when it is
    whole, so what is at ``target`` is never half a copy; what a killed attempt left is removed.

    Args:
        source: the workspace's folder.
        target: where the copy goes; folders above it are created.
        leave_out: folders or files inside ``source`` that are not copied (Runner's own).
        check: called for every folder and every 200 files; what it raises ends the copying, and
            nothing is at ``target`` then.

    Returns:
        The copy's own id.

    Raises:
        WorkspaceError: it cannot be copied; nothing is at ``target`` then.
    """
    if target.is_dir():
        return identify(target)
    draft = target.with_name(f"{_draft_prefix(target)}{secrets.token_hex(4)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target, check)
        left_out = frozenset(os.path.realpath(path) for path in (*leave_out, target, draft))
        _copy_tree(os.path.realpath(source), str(draft), left_out, check)
        if (draft / ".git").exists():
            exclude_from_git(draft)
        identity = mark(draft)
        _copy_status(os.path.realpath(source), str(draft))
        return identity if _moved(draft, target) else identify(target)
    except OSError as error:
        raise WorkspaceError(f"cannot copy the workspace {source} to {target}: {error}") from error
    finally:
        remove(draft)


def _draft_prefix(target: Path) -> str:
    return f".{target.name}.partial-"


def _remove_leftovers(target: Path, check: Callable[[], None]) -> None:
    for path in target.parent.iterdir():
        if path.name.startswith(_draft_prefix(target)):
            check()
            remove(path)


def _moved(draft: Path, target: Path) -> bool:
    """Move the whole copy into its place; False when another attempt's is there already."""
    try:
        draft.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def remove(folder: Path) -> None:
    """Remove a folder and all that is in it, folders that may not be written to included; a link or
    file in its place too.

    Raises:
        OSError: it cannot be removed whole.
    """
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink()
        return
    folder.chmod(stat.S_IRWXU)
    for here, names, _ in os.walk(folder):
        for name in names:
            path = Path(here, name)
            if not path.is_symlink():
                path.chmod(stat.S_IRWXU)
    shutil.rmtree(folder)


def _copy_tree(
    source: str, target: str, left_out: frozenset[str], check: Callable[[], None]
) -> None:
    """Copy what is in ``source``; permissions of folders come last, as some forbid writing."""
    waiting = [(source, target)]
    made: list[tuple[str, str]] = []
    while waiting:
        check()
        here, there = waiting.pop()
        os.mkdir(there, stat.S_IRWXU)  # noqa: PTH102 - plain strings: this runs for every folder
        try:
            with os.scandir(here) as found:
                entries = list(found)
        except FileNotFoundError as error:
            if here == source:
                raise
            _expect_gone(here, error)
            continue
        if here != source:
            made.append((here, there))
        for number, entry in enumerate(entries, 1):
            if number % _CHECK_EVERY == 0:
                check()
            if entry.path in left_out or (here == source and entry.name.startswith(MARKER)):
                continue
            goal = f"{there}{os.sep}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                waiting.append((entry.path, goal))
            else:
                _copy_entry(entry, goal, source)
    for here, there in reversed(made):
        check()
        _copy_status(here, there)


def _copy_entry(entry: os.DirEntry[str], goal: str, source: str) -> None:
    """Copy one file or link; a file that is removed while we are at it was never there."""
    wanted = entry.is_symlink() or entry.is_file(follow_symlinks=False)
    if not wanted or (entry.name == ".git" and _points_outside(entry.path, source)):
        return
    for _ in range(_TRIES):
        try:
            if entry.is_symlink():  # copy2 refuses a link to a pipe
                os.symlink(os.readlink(entry.path), goal)  # noqa: PTH115, PTH211 - plain strings
                shutil.copystat(entry.path, goal, follow_symlinks=False)
            else:
                shutil.copy2(entry.path, goal, follow_symlinks=False)
        except FileNotFoundError as error:
            gone = error  # and perhaps back again: then once more
            if not os.path.lexists(entry.path):
                return
        else:
            return
    raise gone


def _copy_status(source: str, target: str) -> None:
    try:
        shutil.copystat(source, target)
    except FileNotFoundError as error:
        _expect_gone(source, error)


def _expect_gone(path: str, error: FileNotFoundError) -> None:
    """Raise the error unless it is about the original: that was gone, so it was never there, even if
    it is back by now."""
    if error.filename != path:
        raise error


def _points_outside(git_file: str, source: str) -> bool:
    """Whether a ``.git`` file (https://git-scm.com/docs/gitrepository-layout) or link names a folder
    that is not in the tree, or cannot be carried over because its path is absolute."""
    file = Path(git_file)
    if file.is_symlink():
        pointed = file.readlink()
    else:
        text = os.fsdecode(beginning(git_file, _LONGEST_GIT_FILE) or b"")
        pointed = Path(text.removeprefix("gitdir:").strip())
    folder = (file.parent / pointed).resolve()
    return pointed.is_absolute() or not folder.is_relative_to(source)

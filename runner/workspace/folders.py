"""Folders that runs work in: the id that says which folder is which, and copies of a folder."""

from __future__ import annotations

import base64
import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.errors import UsageError, WorkspaceError
from runner.workspace.git import Check, Git, no_check

COPIES = "workspaces"  # the folder of RUNNER_HOME with worktrees and copies, named after their runs
MARKER = ".runner-workspace"  # the file in a workspace's root that holds its id
EXCLUDED = f"{MARKER}*"  # ... and its drafts, for a list of ignored files
MARKED = "ws_"  # what the id in a marker begins with

_LARGEST_EXCLUDE = 1 << 20  # bytes
_LONGEST_ID = 200
_LONGEST_GIT_FILE = 8_192  # a path, and a word before it
GIT_SECONDS = 10.0
_TRIES = 3
_CHECK_EVERY = 200  # files
# An agent or a repository may put anything in a file's place: follow no link, wait for no pipe.
_CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# How such an open fails for a link, a link or file instead of a folder, a folder, a socket.
_SOMETHING_ELSE = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO})
_ID = re.compile(rf"{MARKED}[a-z2-7]{{26}}")


def identify(root: Path) -> str:
    """Return the id of a workspace; write a new one into its root if it has none. git ignores its
    file (``info/exclude``). Raises ``UsageError`` if the id cannot be written, or something is in
    its place."""
    with _explained(root):
        if not os.path.lexists(root / MARKER):
            exclude_from_git(root)
        return mark(root)


def mark(root: Path) -> str:
    """Return the id in a folder like ``identify``, without telling git; an OSError stays one."""
    marker = root / MARKER
    if not os.path.lexists(marker):
        write_once(marker, f"{MARKED}{new_id()}\n")
    identity = _read(marker)
    if identity is None:
        raise UsageError(f"{marker} does not hold a workspace's id; delete that file and try again")
    return identity


def restore_id(root: Path, identity: str) -> bool:
    """Write a workspace's id back into its folder, known to be the same, from which a ``git clean``
    removed it. Returns False if there is none, or something is in its place. Raises
    ``UsageError``."""
    if not root.is_dir() or os.path.lexists(root / MARKER):
        return False
    with _explained(root):
        exclude_from_git(root)
        return write_once(root / MARKER, f"{identity}\n")


def has_id(path: Path, identity: str) -> bool:
    """Return True if this process sees the workspace of that id at that path."""
    with suppress(OSError):
        return _read(path / MARKER) == identity
    return False


def exclude_from_git(root: Path) -> None:
    """Have git overlook the id's file in the repository that ``root`` is in, if any. The repository
    is not trusted: an ignore list that is no regular file, or over 1 MiB, is left alone."""
    if shutil.which("git") is None:
        folder = root / ".git"
        if not folder.is_dir() or folder.is_symlink():
            return
        listing = folder / "info" / "exclude"
    else:  # wherever git keeps it: worktrees share one
        git = Git(root, os.environ, user_settings=True, seconds=GIT_SECONDS)
        found = git.answer("rev-parse", "--git-path", "info/exclude")
        if found is None:
            return
        listing = root / found
    try:
        descriptor = _open_listing(listing)
    except OSError as error:
        if error.errno in _SOMETHING_ELSE:
            return
        raise
    with open(descriptor, "rb+", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return
        text = file.read(_LARGEST_EXCLUDE + 1)
        if len(text) <= _LARGEST_EXCLUDE and EXCLUDED.encode() not in text.splitlines():
            start = "" if not text or text.endswith(b"\n") else "\n"
            file.write(f"{start}{EXCLUDED}\n".encode())


def _open_listing(listing: Path) -> int:
    """Open an ignore list to read and append to it, or make it; below git's folder, two above it,
    links are refused."""
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


def read_beginning(path: str | Path, most: int) -> bytes | None:
    """Return the first ``most`` bytes of a file, or None if it is no regular file. Raises
    ``OSError`` if it cannot be read, or is a link."""
    descriptor = os.open(path, os.O_RDONLY | _CAREFULLY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)


def new_id() -> str:
    return base64.b32encode(secrets.token_bytes(16)).decode().rstrip("=").lower()


def write_once(file: Path, text: str) -> bool:
    """Write a file, whole or not at all; return False if another process was first."""
    draft = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    with draft.open("x", encoding="ascii") as opened:
        try:
            opened.write(text)
            opened.flush()
            os.link(draft, file)  # unlike a rename, it never replaces a file
        except FileExistsError:
            return False
        finally:
            draft.unlink()
    return True


def write_whole(file: Path, content: bytes) -> None:
    """Write or replace a file, whole or not at all."""
    draft = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    try:
        draft.write_bytes(content)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _explained(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot keep the workspace's id in {root / MARKER}: {error.strerror or error}; "
            "make the folder writable or choose another workspace"
        ) from error


def _read(marker: Path) -> str | None:
    content = read_beginning(marker, _LONGEST_ID)
    text = (content or b"").decode("ascii", "replace").strip()
    return text if _ID.fullmatch(text) else None


def copy_folder(
    source: Path, target: Path, leave_out: Sequence[Path], check: Check = no_check
) -> str:
    """Copy a workspace, or take the copy that an earlier attempt finished; return the copy's own id.

    Links stay links, permissions and times are kept. Sockets, pipes and devices are left out, and so
    is a ``.git`` file that points out of the workspace (as in a git worktree: commands in the copy
    would change the original's index). The copy is made beside ``target`` and moved there when it is
    whole; what a killed attempt left is removed.

    Args:
        target: where the copy goes; folders above it are created.
        leave_out: folders or files inside ``source`` that are not copied (Runner's own).
        check: called for every folder and every 200 files.

    Raises:
        WorkspaceError: it cannot be copied; nothing is at ``target`` then.
    """
    if target.is_dir():
        return identify(target)
    prefix = f".{target.name}.partial-"
    draft = target.with_name(f"{prefix}{secrets.token_hex(4)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for path in target.parent.iterdir():
            if path.name.startswith(prefix):
                check()
                remove_folder(path)
        left_out = frozenset(os.path.realpath(path) for path in (*leave_out, target, draft))
        _copy_tree(os.path.realpath(source), str(draft), left_out, check)
        if (draft / ".git").exists():
            exclude_from_git(draft)
        identity = mark(draft)
        _copy_status(os.path.realpath(source), str(draft))
        try:
            draft.rename(target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # another attempt's is there already
                return identify(target)
            raise
        return identity
    except OSError as error:
        raise WorkspaceError(f"cannot copy the workspace {source} to {target}: {error}") from error
    finally:
        remove_folder(draft)


def remove_folder(folder: Path | bytes, dir_fd: int | None = None) -> None:
    """Remove a folder, also one that its user may not write to, with everything in it, or what is
    in its place, if it is there. Raises ``OSError`` if it cannot be removed whole."""
    try:
        is_folder = stat.S_ISDIR(os.lstat(folder, dir_fd=dir_fd).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return
    if not is_folder:
        os.unlink(folder, dir_fd=dir_fd)
        return
    try:
        shutil.rmtree(folder, dir_fd=dir_fd)
    except PermissionError:
        with suppress(PermissionError):
            os.chmod(folder, stat.S_IRWXU, dir_fd=dir_fd)
        for _, names, _, here in os.fwalk(folder, dir_fd=dir_fd):
            for name in names:
                with suppress(PermissionError):
                    if stat.S_ISDIR(os.lstat(name, dir_fd=here).st_mode):
                        os.chmod(name, stat.S_IRWXU, dir_fd=here)
        shutil.rmtree(folder, dir_fd=dir_fd)


def _copy_tree(source: str, target: str, left_out: frozenset[str], check: Check) -> None:
    """Copy a folder's content; permissions of folders come last, as some forbid writing."""
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
            if here == source or error.filename != here:
                raise
            continue  # removed meanwhile: it does not belong to the copy
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
    """Copy one file or link, unless it is removed meanwhile."""
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
            gone = error  # it may be back again: try once more
            if not os.path.lexists(entry.path):
                return
        else:
            return
    raise gone


def _copy_status(source: str, target: str) -> None:
    try:
        shutil.copystat(source, target)
    except FileNotFoundError as error:
        if error.filename != source:
            raise


def _points_outside(git_file: str, source: str) -> bool:
    """Return True if a ``.git`` file (https://git-scm.com/docs/gitrepository-layout) or link names a
    folder outside the tree, or names it by an absolute path, which a copy cannot keep."""
    file = Path(git_file)
    if file.is_symlink():
        pointed = file.readlink()
    else:
        text = os.fsdecode(read_beginning(git_file, _LONGEST_GIT_FILE) or b"")
        pointed = Path(text.removeprefix("gitdir:").strip())
    folder = (file.parent / pointed).resolve()
    return pointed.is_absolute() or not folder.is_relative_to(source)

"""A run's own copy of a workspace."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from runner.errors import WorkspaceError
from runner.workspace.identity import MARKER, beginning, exclude_from_git, identify, mark

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

"""Finding and opening the files of a search, in the search child.

Symlinks are never followed: what is opened is where it was expected, although something may put a
symlink in its way meanwhile.
"""

# ruff: noqa: PTH112, PTH115
# (pathlib costs a walk time, and has no descriptors of folders)

from __future__ import annotations

import errno
import os
import sys

_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC


def regular_files(base: str, excluded: frozenset[str]) -> list[str]:
    """All regular files below a folder (or the base, if it is none), by path. ``.git`` and the
    folders in ``excluded`` are passed over."""
    if not os.path.isdir(base):
        return [base]
    found: list[str] = []
    folders = [base]
    while folders:
        folder = folders.pop()
        try:
            files, inner = _listed(folder)
        except OSError:  # not ours to read, or gone meanwhile: there is nothing to find in it
            continue
        above = folder.rstrip("/")
        found += [f"{above}/{name}" for name in files]
        folders += [path for name in inner if (path := f"{above}/{name}") not in excluded]
    return sorted(found)


def open_in_place(path: str, flags: int = 0) -> int:
    """A descriptor of what is at a path that has no symlinks.

    Raises:
        OSError: it cannot be opened, or a symlink has come to be on the way.
    """
    descriptor = os.open(path, _OPEN | flags)
    if sys.platform == "linux" and os.readlink(f"/proc/self/fd/{descriptor}") != path:
        os.close(descriptor)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return descriptor


def _listed(folder: str) -> tuple[list[str], list[str]]:
    """The names of a folder's regular files, and of its folders save ``.git``."""
    descriptor = open_in_place(folder, os.O_DIRECTORY)
    files: list[str] = []
    inner: list[str] = []
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    files.append(entry.name)
                elif entry.is_dir(follow_symlinks=False) and entry.name != ".git":
                    inner.append(entry.name)
    finally:
        os.close(descriptor)
    return files, inner

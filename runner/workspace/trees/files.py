"""A work tree's files, reached without following a link out of it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

Kind = Literal["file", "link", "folder", "nothing", "blocked", "other"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ALL = os.R_OK | os.X_OK
_OWN = stat.S_IRWXU


class Sight:
    """What is in a work tree at one moment. Paths are bytes, relative to its root.

    Args:
        root: the work tree's folder.
    """

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._folders: dict[bytes, bool] = {b"": True}

    def look(self, path: bytes) -> tuple[Kind, os.stat_result | None]:
        """What is at a path, with its status when it is a file. What lies behind a link is nothing;
        ``blocked`` is what this process may not read."""
        try:
            if not self._is_folder(path.rpartition(b"/")[0]):
                return "nothing", None
            status = os.lstat(self._at(path))
        except (FileNotFoundError, NotADirectoryError):
            return "nothing", None
        except PermissionError:
            return "blocked", None
        if stat.S_ISLNK(status.st_mode):
            return "link", None
        if stat.S_ISDIR(status.st_mode):
            return "folder", None
        if not stat.S_ISREG(status.st_mode):
            return "other", None
        if os.access(self._at(path), os.R_OK):
            return "file", status
        return ("blocked" if os.path.lexists(self._at(path)) else "nothing"), None

    def blocked(self, path: bytes) -> bytes:
        """The part of a path that may not be read: a folder above it, or itself."""
        parts = path.split(b"/")
        for count in range(1, len(parts)):
            folder = b"/".join(parts[:count])
            if not os.access(self._at(folder), os.X_OK):
                return folder
        return path

    def folders_in(self, folder: bytes) -> list[bytes] | Literal["blocked", "nothing"]:
        """The folders right in a folder, git's own left out; ``blocked`` when it may not be read, and
        ``nothing`` when it is no folder any more."""
        if not os.access(self._at(folder), _ALL) and os.path.lexists(self._at(folder)):
            return "blocked"
        try:
            with os.scandir(self._at(folder)) as found:
                return [
                    folder + b"/" + entry.name
                    for entry in found
                    if entry.name != b".git" and entry.is_dir(follow_symlinks=False)
                ]
        except (FileNotFoundError, NotADirectoryError):
            return "nothing"

    def is_empty(self, folder: bytes) -> bool:
        """Whether there is nothing at all in a folder; false for one that may not be read, or is none any
        more."""
        try:
            with os.scandir(self._at(folder)) as found:
                return next(found, None) is None
        except (PermissionError, FileNotFoundError, NotADirectoryError):
            return False

    def _is_folder(self, folder: bytes) -> bool:
        known = self._folders.get(folder)
        if known is None:
            known = self._is_folder(folder.rpartition(b"/")[0]) and stat.S_ISDIR(
                os.lstat(self._at(folder)).st_mode
            )
            self._folders[folder] = known
        return known

    def _at(self, path: bytes) -> bytes:
        return self._root + b"/" + path


class Hand:
    """Changes a work tree. No folder on the way to a path may be a link: one that is makes an
    ``OSError`` (ELOOP or ENOTDIR) of whatever was asked.

    Args:
        root: the work tree's folder.
    """

    def __init__(self, root: bytes) -> None:
        self._root = root

    def remove(self, path: bytes) -> None:
        """Remove a file, or a folder with all that is in it; one that is gone is none."""
        with suppress(FileNotFoundError), self._parent(path) as (parent, name):
            if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
                _remove_folder(name, parent)
            else:
                _opened_up(parent)
                os.unlink(name, dir_fd=parent)

    def remove_empty(self, folders: Iterable[bytes]) -> None:
        """Remove those folders that nothing is in, the innermost first."""
        for folder in sorted(folders, reverse=True):
            with suppress(OSError), self._parent(folder) as (parent, name):
                os.rmdir(name, dir_fd=parent)

    def make_folder(self, path: bytes) -> None:
        """Make a folder and those above it, in the place of whatever else is there."""
        descriptor = os.open(self._root, _FOLDER)
        try:
            for name in path.split(b"/"):
                status = _status(name, descriptor)
                if status is not None and not stat.S_ISDIR(status.st_mode):
                    os.unlink(name, dir_fd=descriptor)
                if status is None or not stat.S_ISDIR(status.st_mode):
                    _opened_up(descriptor)
                    os.mkdir(name, dir_fd=descriptor)
                inner = os.open(name, _FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
        finally:
            os.close(descriptor)

    def open_up(self, folder: bytes) -> None:
        """Let this process read and change a folder of its own, and those above it; what is no folder
        stays as it is."""
        parts = folder.split(b"/")
        for count in range(1, len(parts) + 1):
            path = b"/".join(parts[:count])
            if _may_not(self._root + b"/" + path):
                nothing = suppress(FileNotFoundError, NotADirectoryError)
                with nothing, self._parent(path) as (parent, name):
                    if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
                        os.chmod(name, _OWN, dir_fd=parent)

    def set_executable(self, path: bytes, executable: bool) -> None:
        """Set or clear the right to run a file, for those who may read it."""
        with self._parent(path) as (parent, name):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
            try:
                mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
                os.fchmod(descriptor, mode | (mode & 0o444) >> 2 if executable else mode & ~0o111)
            finally:
                os.close(descriptor)

    @contextmanager
    def _parent(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        *folders, name = path.split(b"/")
        descriptor = os.open(self._root, _FOLDER)
        try:
            for folder in folders:
                inner = os.open(folder, _FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor, name
        finally:
            os.close(descriptor)


def _status(name: bytes, parent: int) -> os.stat_result | None:
    try:
        return os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return None


def _may_not(folder: bytes) -> bool:
    return not os.access(folder, _ALL | os.W_OK)


def _opened_up(descriptor: int) -> None:
    """Let this process change a folder that it owns."""
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & _OWN != _OWN:
        with suppress(PermissionError):  # another's: what follows says so
            os.fchmod(descriptor, mode | _OWN)


def _remove_folder(name: bytes, parent: int) -> None:
    _opened_up(parent)
    try:
        shutil.rmtree(name, dir_fd=parent)
    except PermissionError:
        _open_all(name, parent)
        shutil.rmtree(name, dir_fd=parent)


def _open_all(name: bytes, parent: int) -> None:
    """Let this process change a folder and all those in it, as far as they are its own."""
    with suppress(PermissionError):
        os.chmod(name, _OWN, dir_fd=parent)
    for _, folders, _, descriptor in os.fwalk(name, dir_fd=parent):
        for folder in folders:
            with suppress(PermissionError):
                if stat.S_ISDIR(os.lstat(folder, dir_fd=descriptor).st_mode):
                    os.chmod(folder, _OWN, dir_fd=descriptor)

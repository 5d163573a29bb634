"""Puts a work tree back to a snapshot, without following a link out of it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from runner.workspace.git import Check, Git, GitError, shown
from runner.workspace.snapshot_store import MANIFEST, Large, Manifest, ancestors
from runner.workspace.survey import Surveyor, split

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


_OWN = stat.S_IRWXU


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
    return not os.access(folder, os.R_OK | os.W_OK | os.X_OK)


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


_SUBMODULE = b"160000"


_RULES = b".gitignore"


@dataclass(frozen=True, slots=True)
class Change:
    """How a path differs between the tree that was found and the one that is wanted."""

    path: bytes
    mode_found: bytes
    mode_wanted: bytes

    @property
    def is_wanted(self) -> bool:
        return self.mode_wanted != b"000000"


def changes_between(reader: Git, found: str, wanted: str, check: Check) -> list[Change]:
    """What differs between two trees, the manifests aside."""
    listed = split(
        reader.run("diff-tree", "-r", "-z", "--raw", "--no-renames", found, wanted, check=check)
    )
    changes = [
        Change(path, *about.removeprefix(b":").split(b" ")[:2])
        for about, path in zip(listed[::2], listed[1::2], strict=True)
    ]
    return [change for change in changes if change.path != MANIFEST]


def submodules_in(git: Git, tree: str, check: Check = lambda: None) -> list[bytes]:
    """The submodules of a tree, whether they were filled or not."""
    listed = split(git.run("ls-tree", "-r", "-z", tree, check=check))
    return [line.partition(b"\t")[2] for line in listed if line.startswith(_SUBMODULE)]


class Restorer:
    """Puts one work tree back.

    Args:
        reader: git with the work tree and its index, which is that of the tree that was found.
        surveyor: of the same work tree.
        root: the work tree's folder.
    """

    def __init__(self, reader: Git, surveyor: Surveyor, root: bytes, check: Check) -> None:
        self._reader = reader
        self._surveyor = surveyor
        self._hand = Hand(root)
        self._check = check

    def put_back(
        self, found: str, present: Manifest, tree: str, wanted: Manifest, *, leave_out: bool
    ) -> None:
        """Change the work tree, in which ``found`` was just recorded with the manifest ``present``,
        to ``tree`` with the manifest ``wanted``.

        What git ignores by the rules of ``tree`` is left alone, save in folders that were not there.

        Args:
            leave_out: what is only named in ``wanted``, and is not there, is left out.

        Raises:
            GitError: something that no tree holds would have to be put back (nothing was changed
                then), or the work tree cannot be written.
        """
        changes = changes_between(self._reader, found, tree, self._check)
        _expect_possible(changes, present, wanted)
        gone = wanted.unrecorded - present.unrecorded
        if not leave_out and (lost := gone - self._held(tree, gone)):
            raise GitError(_only_named(min(lost)))
        try:
            self._put_back(changes, present, tree, wanted)
        except OSError as error:
            place = shown(os.fsencode(error.filename)) if error.filename else "the workspace"
            raise GitError(
                f"cannot put the workspace back: {place}: {error.strerror or error}"
            ) from error

    def _put_back(
        self, changes: Collection[Change], present: Manifest, tree: str, wanted: Manifest
    ) -> None:
        appeared = {change.path for change in changes if not change.is_wanted}
        put = {
            change.path
            for change in changes
            if change.is_wanted and change.mode_wanted != _SUBMODULE
        }
        folders = self._folders_of(tree, wanted)
        put |= self._unreadable_files(present, wanted, tree, folders)
        appeared |= self._appeared_aside(present, wanted, folders | put)
        strange = ancestors(appeared) | present.directories | ancestors(present.directories)
        # What takes the place of something else replaces it.
        appeared -= folders
        strange -= folders | put

        self._reader.run("read-tree", "--reset", tree, check=self._check)
        rules = {path for path in put | appeared if path.rpartition(b"/")[2] == _RULES}
        self._check_out(rules & put)
        self._remove(rules & appeared, asked=bool(rules))
        self._remove_folders(strange)
        self._remove(appeared - rules, asked=bool(rules))
        self._hand.remove_empty(strange)
        self._check_out(put - rules)
        for change in changes:
            if change.mode_wanted == _SUBMODULE:
                self._hand.make_folder(change.path)
        for directory in sorted(wanted.directories - present.directories):
            self._hand.make_folder(directory)
        for large in wanted.large - present.large:
            self._hand.set_executable(large.path, large.executable)

    def _held(self, tree: str, paths: Collection[bytes]) -> set[bytes]:
        """Those of the paths that a tree has something of."""
        if not paths:
            return set()
        held = self._reader.run(
            "ls-tree", "-z", "--name-only", tree, "--", *sorted(paths), check=self._check
        )
        return set(split(held)) & set(paths)

    def _unreadable_files(
        self, present: Manifest, wanted: Manifest, tree: str, folders: Collection[bytes]
    ) -> set[bytes]:
        """Files that can be read no more, taken away so that git writes them again."""
        closed = self._held(tree, present.unrecorded - wanted.unrecorded) - set(folders)
        for path in closed:
            self._hand.remove(path)
        return closed

    def _folders_of(self, tree: str, manifest: Manifest) -> set[bytes]:
        """All folders that a snapshot says are there."""
        listed = self._reader.run("ls-tree", "-d", "-r", "-z", "--name-only", tree)
        named = manifest.directories | manifest.unrecorded
        return set(split(listed)) | named | ancestors(manifest.paths())

    def _appeared_aside(
        self, present: Manifest, wanted: Manifest, known: Collection[bytes]
    ) -> set[bytes]:
        """What no tree holds and was not there before. What may not be read now, and was a folder or
        file that is known, is opened instead."""
        kept = {large.path for large in wanted.large}
        appeared = {large.path for large in present.large} - kept
        for path in present.unrecorded - wanted.unrecorded:
            if path in known or path in kept:
                self._hand.open_up(path)
            else:
                appeared.add(path)
        return appeared - set(known)

    def _remove_folders(self, strange: set[bytes]) -> None:
        """Remove the folders that were not there, with all that is in them, unless git ignores them:
        an ignored one may have been there, unseen."""
        ignored = self._surveyor.ignored_among(strange, self._check)
        for folder in sorted(strange - ignored):
            if ancestors([folder]).isdisjoint(ignored):
                self._hand.remove(folder)

    def _remove(self, paths: Collection[bytes], *, asked: bool) -> None:
        """Remove what was not there. Where the rules of what is ignored changed (``asked``), it may
        have been there ignored: that is left alone. What is recorded though it is ignored shows
        once more when the rules are back, and goes then."""
        ignored = self._surveyor.ignored_among(paths, self._check) if asked else set()
        for path in paths:
            if path not in ignored:
                self._hand.remove(path)

    def _check_out(self, paths: Collection[bytes]) -> None:
        if not paths:
            return
        for folder in sorted(ancestors(paths)):
            self._hand.open_up(folder)
        given = b"\0".join(sorted(paths))
        arguments = ("checkout-index", "--force", "--index", "--quiet", "-z", "--stdin")
        self._reader.run(*arguments, given=given, check=self._check)


def _expect_possible(changes: Collection[Change], present: Manifest, wanted: Manifest) -> None:
    """Refuse what cannot be done, before anything is changed."""
    there = {(large.path, large.sha256) for large in present.large}
    lost = [large for large in wanted.large if (large.path, large.sha256) not in there]
    if lost:
        raise GitError(_lost_large(min(lost, key=lambda large: large.path)))
    moved = [
        change.path for change in changes if change.mode_found == change.mode_wanted == _SUBMODULE
    ]
    if moved:
        raise GitError(
            f"cannot put {shown(min(moved))} back: it is a submodule that is at another commit now, "
            "and submodules are not recorded; check out the commit in it by hand"
        )


def _only_named(path: bytes) -> str:
    return (
        f"cannot put {shown(path)} back: it was a nested repository, or could not be read, "
        "and such are only named in a snapshot, not recorded"
    )


def _lost_large(large: Large) -> str:
    return (
        f"cannot put {shown(large.path)} back: a file of {large.size} bytes is over the limit for "
        "snapshots (largest_file), so only its digest was recorded, and it was changed or removed"
    )

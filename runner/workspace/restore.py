"""Puts a work tree back to a snapshot, without following a link out of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from runner.workspace.folders import remove_folder
from runner.workspace.git import Check, Git, GitError, no_check, shown
from runner.workspace.snapshot_store import MANIFEST, Manifest, ancestors
from runner.workspace.survey import SUBMODULE, Surveyor

_RULES = b".gitignore"
_ABSENT = b"000000"  # the mode of a path that a tree does not have
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class WorkTreeWriter:
    """Changes a work tree. Paths are bytes, relative to the root; a link on the way to one is an
    ``OSError`` (ELOOP or ENOTDIR)."""

    root: bytes

    def remove(self, path: bytes) -> None:
        """Remove a file, or a folder with everything in it, if it is there."""
        with suppress(FileNotFoundError), self._parent(path) as (parent, name):
            os.lstat(name, dir_fd=parent)  # what is not there needs no permission
            _grant_owner(parent)
            remove_folder(name, parent)

    def remove_empty(self, folders: Iterable[bytes]) -> None:
        """Remove the folders that are empty, the innermost first."""
        for folder in sorted(folders, reverse=True):
            with suppress(OSError), self._parent(folder) as (parent, name):
                os.rmdir(name, dir_fd=parent)

    def make_folder(self, path: bytes) -> None:
        """Make a folder and its parents; replace whatever is in the way that is not a folder."""
        for each in sorted({path, *ancestors([path])}):
            with self._parent(each) as (parent, name):
                is_folder = None
                with suppress(FileNotFoundError):
                    is_folder = stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode)
                if is_folder is False:
                    os.unlink(name, dir_fd=parent)
                if not is_folder:
                    _grant_owner(parent)
                    os.mkdir(name, dir_fd=parent)

    def open_up(self, folder: bytes) -> None:
        """Give this process the right to read and change its own folder and that folder's parents, if they
        exist."""
        for path in sorted({folder, *ancestors([folder])}):
            if not os.access(self.root + b"/" + path, os.R_OK | os.W_OK | os.X_OK):
                missing = suppress(FileNotFoundError, NotADirectoryError)
                with missing, self._parent(path) as (parent, name):
                    if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
                        os.chmod(name, stat.S_IRWXU, dir_fd=parent)

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
        """Yield a descriptor of the folder that a path is in, and the path's last part."""
        *folders, name = path.split(b"/")
        descriptor = os.open(self.root, _FOLDER)
        try:
            for folder in folders:
                inner = os.open(folder, _FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor, name
        finally:
            os.close(descriptor)


def _grant_owner(descriptor: int) -> None:
    """Let this process change a folder that it owns."""
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        with suppress(PermissionError):  # another's: the change that follows will say so
            os.fchmod(descriptor, mode | stat.S_IRWXU)


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of a path between the snapshot found and the one wanted."""

    path: bytes
    mode_found: bytes
    mode_wanted: bytes


def differences(reader: Git, found: str, wanted: str, check: Check) -> list[Difference]:
    """Return the differences between two snapshots, except their manifests."""
    listed = reader.records(
        "diff-tree", "-r", "-z", "--raw", "--no-renames", found, wanted, check=check
    )
    return [
        Difference(path, *about.removeprefix(b":").split(b" ")[:2])
        for about, path in zip(listed[::2], listed[1::2], strict=True)
        if path != MANIFEST
    ]


def submodules_in(git: Git, tree: str, check: Check = no_check) -> list[bytes]:
    listed = git.records("ls-tree", "-r", "-z", tree, check=check)
    return [line.partition(b"\t")[2] for line in listed if line.startswith(SUBMODULE)]


@dataclass(frozen=True, slots=True)
class Restorer:
    reader: Git  # with the work tree and its index, which is that of the snapshot found
    surveyor: Surveyor
    writer: WorkTreeWriter
    check: Check

    def restore(
        self, found: str, present: Manifest, wanted: str, manifest: Manifest, *, leave_out: bool
    ) -> None:
        """Change the work tree from the snapshot ``found``, just taken of it, to ``wanted``.

        What git ignores by the rules of ``wanted`` is left alone, save in folders that it does not
        have.

        Args:
            present: the manifest of ``found``.
            manifest: the manifest of ``wanted``.
            leave_out: leave out what ``manifest`` only names and the work tree lacks.

        Raises:
            GitError: the work tree cannot be written, or something that no snapshot holds would have
                to be put back; then nothing was changed.
        """
        changes = differences(self.reader, found, wanted, self.check)
        _expect_possible(changes, present, manifest)
        missing = manifest.unrecorded - present.unrecorded
        if not leave_out and (lost := missing - self._held(wanted, missing)):
            raise GitError(
                f"cannot restore {shown(min(lost))}: snapshots do not record nested repositories and "
                "files that cannot be read"
            )
        try:
            self._apply(changes, present, wanted, manifest)
        except OSError as error:
            place = shown(os.fsencode(error.filename)) if error.filename else "the workspace"
            raise GitError(
                f"cannot restore the workspace: {place}: {error.strerror or error}"
            ) from error

    def _apply(
        self, changes: Collection[Difference], present: Manifest, wanted: str, manifest: Manifest
    ) -> None:
        submodules = {change.path for change in changes if change.mode_wanted == SUBMODULE}
        surplus = {change.path for change in changes if change.mode_wanted == _ABSENT}
        put = {change.path for change in changes} - submodules - surplus
        large = {each.path for each in manifest.large}
        listed = self.reader.records("ls-tree", "-d", "-r", "-z", "--name-only", wanted)
        named = manifest.directories | manifest.unrecorded
        folders = {*listed, *named, *ancestors(named | large)}
        # Recorded files that can be read no more are removed, so that git writes them again.
        closed = present.unrecorded - manifest.unrecorded
        for path in (unreadable := self._held(wanted, closed) - folders):
            self.writer.remove(path)
        put |= unreadable
        surplus |= {each.path for each in present.large} - large - folders - put
        # What no snapshot holds was not there before, unless it only may not be read.
        for path in closed:
            if path in folders or path in put or path in large:
                self.writer.open_up(path)
            else:
                surplus.add(path)
        new_folders = ancestors(surplus) | present.directories | ancestors(present.directories)
        # What takes the place of something else replaces it.
        surplus -= folders
        new_folders -= folders | put

        self.reader.run("read-tree", "--reset", wanted, check=self.check)
        # The rules of what is ignored come first: they say what of the rest was there unseen.
        rules = {path for path in put | surplus if path.rpartition(b"/")[2] == _RULES}
        self._check_out(rules & put)
        self._remove(rules & surplus, spare_ignored=bool(rules))
        # An ignored folder may have been there, unseen.
        ignored = self.surveyor.ignored_among(new_folders, self.check)
        for folder in sorted(new_folders - ignored):
            if ancestors([folder]).isdisjoint(ignored):
                self.writer.remove(folder)
        self._remove(surplus - rules, spare_ignored=bool(rules))
        self.writer.remove_empty(new_folders)
        self._check_out(put - rules)
        for folder in [*submodules, *sorted(manifest.directories - present.directories)]:
            self.writer.make_folder(folder)
        for each in manifest.large - present.large:
            self.writer.set_executable(each.path, each.executable)

    def _held(self, tree: str, paths: Collection[bytes]) -> set[bytes]:
        if not paths:
            return set()
        arguments = ("ls-tree", "-z", "--name-only", tree, "--")
        held = self.reader.records(*arguments, *sorted(paths), check=self.check)
        return set(held) & set(paths)

    def _remove(self, paths: Collection[bytes], *, spare_ignored: bool) -> None:
        """Remove paths; with ``spare_ignored`` not what git ignores by the rules that are back now.
        What is recorded though it is ignored is found and removed the next time."""
        ignored = self.surveyor.ignored_among(paths, self.check) if spare_ignored else set()
        for path in paths:
            if path not in ignored:
                self.writer.remove(path)

    def _check_out(self, paths: Collection[bytes]) -> None:
        if not paths:
            return
        for folder in sorted(ancestors(paths)):
            self.writer.open_up(folder)
        arguments = ("checkout-index", "--force", "--index", "--quiet", "-z", "--stdin")
        self.reader.run(*arguments, given=b"\0".join(sorted(paths)), check=self.check)


def _expect_possible(
    changes: Collection[Difference], present: Manifest, manifest: Manifest
) -> None:
    """Raise ``GitError`` for what cannot be put back, before anything is changed."""
    there = {(large.path, large.sha256) for large in present.large}
    lost = [large for large in manifest.large if (large.path, large.sha256) not in there]
    if lost:
        first = min(lost, key=lambda large: large.path)
        raise GitError(
            f"cannot restore {shown(first.path)}: a file of {first.size} bytes is over the limit for "
            "snapshots (largest_file), so only its digest was recorded, and it was changed or removed"
        )
    moved = [
        change.path for change in changes if change.mode_found == change.mode_wanted == SUBMODULE
    ]
    if moved:
        raise GitError(
            f"cannot restore {shown(min(moved))}: it is a submodule, which snapshots do not record, and "
            "it is at another commit now; check out its old commit by hand"
        )

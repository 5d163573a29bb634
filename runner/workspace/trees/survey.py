"""What has changed in a work tree since its index was written, and what git would not say of it."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.workspace.git import Check, Git, GitError, shown
from runner.workspace.identity import MARKER
from runner.workspace.trees.digests import Digests
from runner.workspace.trees.files import Sight
from runner.workspace.trees.manifest import MANIFEST, Large, Manifest, ancestors

_OTHERS = ("ls-files", "-z", "--others", "--exclude-standard")
_SUBMODULE = b"160000"
_EXECUTABLE = 0o100


@dataclass
class Survey:
    """``changed`` are paths whose content the index has yet to learn."""

    changed: set[bytes] = field(default_factory=set)
    directories: set[bytes] = field(default_factory=set)
    large: set[Large] = field(default_factory=set)
    unrecorded: set[bytes] = field(default_factory=set)

    def manifest(self, note: str) -> Manifest:
        """What the snapshot says beside its files."""
        return Manifest(
            frozenset(self.directories), frozenset(self.large), frozenset(self.unrecorded), note
        )


class Surveyor:
    """Surveys one work tree.

    Args:
        reader, writer: git with the work tree and its index; the first sees the source's objects.
        root: the work tree's folder.
        ignored: patterns of ignored files that are recorded all the same, as in gitignore, but
            without negation.
        largest: the most bytes of a file that is recorded whole.
    """

    def __init__(
        self,
        reader: Git,
        writer: Git,
        root: bytes,
        ignored: Sequence[str],
        largest: int,
        kept: Path,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._root = root
        self._ignored = [pathspec(pattern) for pattern in ignored]
        self._largest = largest
        self._digests = Digests(root, kept)

    def survey(self, check: Check) -> tuple[Survey, bool]:
        """Look at the whole work tree; what is gone or became something else leaves the index.

        Returns:
            What was found, and whether something left the index.
        """
        sight, found = Sight(self._root), Survey()
        first = self._reader.start("ls-files", "-z", "--modified")
        second = self._reader.start(*_OTHERS, "--directory")
        try:
            modified = split(first.result(check))
            others = split(second.result(check))
        finally:
            second.stop()
        gone = self._look_at_modified(modified, sight, found, check)
        if gone:
            given = b"\0".join(gone)
            self._writer.run(
                "update-index", "-z", "--force-remove", "--stdin", given=given, check=check
            )
            others = split(self._reader.run(*_OTHERS, "--directory", check=check))
        self._look_at_others(others, sight, found, check)
        if self._ignored:
            listed = self._reader.run(*_OTHERS, "--ignored", "--", *self._ignored, check=check)
            self._look_at_files(split(listed), sight, found, check)
        return found, bool(gone)

    def ignored_among(self, paths: Collection[bytes], check: Check) -> set[bytes]:
        """Those of the paths that git ignores now, whether they are in the index or not."""
        if not paths:
            return set()
        given = b"\0".join(paths)
        arguments = ("check-ignore", "-z", "--stdin", "--no-index")
        return set(split(self._reader.run(*arguments, given=given, check=check, accept=(0, 1))))

    def would_choose(self, path: bytes, check: Check) -> bool:
        """Whether the patterns for ignored files match one that is there."""
        if not self._ignored:
            return False
        listed = self._reader.run(*_OTHERS, "--ignored", "--", *self._ignored, check=check)
        return path in split(listed)

    def _look_at_modified(
        self, paths: Iterable[bytes], sight: Sight, found: Survey, check: Check
    ) -> list[bytes]:
        """Sort what the index knows and finds changed; what must leave the index is returned."""
        gone, folders = [], []
        for path in paths:
            if is_reserved(path):
                continue
            kind, status = sight.look(path)
            if kind == "folder":
                folders.append(path)
            elif kind == "blocked":  # it stays as it was recorded
                found.unrecorded.add(sight.blocked(path))
            elif kind == "link" or (
                status is not None and not self._is_too_large(path, status, check)
            ):
                found.changed.add(path)
            else:
                gone.append(path)
        submodules = self._submodules(folders, check)
        found.changed |= submodules
        return gone + [path for path in folders if path not in submodules]

    def _is_too_large(self, path: bytes, status: os.stat_result, check: Check) -> bool:
        """Whether a file is over the limit, and not what the index has of it already."""
        if status.st_size <= self._largest:
            return False
        listed = self._reader.run("ls-files", "-s", "-z", "--", literal(path), check=check)
        kept = listed.split(b" ")[1].decode()
        try:
            return kept != self._digests.blob(path, status.st_size, len(kept), check)
        except OSError as error:
            raise GitError(f"cannot read {shown(path)}: {error.strerror or error}") from error

    def _submodules(self, folders: Sequence[bytes], check: Check) -> set[bytes]:
        if not folders:
            return set()
        paths = [literal(path) for path in folders]
        listed = split(self._reader.run("ls-files", "-s", "-z", "--", *paths, check=check))
        return {line.partition(b"\t")[2] for line in listed if line.startswith(_SUBMODULE)} & set(
            folders
        )

    def _look_at_others(
        self, listed: Iterable[bytes], sight: Sight, found: Survey, check: Check
    ) -> None:
        """Sort what the index does not know and git does not ignore."""
        names = [path for path in listed if not is_reserved(path)]
        files = [path for path in names if not path.endswith(b"/")]
        folders = [path[:-1] for path in names if path.endswith(b"/")]
        filled = []
        for folder in folders:
            if sight.is_empty(folder):
                found.directories.add(folder)
            else:
                filled.append(folder)
        if filled:
            names = [
                path
                for path in split(self._reader.run(*_OTHERS, check=check))
                if not is_reserved(path)
            ]
            files = [path for path in names if not path.endswith(b"/")]
            nested = {path[:-1] for path in names if path.endswith(b"/")}
            found.unrecorded |= nested
            self._look_at_folders(filled, ancestors([*files, *nested]), nested, sight, found, check)
        self._look_at_files(files, sight, found, check)

    def _look_at_folders(
        self,
        folders: Sequence[bytes],
        held: Collection[bytes],
        nested: Collection[bytes],
        sight: Sight,
        found: Survey,
        check: Check,
    ) -> None:
        """Find the folders that hold nothing that is recorded; ``held`` are those that do."""
        waiting = [folder for folder in folders if folder not in nested]
        while waiting:
            below = {folder: sight.folders_in(folder) for folder in waiting}
            unsure = {
                inner
                for inners in below.values()
                if isinstance(inners, list)
                for inner in inners
                if inner not in held
            }
            left_out = self.ignored_among(unsure - set(nested), check) | set(nested)
            waiting = []
            for folder, inners in below.items():
                if not isinstance(inners, list):
                    if inners == "blocked":
                        found.unrecorded.add(folder)
                    continue
                seen = [inner for inner in inners if inner not in left_out]
                if not seen and folder not in held:
                    found.directories.add(folder)
                waiting += seen

    def _look_at_files(
        self, paths: Iterable[bytes], sight: Sight, found: Survey, check: Check
    ) -> None:
        for number, path in enumerate(paths):
            if number % 500 == 0:
                check()
            refused = _refused(path)
            if refused is not None:
                found.unrecorded.add(refused)
                continue
            kind, status = sight.look(path)
            if kind == "blocked":
                found.unrecorded.add(sight.blocked(path))
            elif status is not None and status.st_size > self._largest:
                self._add_large(path, status, found, check)
            elif kind in ("file", "link"):
                found.changed.add(path)

    def _add_large(self, path: bytes, status: os.stat_result, found: Survey, check: Check) -> None:
        try:
            size, sha256 = self._digests.sha256(path, check)
        except OSError as error:
            raise GitError(f"cannot read {shown(path)}: {error.strerror or error}") from error
        executable = bool(status.st_mode & _EXECUTABLE)
        found.large.add(Large(path, size, sha256, executable))


def settle(root: bytes, paths: Iterable[bytes], check: Check) -> None:
    """Wait until a change to one of the files would show.

    git takes a file for unchanged when its size and times (to the second) are the same, save that it
    looks again at files that are no older than its index (https://git-scm.com/docs/racy-git). A file
    that was given an older time within this second (``cp -p``, ``tar``, ``touch``) escapes that, as
    only its change time tells; so that second is waited for.
    """
    until = 0
    for path in paths:
        try:
            status = os.lstat(root + b"/" + path)
        except OSError:  # gone by now, or its folder is: git will say so
            continue
        if int(status.st_mtime) < int(status.st_ctime):
            until = max(until, int(status.st_ctime) + 1)
    began = time.monotonic()
    while time.time() < until and time.monotonic() < began + 1.0:
        check()
        time.sleep(0.02)


def is_reserved(path: bytes) -> bool:
    """Whether a path is one of Runner's own, in the root of the work tree."""
    top = path.partition(b"/")[0]
    return top == MANIFEST or top.startswith(MARKER.encode())


def literal(path: bytes) -> bytes:
    """A path as git takes it for nothing but that path."""
    return b":(top,literal)" + path


def pathspec(pattern: str) -> str:
    """A pattern in the manner of gitignore as one of git's for paths
    (https://git-scm.com/docs/gitglossary#Documentation/gitglossary.txt-aiddefpathspecapathspec)."""
    anchored = "/" in pattern.rstrip("/")
    bare = pattern.strip("/")
    return f":(top,glob){bare}" if anchored else f":(top,glob)**/{bare}"


def split(listed: bytes) -> list[bytes]:
    """The entries of a list that git ends with a zero byte each."""
    return listed.split(b"\0")[:-1]


def _refused(path: bytes) -> bytes | None:
    """The part of a path that git has in no index: a name of its own in other letters."""
    parts = path.split(b"/")
    for count, part in enumerate(parts, 1):
        if part.lower() == b".git":
            return b"/".join(parts[:count])
    return None

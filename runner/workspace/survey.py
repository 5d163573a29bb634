"""Finds what has changed in a work tree since its index was written, and what git does not report."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Collection, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runner.workspace.folders import MARKER, write_whole
from runner.workspace.git import Check, Git, GitError, shown, split
from runner.workspace.snapshot_store import MANIFEST, Large, Manifest, ancestors

Kind = Literal["file", "link", "folder", "nothing", "blocked", "other"]

SUBMODULE = b"160000"  # the mode of a submodule in trees and indexes

_KINDS: dict[int, Kind] = {stat.S_IFLNK: "link", stat.S_IFDIR: "folder"}
_OTHERS = ("ls-files", "-z", "--others", "--exclude-standard")
_CHECK_EVERY = 500  # files
_PIECE = 1 << 20
# Hardly any git takes longer than this, and a look for pipes costs as much as a short one.
_FIRST_LOOK_SECONDS = 1.0
# The part of a path that git refuses.
_REFUSED = re.compile(rb"(?:.*?/)??\.git(?=/|\Z)", re.IGNORECASE | re.DOTALL)
_RULES = frozenset({b".gitignore", b".gitattributes", b".gitmodules"})


class WorkTreeView:
    """The content of a work tree at one moment, without following links out of it, by paths in
    bytes."""

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._folders: dict[bytes, bool] = {b"": True}

    def look(self, path: bytes) -> tuple[Kind, os.stat_result | None]:
        """Return what is at a path, with its status if it is a file; "nothing" behind a link,
        "blocked" if it may not be read."""
        place = self._at(path)
        try:
            if not self._is_folder(path.rpartition(b"/")[0]):
                return "nothing", None
            status = os.lstat(place)
        except (FileNotFoundError, NotADirectoryError):
            return "nothing", None
        except PermissionError:
            return "blocked", None
        if not stat.S_ISREG(status.st_mode):
            return _KINDS.get(stat.S_IFMT(status.st_mode), "other"), None
        if os.access(place, os.R_OK):
            return "file", status
        return ("blocked" if os.path.lexists(place) else "nothing"), None

    def blocked_part(self, path: bytes) -> bytes:
        """Return the first part of a path that may not be read: a folder above it, or itself."""
        parts = path.split(b"/")
        for count in range(1, len(parts)):
            folder = b"/".join(parts[:count])
            if not os.access(self._at(folder), os.X_OK):
                return folder
        return path

    def folders_in(self, folder: bytes) -> list[bytes] | Literal["blocked", "nothing"]:
        """Return the folders right in a folder, except git's own, or why they cannot be listed."""
        if not os.access(self._at(folder), os.R_OK | os.X_OK) and os.path.lexists(self._at(folder)):
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
        """Return True if a folder is there, may be read and has no entry."""
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


@dataclass(slots=True)
class Digests:
    """SHA-256 of large files, remembered while a file's status stays the same."""

    root: bytes
    file: Path  # remembers them from one attempt to the next
    # How long a file must be unchanged: one changed again sooner may have the same times, as file
    # systems have coarse clocks.
    settled_seconds: float = 3.0
    _known: dict[str, list[object]] | None = field(default=None, init=False)

    def sha256(self, path: bytes, check: Check) -> tuple[int, str]:
        """Return a file's size and SHA-256. Raises ``OSError``, also for a link."""
        if self._known is None:
            self._known = {}
            with suppress(OSError, ValueError):  # what cannot be read is worked out again
                stored = json.loads(self.file.read_bytes())
                self._known = stored if isinstance(stored, dict) else {}
        name, place = path.decode("utf-8", "surrogateescape"), self.root + b"/" + path
        began = time.time()
        status = os.lstat(place)
        stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        match self._known.get(name):
            case [remembered, str(known)] if remembered == stamp:
                return status.st_size, known
        size, digest = 0, hashlib.sha256()
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                check()
                digest.update(piece)
                size += len(piece)
        if max(status.st_mtime, status.st_ctime) + self.settled_seconds < began:
            self._known[name] = [stamp, digest.hexdigest()]
            write_whole(self.file, json.dumps(self._known).encode("ascii"))
        return size, digest.hexdigest()


def unless_waiting(root: bytes, check: Check) -> Check:
    """Return a check that also raises ``GitError`` where git would wait for ever, reading a pipe
    that has the name of its rules. It searches after a second, and then more and more rarely."""
    began = time.monotonic()
    next_look = began + _FIRST_LOOK_SECONDS

    def check_both() -> None:
        nonlocal next_look
        check()
        if time.monotonic() < next_look:
            return
        for folder, _, names in os.walk(root):
            check()
            for name in _RULES.intersection(names):
                path, mode = folder + b"/" + name, stat.S_IFREG
                with suppress(OSError):  # gone by now
                    mode = os.lstat(path).st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):  # git follows no link there
                    raise GitError(
                        f"{shown(path.removeprefix(root + b'/'))} is not a file, and git would wait for it "
                        "for ever: remove it from the workspace"
                    )
        next_look = time.monotonic() + (time.monotonic() - began)

    return check_both


def settle(root: bytes, paths: Iterable[bytes], check: Check) -> None:
    """Wait until git would see another change to one of the files.

    git takes a file for unchanged when its size and times (to the second) are the same, save that it
    looks again at files that are no older than its index (https://git-scm.com/docs/racy-git). A file
    that was given an older time within this second (``cp -p``, ``tar``, ``touch``) escapes that, as
    only its change time tells; so that second is waited for.
    """
    until = 0
    for path in paths:
        with suppress(OSError):  # gone by now, or its folder is: git will say so
            status = os.lstat(root + b"/" + path)
            if int(status.st_mtime) < int(status.st_ctime):
                until = max(until, int(status.st_ctime) + 1)
    began = time.monotonic()
    while time.time() < until and time.monotonic() < began + 1.0:
        check()
        time.sleep(0.02)


@dataclass
class Survey:
    view: WorkTreeView
    check: Check
    changed: set[bytes] = field(default_factory=set)  # paths whose content the index must learn
    left: list[bytes] = field(default_factory=list)  # paths that have left the index
    directories: set[bytes] = field(default_factory=set)  # see Manifest for these three
    large: set[Large] = field(default_factory=set)
    unrecorded: set[bytes] = field(default_factory=set)

    def manifest(self, note: str) -> Manifest:
        """Return the manifest of a snapshot of the surveyed files."""
        return Manifest(
            frozenset(self.directories), frozenset(self.large), frozenset(self.unrecorded), note
        )


@dataclass(frozen=True, slots=True)
class Surveyor:
    reader: Git  # with the work tree and its index; it sees the source's objects
    writer: Git  # the same, which does not see them
    root: bytes
    ignored: Sequence[str]  # pathspecs of ignored files that are recorded all the same
    largest: int  # the most bytes of a file that is recorded whole
    digests: Digests  # of larger ones

    def survey(self, check: Check) -> Survey:
        """Look at the whole work tree; remove from the index what is gone or became another kind."""
        found = Survey(WorkTreeView(self.root), check)
        first = self.reader.start("ls-files", "-z", "--modified")
        second = self.reader.start(*_OTHERS, "--directory")
        try:
            modified = split(first.result(check))
            others = split(second.result(check))
        finally:
            second.stop()
        self._sort_modified(modified, found)
        if found.left:
            arguments = ("update-index", "-z", "--force-remove", "--stdin")
            self.writer.run(*arguments, given=b"\0".join(found.left), check=check)
            others = self.reader.records(*_OTHERS, "--directory", check=check)
        self._sort_others(others, found)
        self._sort_files(self.chosen(check), found)
        return found

    def ignored_among(self, paths: Collection[bytes], check: Check) -> set[bytes]:
        """Return the paths that git ignores now, whether they are in the index or not."""
        if not paths:
            return set()
        arguments = ("check-ignore", "-z", "--stdin", "--no-index")
        given = b"\0".join(paths)
        return set(split(self.reader.run(*arguments, given=given, check=check, accept=(0, 1))))

    def chosen(self, check: Check) -> list[bytes]:
        """Return the files that are ignored and match the patterns for ignored files."""
        if not self.ignored:
            return []
        return self.reader.records(*_OTHERS, "--ignored", "--", *self.ignored, check=check)

    def _sort_modified(self, paths: Iterable[bytes], found: Survey) -> None:
        folders = []
        for path in paths:
            if is_reserved(path):
                continue
            kind, status = found.view.look(path)
            if kind == "folder":
                folders.append(path)
            elif kind == "blocked":  # its recorded content stays
                found.unrecorded.add(found.view.blocked_part(path))
            elif kind == "link" or (status and not self._is_too_large(path, status, found.check)):
                found.changed.add(path)
            else:
                found.left.append(path)
        if folders:
            named = map(literal, folders)
            listed = self.reader.records("ls-files", "-s", "-z", "--", *named, check=found.check)
            submodules = {line.partition(b"\t")[2] for line in listed if line.startswith(SUBMODULE)}
            found.changed |= submodules.intersection(folders)
            found.left += [path for path in folders if path not in submodules]

    def _is_too_large(self, path: bytes, status: os.stat_result, check: Check) -> bool:
        """Return True if a file is over the limit, and is not what the index has of it already."""
        if status.st_size <= self.largest:
            return False
        listed = self.reader.run("ls-files", "-s", "-z", "--", literal(path), check=check)
        found = self.reader.run("hash-object", "--no-filters", "--", path, check=check)
        return listed.split(b" ")[1] != found.strip()

    def _sort_others(self, listed: Iterable[bytes], found: Survey) -> None:
        """Sort files that the index lacks and git does not ignore."""
        files, folders = _parted(listed)
        empty = {folder for folder in folders if found.view.is_empty(folder)}
        found.directories |= empty
        if filled := folders - empty:
            files, nested = _parted(self.reader.records(*_OTHERS, check=found.check))
            found.unrecorded |= nested
            self._sort_folders(filled - nested, ancestors([*files, *nested]), nested, found)
        self._sort_files(files, found)

    def _sort_folders(
        self, waiting: Iterable[bytes], held: Set[bytes], nested: Set[bytes], found: Survey
    ) -> None:
        """Find the folders that have no recorded file at any depth; ``held`` are those that have one."""
        while below := {folder: found.view.folders_in(folder) for folder in waiting}:
            inner = {
                each for inners in below.values() if isinstance(inners, list) for each in inners
            }
            left_out = self.ignored_among(inner - held - nested, found.check) | nested
            deeper: list[bytes] = []
            for folder, inners in below.items():
                if inners == "blocked":
                    found.unrecorded.add(folder)
                elif inners != "nothing":
                    seen = [each for each in inners if each not in left_out]
                    if not seen and folder not in held:
                        found.directories.add(folder)
                    deeper += seen
            waiting = deeper

    def _sort_files(self, paths: Iterable[bytes], found: Survey) -> None:
        for number, path in enumerate(paths):
            if number % _CHECK_EVERY == 0:
                found.check()
            if refused := _REFUSED.match(path):
                found.unrecorded.add(refused[0])
                continue
            kind, status = found.view.look(path)
            if kind == "blocked":
                found.unrecorded.add(found.view.blocked_part(path))
            elif status is not None and status.st_size > self.largest:
                try:
                    size, sha256 = self.digests.sha256(path, found.check)
                except OSError as error:
                    why = error.strerror or error
                    raise GitError(f"cannot read {shown(path)}: {why}") from error
                is_executable = bool(status.st_mode & stat.S_IXUSR)
                found.large.add(Large(path, size, sha256, is_executable))
            elif kind in ("file", "link"):
                found.changed.add(path)


def is_reserved(path: bytes) -> bool:
    """Return True if a path is one of Runner's own, in the root of the work tree."""
    top = path.partition(b"/")[0]
    return top == MANIFEST or top.startswith(MARKER.encode())


def pathspec(pattern: str) -> str:
    """Return a pattern of gitignore, without negation, as a pathspec
    (https://git-scm.com/docs/gitglossary#Documentation/gitglossary.txt-aiddefpathspecapathspec)."""
    anywhere = "" if "/" in pattern.rstrip("/") else "**/"
    return f":(top,glob){anywhere}{pattern.strip('/')}"


def literal(path: bytes) -> bytes:
    """Return a pathspec that matches nothing but that path."""
    return b":(top,literal)" + path


def _parted(listed: Iterable[bytes]) -> tuple[list[bytes], set[bytes]]:
    """Return the files and the folders of a list of git's, without Runner's own."""
    names = [path for path in listed if not is_reserved(path)]
    files = [path for path in names if not path.endswith(b"/")]
    return files, {path[:-1] for path in names if path.endswith(b"/")}

"""What has changed in a work tree since its index was written, and what git does not report."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runner.workspace.folders import MARKER
from runner.workspace.git import Check, Git, GitError, shown
from runner.workspace.snapshot_store import MANIFEST, Large, Manifest, ancestors

Kind = Literal["file", "link", "folder", "nothing", "blocked", "other"]


_ALL = os.R_OK | os.X_OK


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


# A file changed again this soon may have the same times: coarse clocks of file systems.
_SETTLED_SECONDS = 3.0


_PIECE = 1 << 20


Status = tuple[int, int, int, int]


class Digests:
    """SHA-256 of files under a root.

    Args:
        root: the work tree's folder.
        file: where they are remembered from one attempt to the next; what cannot be read in it is
            worked out again.
    """

    def __init__(self, root: bytes, file: Path) -> None:
        self._root = root
        self._file = file
        self._known: dict[str, tuple[Status, str]] | None = None

    def sha256(self, path: bytes, check: Check) -> tuple[int, str]:
        """The size in bytes and the SHA-256 of a file.

        Raises:
            OSError: it cannot be read, or is a link.
        """
        name = path.decode("utf-8", "surrogateescape")
        known = self._load()
        began = time.time()
        status = os.lstat(self._root + b"/" + path)
        remembered = known.get(name)
        if remembered is not None and remembered[0] == _status(status):
            return status.st_size, remembered[1]
        size, found = digest(self._root + b"/" + path, hashlib.sha256(), check)
        if max(status.st_mtime, status.st_ctime) + _SETTLED_SECONDS < began:
            known[name] = _status(status), found
            self._save(known)
        return size, found

    def blob(self, path: bytes, size: int, length: int, check: Check) -> str:
        """The id that git gives to a file of ``size`` bytes; ids are of ``length`` hexadecimal digits
        (https://git-scm.com/book/en/v2/Git-Internals-Git-Objects)."""
        begun = hashlib.sha1() if length == 40 else hashlib.sha256()
        begun.update(b"blob %d\0" % size)
        return digest(self._root + b"/" + path, begun, check)[1]

    def _load(self) -> dict[str, tuple[Status, str]]:
        if self._known is None:
            self._known = {}
            with suppress(OSError, ValueError, TypeError, AttributeError):
                stored = json.loads(self._file.read_bytes())
                self._known = {
                    name: ((status[0], status[1], status[2], status[3]), str(found))
                    for name, (status, found) in stored.items()
                }
        return self._known

    def _save(self, known: dict[str, tuple[Status, str]]) -> None:
        draft = self._file.with_name(f"{self._file.name}.{secrets.token_hex(8)}")
        draft.write_text(json.dumps(known), encoding="ascii")
        draft.replace(self._file)


def digest(path: bytes, begun: hashlib._Hash, check: Check) -> tuple[int, str]:
    """The size of a file and its digest, after what ``begun`` has seen."""
    size = 0
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            check()
            begun.update(piece)
            size += len(piece)
    return size, begun.hexdigest()


def _status(status: os.stat_result) -> Status:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


_FIRST_LOOK = 1.0  # seconds: hardly any git takes longer, and a look costs as much as a short one


_RULES = frozenset({b".gitignore", b".gitattributes", b".gitmodules"})


def unless_waiting(root: bytes, check: Check) -> Check:
    """A check that looks more and more rarely, from the first second on, for what git would wait for.

    Args:
        root: the work tree's folder. check: what is to be called each time as well.

    Returns:
        A function that raises ``GitError`` when git's rules are no file somewhere, and what ``check``
        raises.
    """
    began = time.monotonic()
    next_look = began + _FIRST_LOOK

    def look_too() -> None:
        nonlocal next_look
        check()
        if time.monotonic() < next_look:
            return
        for path in _no_files(root, check):
            raise GitError(
                f"{shown(path.removeprefix(root + b'/'))} is no file, and git would wait for it for "
                "ever: remove it from the workspace"
            )
        next_look = time.monotonic() + (time.monotonic() - began)

    return look_too


def _no_files(root: bytes, check: Check) -> Iterator[bytes]:
    """What is in the place of git's rules and can be read without an end, or not at all."""
    for folder, _, names in os.walk(root):
        check()
        for name in _RULES.intersection(names):
            path = folder + b"/" + name
            try:
                mode = os.lstat(path).st_mode
            except OSError:  # gone by now
                continue
            if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):  # git follows no link there
                yield path


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

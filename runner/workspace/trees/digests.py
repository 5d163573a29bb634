"""Digests of large files, remembered while the files' status stays the same."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

from runner.workspace.git import Check

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

"""What a snapshot says of what git's own trees cannot hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from runner.workspace.git import GitError

# Where it lies in a snapshot's tree; never in a work tree.
MANIFEST = b".runner-snapshot"
_VERSION = 1
_FORBIDDEN = frozenset({b"", b".", b"..", b".git"})


@dataclass(frozen=True, slots=True)
class Large:
    """A file that is too large to be kept: its size in bytes and its SHA-256."""

    path: bytes
    size: int
    sha256: str
    executable: bool


@dataclass(frozen=True, slots=True)
class Manifest:
    """Paths are relative to the work tree's root.

    ``directories`` are those without a recorded file in or below them; ``large`` are files over the
    limit; ``unrecorded`` are only known to be there: nested repositories, what cannot be read, and
    names that git refuses. ``note`` is what the caller had recorded with the tree.
    """

    directories: frozenset[bytes] = frozenset()
    large: frozenset[Large] = frozenset()
    unrecorded: frozenset[bytes] = frozenset()
    note: str = ""

    def to_bytes(self) -> bytes:
        """The content of the snapshot's file; empty when there is nothing to say. The same manifest
        gives the same bytes."""
        if self == Manifest():
            return b""
        data = {
            "version": _VERSION,
            "directories": _names(self.directories),
            "large": [
                {
                    "path": _name(large.path),
                    "size": large.size,
                    "sha256": large.sha256,
                    "executable": large.executable,
                }
                for large in sorted(self.large, key=lambda large: large.path)
            ],
            "unrecorded": _names(self.unrecorded),
            "note": self.note,
        }
        return json.dumps(data, indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """The manifest that ``to_bytes`` gave.

        Raises:
            GitError: it is none, or names a path outside the work tree.
        """
        if not content:
            return cls()
        try:
            data = json.loads(content)
            if data["version"] != _VERSION:
                raise GitError(
                    f"a snapshot was made by a newer Runner (its manifest is version "
                    f"{data['version']!r}): use that one"
                )
            return cls(
                frozenset(map(_path, data["directories"])),
                frozenset(map(_large, data["large"])),
                frozenset(map(_path, data["unrecorded"])),
                str(data["note"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise GitError(
                f"the {MANIFEST.decode()} of a tree is no snapshot's manifest ({error}): "
                "the tree was not recorded by Runner"
            ) from error

    def paths(self) -> Iterator[bytes]:
        """All that it names."""
        yield from self.directories
        yield from (large.path for large in self.large)
        yield from self.unrecorded


def ancestors(paths: Iterable[bytes]) -> set[bytes]:
    """The folders that the paths lie in, up to the root, which is not among them."""
    found: set[bytes] = set()
    for path in paths:
        folder = path.rpartition(b"/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition(b"/")[0]
    return found


def _names(paths: Iterable[bytes]) -> list[str]:
    return [_name(path) for path in sorted(paths)]


def _name(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _path(name: str) -> bytes:
    """A path from a manifest; the remote that it may come from is not trusted."""
    path = name.encode("utf-8", "surrogateescape")
    if b"\0" in path or not _FORBIDDEN.isdisjoint(path.split(b"/")):
        raise ValueError(f"the path {name!r}")
    return path


def _large(data: dict[str, Any]) -> Large:
    return Large(
        _path(data["path"]), int(data["size"]), str(data["sha256"]), bool(data["executable"])
    )

"""What a commit's files are that runs would not see as their users do."""

from __future__ import annotations

import os
import posixpath
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.core.files.repository import Accepted
from runner.workspace.git import Git
from runner.workspace.repository.reading import blobs, records, shown_path, some

_LINK, _MODULE = "120000", "160000"
_LONGEST_LINK = 4_096
_LONGEST_ATTRIBUTES = 1_000_000
_LONGEST_POINTER = 1_024  # https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md#the-pointer
_POINTER = b"version https://git-lfs.github.com/spec/"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a commit, a link or a submodule."""

    mode: str
    id: str
    path: str


def entries(git: Git, commit: str) -> list[Entry]:
    """The files of a commit, sorted by path.

    Args:
        git: that sees the commit's objects.
    """
    found = []
    for record in records(git, "ls-tree", "-r", "-z", "--full-tree", commit):
        head, _, path = record.partition(b"\t")
        mode, _, id_ = head.decode().split()
        found.append(Entry(mode, id_, os.fsdecode(path)))
    return sorted(found, key=lambda entry: entry.path)


def unseen(
    git: Git,
    commit: str,
    files: Sequence[Entry],
    *,
    ignores_case: bool,
    has_lfs: Callable[[], bool],
) -> list[tuple[Accepted, str]]:
    """What runs would not see as it is, and what to do about it.

    Args:
        git: with a folder of its own, whose index is read over.
        ignores_case: whether runs' files lie where ``README`` and ``readme`` are one file.
        has_lfs: whether Git LFS is set up here.
    """
    found: list[tuple[Accepted, str]] = []
    if modules := [entry.path for entry in files if entry.mode == _MODULE]:
        do = 'set setup = ["git submodule update --init"] and accept = ["submodules"]'
        found.append(
            ("submodules", f"has submodules ({some(modules)}), which runs see empty: {do}")
        )
    if links := _links_out(git, files):
        path, target = links[0]
        more = f" and {len(links) - 1:,} more" if len(links) > 1 else ""
        found.append(
            (
                "links",
                f"has links that lead out of it ({shown_path(path)} to {shown_path(target)}{more}), and "
                'what runs do there is neither theirs alone nor undone: set accept = ["links"] to bear it',
            )
        )
    if ignores_case and (pairs := clashes(entry.path for entry in files)):
        one, other = pairs[0]
        more = f" and {len(pairs) - 1:,} more" if len(pairs) > 1 else ""
        found.append(
            (
                "case",
                f"has names that are one here, where case doesn't count ({shown_path(one)} and "
                f'{shown_path(other)}{more}): set accept = ["case"] if runs can do with one of each',
            )
        )
    if (pointers := _lfs_pointers(git, commit, files)) and not has_lfs():
        found.append(
            (
                "lfs",
                f"has files in Git LFS ({some(pointers)}), which is not set up here: install git-lfs "
                'and run `git lfs install`, or set accept = ["lfs"] to have pointers in their place',
            )
        )
    return found


def clashes(paths: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of paths that are one where case doesn't count: two files, or a file and a folder."""
    known: dict[str, tuple[str, bool]] = {}
    found = []
    for path in paths:
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            name, is_file = "/".join(parts[:depth]), depth == len(parts)
            first, was_file = known.setdefault(_folded(name), (name, is_file))
            if first != name and (is_file or was_file):
                found.append((first, name))
    return found


def ignores_case(folder: Path) -> bool:
    """Whether ``README`` and ``readme`` are one file in a folder, or where it will be made."""
    here = folder.absolute()
    while True:
        other = here.with_name(here.name.swapcase())
        if other != here and here.exists():
            return other.exists() and here.samefile(other)
        if here == here.parent:
            return False
        here = here.parent


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _links_out(git: Git, files: Sequence[Entry]) -> list[tuple[str, str]]:
    """Links with where they lead, of those that lead out of the tree or by an absolute path."""
    links = [entry for entry in files if entry.mode == _LINK]
    targets = dict(blobs(git, [entry.id for entry in links], _LONGEST_LINK)) if links else {}
    found = []
    for entry in links:
        target = os.fsdecode(targets.get(entry.id, b""))
        led = posixpath.normpath(posixpath.join(posixpath.dirname(entry.path), target))
        if led == ".." or led.startswith(("../", "/")):
            found.append((entry.path, target))
    return found


def _lfs_pointers(git: Git, commit: str, files: Sequence[Entry]) -> list[str]:
    """The files that are to go through the filter of Git LFS and are pointers."""
    written = [entry.id for entry in files if posixpath.basename(entry.path) == ".gitattributes"]
    if not written:
        return []
    if not any(b"lfs" in text for _, text in blobs(git, written, _LONGEST_ATTRIBUTES)):
        return []
    git.run("read-tree", commit)
    asked = b"".join(os.fsencode(entry.path) + b"\0" for entry in files)
    answers = iter(records(git, "check-attr", "-z", "--stdin", "--cached", "filter", given=asked))
    filtered = {
        os.fsdecode(path)
        for path, _, value in zip(answers, answers, answers, strict=True)
        if value == b"lfs"
    }
    kept = {entry.path: entry.id for entry in files if entry.path in filtered}
    pointers = (
        {
            id_
            for id_, text in blobs(git, list(kept.values()), _LONGEST_POINTER)
            if text.startswith(_POINTER)
        }
        if kept
        else set()
    )
    return [path for path, id_ in kept.items() if id_ in pointers]

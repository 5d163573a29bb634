"""What is written into a store: objects that git leaves aside until they are on the disk, the commit of
a snapshot, and the ref that names it.

git would flush the disk in each of the processes that a snapshot takes. Here all is flushed at once,
like git's own ``core.fsyncMethod=batch``, and only then takes its place: the ref last. The form of
what is written: https://git-scm.com/book/en/v2/Git-Internals-Git-Objects and
https://git-scm.com/docs/gitrepository-layout.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import secrets
import shutil
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.workspace.git import Check, GitError

AUTHOR_NAME, AUTHOR_EMAIL = "Runner", "runner@localhost"


_LENGTH_SHA1 = 40


_FAST = 1


_OBJECT, _REF = 0o444, 0o666


# https://man7.org/linux/man-pages/man2/sync_file_range.2.html; other systems have none.
_SYNC_FILE_RANGE = getattr(ctypes.CDLL(None), "sync_file_range", None)


_BEGIN, _TO_THE_END = 2, 1 | 2 | 4


_UNFINISHED = "tmp_obj_"  # so git calls it, too, and removes it in time


@dataclass(frozen=True, slots=True)
class Draft:
    """A file that was written, and where it belongs once it is on the disk."""

    file: Path
    place: Path


class NewObjects:
    """The objects that git writes for one attempt, in a folder of their own until they are kept.

    Args:
        store: a git folder.
        folder: theirs, on the file system of the store.
    """

    def __init__(self, store: Path, folder: Path) -> None:
        self._store = store
        self._folder = folder

    @property
    def folder(self) -> Path:
        """Where they are until they are kept."""
        return self._folder

    def begin(self) -> None:
        """Have the folder, and nothing in it. Raises ``OSError``."""
        if is_left(self._folder):
            shutil.rmtree(self._folder)
        self._folder.mkdir(exist_ok=True)

    def keep(self, check: Check, *more: Draft) -> None:
        """Have them in the store, on the disk.

        Args:
            check: called now and then; what it raises leaves them where they are.
            more: what else takes its place then, in that order.

        Raises:
            GitError: they cannot be written.
        """
        try:
            put_in_place([*self._drafts(), *more], check)
            for folder in self._folder.iterdir():
                folder.rmdir()
        except OSError as error:
            raise _not_written(self._store, error) from error
        finally:
            for draft in more:
                draft.file.unlink(missing_ok=True)  # there only if it was cut off

    def _drafts(self) -> Iterator[Draft]:
        objects = self._store / "objects"
        for folder in self._folder.iterdir():
            for file in folder.iterdir():
                yield Draft(file, objects / folder.name / file.name)


def is_left(folder: Path) -> bool:
    """Whether objects were left in their folder: by a snapshot that is being taken, or was cut off.
    What an index says of files may not be in the store then. Raises ``OSError``."""
    return folder.is_dir() and any(folder.iterdir())


def draft_commit(store: Path, tree: str, parents: Sequence[str], message: str) -> tuple[str, Draft]:
    """Write a commit that is not in its place yet, by Runner and of now.

    Args:
        tree, parents: ids of objects; whether they are there is not looked at.

    Returns:
        The commit's id, and what takes its place.

    Raises:
        GitError: it cannot be written.
    """
    who = f"{AUTHOR_NAME} <{AUTHOR_EMAIL}> {int(time.time())} +0000"
    lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
    content = "\n".join([*lines, f"author {who}", f"committer {who}", "", message]).encode()
    whole = b"commit %d\0" % len(content) + content
    hashed = hashlib.sha1 if len(tree) == _LENGTH_SHA1 else hashlib.sha256
    commit = hashed(whole, usedforsecurity=False).hexdigest()
    objects = store / "objects"
    draft = Draft(
        objects / f"{_UNFINISHED}{secrets.token_hex(8)}", objects / commit[:2] / commit[2:]
    )
    _write(draft, zlib.compress(whole, _FAST), _OBJECT)
    return commit, draft


def draft_ref(store: Path, name: str, commit: str) -> Draft:
    """Write a ref, which nobody else writes, that is not in its place yet. ``name`` is the whole one,
    ``refs/…``. Raises ``GitError``."""
    place = store / name
    draft = Draft(place.with_name(f"{place.name}.lock"), place)
    _write(draft, f"{commit}\n".encode(), _REF)
    return draft


def _write(draft: Draft, content: bytes, mode: int) -> None:
    try:
        draft.file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(draft.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
        except OSError:
            draft.file.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _not_written(draft.place, error) from error


def put_in_place(drafts: Sequence[Draft], check: Check) -> None:
    """Have drafts on the disk and then in their places. All are on their way to the disk before the
    first is waited for, and the last one's flush is that of all. Raises ``OSError``."""
    begun = [_write_out(draft.file, _BEGIN, check) for draft in drafts]
    for draft, has_begun in zip(drafts[:-1], begun, strict=False):
        if not (has_begun and _write_out(draft.file, _TO_THE_END, check)):
            _flush(draft.file)
    if drafts:
        _flush(drafts[-1].file)
    for draft in drafts:
        draft.place.parent.mkdir(parents=True, exist_ok=True)
        draft.file.rename(draft.place)


def _write_out(file: Path, how: int, check: Check) -> bool:
    """Have a file's content written; False where that cannot be had without a flush."""
    check()
    if _SYNC_FILE_RANGE is None:
        return False
    whole = ctypes.c_int64(0)
    with _opened(file) as descriptor:
        return int(_SYNC_FILE_RANGE(descriptor, whole, whole, how)) == 0


def _flush(file: Path) -> None:
    with _opened(file) as descriptor:
        os.fsync(descriptor)


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _not_written(place: Path, error: OSError) -> GitError:
    return GitError(f"cannot write {place}: {error.strerror or error}")

"""Transcripts: the conversations of runs as session files of Claude Code, for the hooks that read them.

A file lies beside the run's long outputs, where the run's own commands may be able to change it. So
nothing is written through a link, and a file that is not as it was left is written anew.
"""

from __future__ import annotations

import os
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

from sqlalchemy import select

import runner
from runner.core.text import json_line
from runner.exchange.claude_code import Line, Session
from runner.exchange.recorded import Recorded
from runner.store import ids
from runner.store.database import Database
from runner.store.exports import load_recorded, load_since
from runner.store.tables import tool_calls

_MOST_KEPT = 256  # runs; the file of another is written anew


@dataclass(frozen=True, slots=True)
class _State:
    """The marks of a file that is as it was left."""

    device: int
    inode: int
    size: int
    changed_at: int  # nanoseconds, which nobody can set back


@dataclass(slots=True)
class _Written:
    recorded: Recorded  # without rows of messages
    session: Session
    state: _State


class Transcripts:
    """Writes the transcripts of runs, each time only what is new."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._written: OrderedDict[str, _Written] = OrderedDict()
        self._lock = Lock()  # of the dictionary: attempts work side by side

    def update(self, run_id: str, folder: Path) -> Path:
        """Bring the transcript of a run in its folder up to date, and return its path. Raises
        ``OSError`` if it cannot be written, and ``UnreachableError``."""
        path = folder / f"{run_id}.jsonl"
        with self._lock:
            written = self._written.pop(run_id, None)
        if written is None or not self._append(path, written):
            written = self._write(path, run_id)
        with self._lock:
            self._written[run_id] = written
            if len(self._written) > _MOST_KEPT:
                self._written.popitem(last=False)
        return path

    def hide_originals(self, run_id: str, folder: Path, calls: Iterable[str]) -> None:
        """Remove the files of long outputs whose results hooks have replaced, and of ``calls`` (ids); if
        there are such calls, the transcript, too: it is written anew before the next hook. Raises
        ``OSError`` and ``UnreachableError``."""
        replaced = select(tool_calls.c.turn, tool_calls.c.position).where(
            tool_calls.c.run_id == run_id, tool_calls.c.original.is_not(None)
        )
        found = {ids.call_id(run_id, *row) for row in self._database.rows(replaced)}
        names = {f"{each}.txt" for each in found.union(calls)}
        if not names or not folder.is_dir():
            return
        names.add(f"{run_id}.jsonl")
        for path in folder.iterdir():
            # ".NAME.xyz" is one that a killed worker had begun to write.
            if not names.isdisjoint((path.name, path.stem[1:])):
                path.unlink()

    def _write(self, path: Path, run_id: str) -> _Written:
        """Put a whole transcript in the place of whatever is there."""
        recorded = load_recorded(self._database, run_id)
        session = Session(recorded, runner.__version__, named=run_id)
        for each in (path.parent.parent, path.parent):  # not RUNNER_HOME: another would be empty
            each.mkdir(exist_ok=True)
        with _opened(path.parent) as folder:
            temporary = f".{path.name}.{secrets.token_hex(8)}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
            try:
                state = _put(descriptor, session.lines(recorded))
                os.rename(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(temporary, dir_fd=folder)
                raise
            # Its new name has changed it.
            state = replace(state, changed_at=os.stat(path.name, dir_fd=folder).st_ctime_ns)
        header = replace(recorded, blocks=(), calls={}, model_calls=(), compactions=())
        return _Written(header, session, state)

    def _append(self, path: Path, written: _Written) -> bool:
        """Append what is new; False if the file is not as it was left, and nothing was written."""
        new = load_since(self._database, written.recorded, written.session.last_message)
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with _opened(path.parent) as folder:
                descriptor = os.open(path.name, flags, dir_fd=folder)
        except OSError:
            return False
        if _state(descriptor) != written.state:
            os.close(descriptor)
            return False
        written.state = _put(descriptor, written.session.lines(new))
        return True


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _put(descriptor: int, lines: Iterable[Line]) -> _State:
    """Write lines to an open file, and close it."""
    with open(descriptor, "ab") as file:
        file.writelines(map(json_line, lines))
        file.flush()
        return _state(descriptor)


def _state(descriptor: int) -> _State:
    found = os.fstat(descriptor)
    return _State(found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)

"""The index of a SQLite database: a file of its own beside it, which can be removed at any time.

It shares no lock with the database. It says what of its database it holds, and by that to which one it
belongs: one of another database, of another version, or damaged, is made anew.

SQLite finds the files beside a database by its name: while one is being opened, its place is locked
against those who put another there (https://sqlite.org/howtocorrupt.html#_unlinking_or_renaming_a_database_file_while_in_use).
Whoever has one open goes on with it when nobody else sees it any more.
"""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from runner.errors import UnreachableError
from runner.store.database import BUSY_TIMEOUT_SECONDS, Database
from runner.store.search.index import Tell, Unusable

VERSION = 3

# "RnSe": no other program's file is taken for one of ours (https://sqlite.org/pragma.html).
_APPLICATION = 0x526E5365

# Words are gathered in so many bytes of memory before they are written: fewer parts to be merged.
_GATHERED_BYTES = 32 * 1024 * 1024

_SCHEMA = f"""
CREATE TABLE held (name TEXT PRIMARY KEY, last INTEGER NOT NULL, key TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE unended (
    name TEXT, run_id TEXT, number INTEGER, PRIMARY KEY (name, run_id, number)
) WITHOUT ROWID;
CREATE TABLE homes (number INTEGER PRIMARY KEY, job_id TEXT NOT NULL, run_id TEXT NOT NULL);
CREATE UNIQUE INDEX homes_by_id ON homes (run_id, job_id);
CREATE TABLE documents (
    id INTEGER PRIMARY KEY, home INTEGER NOT NULL, kind INTEGER NOT NULL, message INTEGER NOT NULL,
    position INTEGER NOT NULL, at REAL NOT NULL, length INTEGER NOT NULL
);
CREATE TABLE words (id INTEGER PRIMARY KEY, word TEXT NOT NULL UNIQUE);
CREATE VIRTUAL TABLE texts USING fts5(words, content='', columnsize=0, tokenize='ascii');
CREATE VIRTUAL TABLE parts
    USING fts5(word, content='', columnsize=0, detail=none, tokenize='trigram');
INSERT INTO texts (texts, rank) VALUES ('hashsize', {_GATHERED_BYTES});
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {VERSION};
"""

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)


def path_of(database: Database) -> Path:
    """Where the index of a SQLite database is."""
    path = Path(str(database.url.database))
    return path.with_name(path.name.removesuffix(".db") + ".search.db")


class IndexBusyError(UnreachableError):
    """Others write to the index for longer than one was to wait."""


class Identity(NamedTuple):
    """Which file is at a place: another one that is put there is not the same."""

    device: int
    number: int


def identity_of(path: Path) -> Identity | None:
    """Which index is at a place, None for none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return Identity(found.st_dev, found.st_ino)


@contextmanager
def opened(
    path: Path, tell: Tell, *, patience: float = BUSY_TIMEOUT_SECONDS
) -> Iterator[sqlite3.Connection]:
    """A connection to an index, made if there is none.

    Args:
        tell: is told in a line when there is an empty one in its place now, as it cannot be used.
        patience: how many seconds to wait for others that write to it.

    Raises:
        Unusable: it could not be used: it was of another version, damaged, or removed. Open it again.
        UnreachableError: it cannot be used now.
    """
    this: Identity | None = None
    try:
        with _raising_ours(path):
            if not path.exists():
                _make(path)
            with _place(path, fcntl.LOCK_SH):
                connection = sqlite3.connect(path, timeout=patience, isolation_level=None)
                this = identity_of(path)
                try:
                    _prepare(connection)
                except BaseException:
                    connection.close()
                    raise
            try:
                yield connection
            except sqlite3.OperationalError as error:
                if _is_trouble_of_files(error) and identity_of(path) != this:
                    raise Unusable("it was removed") from error
                raise
            finally:
                _close(path, connection)
    except Unusable as error:
        replace(path, this, str(error), tell)
        raise


@contextmanager
def _place(path: Path, how: int) -> Iterator[None]:
    """In the block, the place of an index is shared with those who open it, or one's own."""
    with path.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, how)
        yield


def _make(path: Path) -> None:
    with _place(path, fcntl.LOCK_EX):
        if not path.exists():
            _put_new(path)


def _put_new(path: Path) -> None:
    """Make an empty index aside, and put it in its place."""
    new = path.with_suffix(".new")
    for file in _files(new):
        file.unlink(missing_ok=True)
    new.touch(mode=0o600)  # it tells as much as the database
    connection = sqlite3.connect(new, isolation_level=None)
    try:
        for statement in ("PRAGMA journal_mode=WAL", *_SCHEMA.split(";")):
            connection.execute(statement)
    finally:
        connection.close()
    # What is beside the old one goes after it: beside an empty one it would count for nothing.
    for file in _files(path):
        file.unlink(missing_ok=True)
    new.replace(path)


def _files(path: Path) -> list[Path]:
    """An index, and what SQLite keeps beside it."""
    return [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]


def _close(path: Path, connection: sqlite3.Connection) -> None:
    try:
        with _place(path, fcntl.LOCK_SH):  # the last one removes what is beside it
            connection.close()
    except OSError:  # no other one can be put there either
        connection.close()


def _prepare(connection: sqlite3.Connection) -> None:
    for pragma in (
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "temp_store=MEMORY",
        "cache_size=-32000",
        "mmap_size=2147483648",
    ):
        connection.execute(f"PRAGMA {pragma}")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if (application, version) != (_APPLICATION, VERSION):
        raise Unusable("it is of another version of Runner")


@contextmanager
def _raising_ours(path: Path) -> Iterator[None]:
    """In the block, what SQLite or the file system raises of an index becomes an error of ours."""
    try:
        yield
    except MemoryError as error:  # lengths in a damaged file are anything
        raise Unusable("it is damaged") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in _DAMAGED or "no such " in str(error):
            raise Unusable("it is damaged") from error
        busy = code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        kind = IndexBusyError if busy else UnreachableError
        raise kind(f"the search index {path} cannot be used ({error})") from error
    except OSError as error:
        raise UnreachableError(
            f"the search index {path} cannot be used ({error.strerror}): it needs a place beside "
            "the database"
        ) from error


def replace(path: Path, bad: Identity | None, why: str, tell: Tell) -> None:
    """Put an empty index in the place of one that cannot be used, unless another one is there by now.

    Args:
        bad: the one that cannot be used.
        tell: is told about it in a line.
    """
    with _raising_ours(path), _place(path, fcntl.LOCK_EX):
        if bad is None or identity_of(path) != bad:
            return
        tell(f"the search index {path} is made anew: {why}")
        _put_new(path)


def _is_trouble_of_files(error: sqlite3.Error) -> bool:
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)

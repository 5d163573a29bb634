"""The file that a SQLite database's index is in. It may be removed at any time.

SQLite finds the files beside a database by its name. So opening an index and putting another in its
place exclude each other by a lock
(https://sqlite.org/howtocorrupt.html#_unlinking_or_renaming_a_database_file_while_in_use). A process
that has an index open goes on with it after it was replaced.
"""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from runner.errors import UnreachableError
from runner.queries.search.documents import Tell
from runner.queries.search.index import Unusable
from runner.store.database import BUSY_TIMEOUT_SECONDS, Database

VERSION = 4

# "RnSe" (https://sqlite.org/pragma.html#pragma_application_id)
_APPLICATION = 0x526E5365

# FTS5 gathers so many bytes in memory before it writes.
_GATHERED_BYTES = 32 * 1024 * 1024

_SCHEMA = f"""
CREATE TABLE held (last INTEGER NOT NULL, key TEXT NOT NULL);
CREATE TABLE search_runs (
    number INTEGER PRIMARY KEY, job_id TEXT NOT NULL, run_id TEXT NOT NULL, seen INTEGER NOT NULL,
    message INTEGER NOT NULL, positions TEXT NOT NULL, compactions INTEGER NOT NULL,
    verifications TEXT NOT NULL, UNIQUE (run_id, job_id)
);
CREATE TABLE documents (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL, kind INTEGER NOT NULL, message INTEGER NOT NULL,
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
_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=NORMAL",
    "temp_store=MEMORY",
    "cache_size=-32000",
    "mmap_size=2147483648",
)

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_FILE_TROUBLE = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


class IndexBusyError(UnreachableError):
    """Other processes write to the index for longer than was to be waited."""


class Identity(NamedTuple):
    """Tells the file at a path from others that are put there."""

    device: int
    number: int


def path_of(database: Database) -> Path:
    """Return where the index of a SQLite database is."""
    path = Path(str(database.url.database))
    return path.with_name(path.name.removesuffix(".db") + ".search.db")


def identity_of(path: Path) -> Identity | None:
    """Return which file is at a path, or None."""
    try:
        found = path.stat()
    except OSError:
        return None
    return Identity(found.st_dev, found.st_ino)


@contextmanager
def opened(
    path: Path, tell: Tell, *, patience: float = BUSY_TIMEOUT_SECONDS
) -> Iterator[sqlite3.Connection]:
    """Open an index, made first if there is none.

    Args:
        tell: receives a line if the index cannot be used and an empty one takes its place.
        patience: how many seconds to wait for others that write to it.

    Raises:
        Unusable: it was of another version, damaged, or removed. Open it again.
        UnreachableError: it cannot be used now.
    """
    this: Identity | None = None
    try:
        with _raising_ours(path):
            if not path.exists():
                replace(path, None, "there is none", lambda _line: None)
            with _lock(path, fcntl.LOCK_SH):
                connection = sqlite3.connect(path, timeout=patience, isolation_level=None, uri=True)
                this = identity_of(path)
                try:
                    _prepare(connection)
                except BaseException:
                    connection.close()
                    raise
            try:
                yield connection
            except sqlite3.OperationalError as error:
                if _code_of(error) in _FILE_TROUBLE and identity_of(path) != this:
                    raise Unusable("it was removed") from error
                raise
            finally:
                _close(path, connection)
    except Unusable as error:
        replace(path, this, str(error), tell)
        raise


def replace(path: Path, bad: Identity | None, why: str, tell: Tell) -> None:
    """Put an empty index in the place of one that cannot be used, unless another one is there by now.

    Args:
        bad: the one that cannot be used; None for no file at all.
        tell: receives a line about it if there was one.
    """
    with _raising_ours(path), _lock(path, fcntl.LOCK_EX):
        if identity_of(path) != bad:
            return
        if bad is not None:
            tell(f"the search index {path} is made anew: {why}")
        new = path.with_suffix(".new")
        for file in files_of(new):
            file.unlink(missing_ok=True)
        new.touch(mode=0o600)  # it tells as much as the database
        with closing(sqlite3.connect(new, isolation_level=None)) as connection:
            for statement in ("PRAGMA journal_mode=WAL", *_SCHEMA.split(";")):
                connection.execute(statement)
        # What is beside the old index goes after it: beside an empty one it would not count.
        for file in files_of(path):
            file.unlink(missing_ok=True)
        new.replace(path)


@contextmanager
def _lock(path: Path, how: int) -> Iterator[None]:
    with path.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, how)
        yield


def files_of(path: Path) -> list[Path]:
    """Return an index and the files that SQLite keeps beside it."""
    return [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]


def _prepare(connection: sqlite3.Connection) -> None:
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if (application, version) != (_APPLICATION, VERSION):
        raise Unusable("it is of another version of Runner")


def _close(path: Path, connection: sqlite3.Connection) -> None:
    try:
        with _lock(path, fcntl.LOCK_SH):  # the last connection removes the files beside the index
            connection.close()
    except OSError:  # then no other index can be put there either
        connection.close()


@contextmanager
def _raising_ours(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the file system into ours."""
    try:
        yield
    except MemoryError as error:  # a damaged file says any length
        raise Unusable("it is damaged") from error
    except sqlite3.Error as error:
        code = _code_of(error)
        if code in _DAMAGED or "no such " in str(error):
            raise Unusable("it is damaged") from error
        kind = IndexBusyError if code in _BUSY else UnreachableError
        raise kind(f"the search index {path} cannot be used ({error})") from error
    except OSError as error:
        raise UnreachableError(
            f"the search index {path} cannot be used ({error.strerror}): it needs a place beside "
            "the database"
        ) from error


def _code_of(error: sqlite3.Error) -> int:
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF

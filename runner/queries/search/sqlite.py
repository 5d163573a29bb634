"""The index of a SQLite database: an FTS5 file beside it, which may be removed at any time.

It shares no lock with the database. It notes which rows of the database it holds, and by that knows
its database. An index of another database, of another version, or damaged, is made again.

SQLite finds the files beside a database by its name. So opening an index and putting another in its
place exclude each other by a lock
(https://sqlite.org/howtocorrupt.html#_unlinking_or_renaming_a_database_file_while_in_use). A process
that has an index open goes on with it after it was replaced.
"""

from __future__ import annotations

import fcntl
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Integer, Table, Text, cast, func, literal_column, select

from runner.core.search import MARK, Term
from runner.errors import UnreachableError
from runner.queries.search.documents import (
    BLOCKS,
    COMPACTIONS,
    KINDS,
    SYSTEMS,
    VERIFICATIONS,
    Document,
    Origin,
    Place,
    Reader,
    Tell,
)
from runner.queries.search.index import (
    CHARACTERS_EACH,
    Entry,
    Match,
    Needs,
    Progress,
    Unusable,
    entry_of,
)
from runner.store.database import BUSY_TIMEOUT_SECONDS, Database
from runner.store.tables import blocks, compactions, jobs, verifications

VERSION = 4

# Documents that are indexed together; a follower takes so few that a worker's other threads go on.
_BATCH, _SMALL_BATCH = 1_000, 200

# "RnSe" (https://sqlite.org/pragma.html#pragma_application_id)
_APPLICATION = 0x526E5365

# FTS5 gathers so many bytes in memory before it writes.
_GATHERED_BYTES = 32 * 1024 * 1024

_SCHEMA = f"""
CREATE TABLE held (name TEXT PRIMARY KEY, last INTEGER NOT NULL, key TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE unfinished (
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

_SHORTEST_PART = 3
_MOST_KNOWN_WORDS = 500_000
_MOST_IN_ONE_OR = 32

_FIND = """
SELECT d.id, h.job_id, h.run_id, d.kind, d.message, d.position, d.at, d.length
FROM texts AS t CROSS JOIN documents AS d ON d.id = t.rowid CROSS JOIN homes AS h ON h.number = d.home
WHERE t.texts MATCH :needed AND t.rowid < :before
    AND (:since IS NULL OR d.at >= :since) AND (:until IS NULL OR d.at < :until)
ORDER BY t.rowid DESC LIMIT :most
"""
_WORDS_WITH = """
SELECT word FROM words WHERE id IN (SELECT rowid FROM parts WHERE parts MATCH :trigrams)
    AND instr(word, :part) AND (NOT :at_end OR substr(word, -:length) = :part) LIMIT :most
"""

# The columns of each table that never change.
_FIXED = {
    jobs: (jobs.c.id, jobs.c.created_at),
    blocks: (*blocks.primary_key.columns, blocks.c.created_at, cast(blocks.c.content, Text)),
    compactions: (*compactions.primary_key.columns, compactions.c.created_at),
    verifications: (*verifications.primary_key.columns, verifications.c.started_at),
}
_ORIGINS = (SYSTEMS, BLOCKS, COMPACTIONS, VERIFICATIONS)

T = TypeVar("T")


class SqliteIndex:
    """``Index`` of a SQLite database.

    Nothing is ever deleted from the tables with texts, and SQLite has one writer at a time. So their
    rows are numbered in the order of their commits (https://sqlite.org/rowidtable.html), and what the
    index lacks are rows with higher numbers than it holds, and rows that were unfinished.
    """

    def __init__(self, database: Database, tell: Tell, batch: int | None = None) -> None:
        self._database = database
        self._path = path_of(database)
        self._tell = tell
        self._batch = batch or _BATCH

    @contextmanager
    def up_to_date(self, progress: Progress) -> Iterator[SqliteLookup]:
        """See the port. The file that was brought up to date is asked, even if another process puts a
        new one in its place meanwhile."""
        with ExitStack() as kept:

            def open_and_catch_up() -> sqlite3.Connection:
                with ExitStack() as own:
                    connection = own.enter_context(opened(self._path, self._tell))
                    self._add_all(connection, progress)
                    kept.push(own.pop_all())
                return connection

            yield SqliteLookup(_again_if_unusable(open_and_catch_up))

    def follow(self) -> int:
        """See the port."""

        def add() -> int:
            with opened(self._path, self._tell, patience=0.0) as connection:
                most = min(self._batch, _SMALL_BATCH)
                return self._add_batch(connection, _Writer(connection), most).documents

        try:
            return _again_if_unusable(add)
        except IndexBusyError:
            return 0

    def renew(self, progress: Progress) -> int:
        """See the port."""
        replace(self._path, identity_of(self._path), "somebody asked for it", lambda _line: None)

        def add() -> int:
            with opened(self._path, self._tell) as connection:
                return self._add_all(connection, progress)

        return _again_if_unusable(add)

    def size(self) -> int:
        """See the port."""
        return sum(file.stat().st_size for file in _files(self._path) if file.exists())

    def _add_all(self, connection: sqlite3.Connection, progress: Progress) -> int:
        added = done = 0
        writer = _Writer(connection)
        while (batch := self._add_batch(connection, writer, self._batch)).rows:
            added, done = added + batch.documents, done + batch.rows
            progress(done, done + batch.left)
        return added

    def _add_batch(self, connection: sqlite3.Connection, writer: _Writer, most: int) -> _Added:
        """Add the next rows, at most so many of a table."""
        if not self._next_batch(connection, most=1).rows:
            return _Added(0, 0, 0)  # a search waits for nobody if nothing is missing
        with connection:
            connection.execute("BEGIN IMMEDIATE")  # no two processes add the same rows
            batch = self._next_batch(connection, most)
            now = time.time()
            writer.add([entry_of(each, now, self._tell) for each in batch.documents])
            _note(connection, batch)
        return _Added(batch.rows, len(batch.documents), batch.left)

    def _next_batch(self, connection: sqlite3.Connection, most: int) -> _Batch:
        held = {name: _Held(*row) for name, *row in connection.execute("SELECT * FROM held")}
        unfinished = set(connection.execute("SELECT name, run_id, number FROM unfinished"))
        return self._database.read(
            lambda source: _Batch(source, held, unfinished, most, self._tell)
        )


class _Added(NamedTuple):
    rows: int
    documents: int
    left: int  # blocks that are still to be indexed


class _Held(NamedTuple):
    """The last row of a table that the index holds."""

    number: int = 0
    key: str = ""  # a digest of the row


class _Batch:
    """The documents to be added next, and what the index holds after that.

    Args:
        source: the database. held: the last row of each table in the index.
        unfinished: table, run and number of the rows before these that were unfinished.
        most: rows of each table; fewer if their texts are long.

    Raises:
        Unusable: the index is of another database, or the database was put back from a copy.
    """

    def __init__(
        self,
        source: Connection,
        held: dict[str, _Held],
        unfinished: set[tuple[str, str, int]],
        most: int,
        tell: Tell,
    ) -> None:
        self.documents: list[Document] = []
        self.rows = 0
        self.held, self.unfinished = held, unfinished
        self._source, self._most = source, most
        self._room = most * CHARACTERS_EACH
        self._reader = Reader(source, tell)
        for origin in _ORIGINS:
            last = held.get(origin.table.name, _Held())
            if last.number and _key(source, origin.table, last.number) != last.key:
                raise Unusable("it is of another database")
            self._read_finished(origin)
            self._read_new(origin, last.number)
        newest = source.execute(select(func.max(_rowid(blocks))).select_from(blocks)).scalar() or 0
        self.left = newest - held.get(blocks.name, _Held()).number

    def _read_finished(self, origin: Origin) -> None:
        name = origin.table.name
        keys = [(run_id, number) for of, run_id, number in self.unfinished if of == name]
        for row in origin.rows(self._source, keys):
            if self._room > 0 and not origin.is_unfinished(row):
                self.unfinished.discard((name, row.run_id, row.number))
                self._add(origin, row)

    def _read_new(self, origin: Origin, last: int) -> None:
        table, rowid = origin.table, _rowid(origin.table)
        query = origin.query.add_columns(rowid.label("row_number")).where(rowid > last)
        number = last
        with closing(self._source.execute(query.order_by(rowid).limit(self._most))) as rows:
            for row in rows:
                number = row.row_number
                if origin.is_unfinished(row):
                    self.rows += 1
                    self.unfinished.add((table.name, row.run_id, row.number))
                else:
                    self._add(origin, row)
                if self._room <= 0:
                    break
        if number > last:
            self.held[table.name] = _Held(number, _key(self._source, table, number))

    def _add(self, origin: Origin, row: Any) -> None:
        self.rows += 1
        for document in origin.documents(self._reader, row):
            self.documents.append(document)
            self._room -= len(document.text or "")


def _rowid(table: Table) -> Any:
    return literal_column(f"{table.name}.rowid", Integer)


def _key(source: Connection, table: Table, number: int) -> str:
    row = source.execute(select(*_FIXED[table]).where(_rowid(table) == number)).first()
    return blake2b(repr(row).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _note(connection: sqlite3.Connection, batch: _Batch) -> None:
    rows = [(name, held.number, held.key) for name, held in batch.held.items()]
    connection.executemany("INSERT OR REPLACE INTO held VALUES (?, ?, ?)", rows)
    connection.execute("DELETE FROM unfinished")
    connection.executemany("INSERT INTO unfinished VALUES (?, ?, ?)", sorted(batch.unfinished))


class _Writer:
    """Adds to an index, in transactions of its caller. Of no use after one that failed."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._known: set[str] = set()  # words that are in the vocabulary

    def add(self, entries: Sequence[Entry]) -> None:
        """Add documents, after those that are there."""
        connection = self._connection
        (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM documents").fetchone()
        homes = self._homes((entry.place.run_id, entry.place.job_id) for entry in entries)
        numbered = list(enumerate(entries, last + 1))
        connection.executemany(
            "INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    number,
                    homes[place.run_id, place.job_id],
                    KINDS.index(place.kind),
                    place.message,
                    place.position,
                    at,
                    len(words),
                )
                for number, (place, at, _, words) in numbered
            ],
        )
        connection.executemany(
            "INSERT INTO texts (rowid, words) VALUES (?, ?)",
            [(number, " ".join((*each.facets, *each.words))) for number, each in numbered],
        )
        self._add_words(entries)

    def _homes(self, ids: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """Return the numbers of runs (and of jobs, for their own texts)."""
        rows = sorted(set(ids))
        insert = "INSERT OR IGNORE INTO homes (run_id, job_id) VALUES (?, ?)"
        self._connection.executemany(insert, rows)
        query = "SELECT number FROM homes WHERE run_id = ? AND job_id = ?"
        return {row: self._connection.execute(query, row).fetchone()[0] for row in rows}

    def _add_words(self, entries: Iterable[Entry]) -> None:
        if len(self._known) > _MOST_KNOWN_WORDS:
            self._known.clear()
        found = {word for entry in entries for word in entry.words if len(word) >= _SHORTEST_PART}
        new = [(word,) for word in sorted(found - self._known)]
        query = "SELECT coalesce(max(id), 0) FROM words"
        (last,) = self._connection.execute(query).fetchone()
        self._connection.executemany("INSERT OR IGNORE INTO words (word) VALUES (?)", new)
        insert = "INSERT INTO parts (rowid, word) SELECT id, word FROM words WHERE id > ?"
        self._connection.execute(insert, (last,))
        self._known |= found


class SqliteLookup:
    """``Lookup`` in the file."""

    knows_phrases = True

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def words_with(self, part: str, most: int, *, at_end: bool = False) -> list[str]:
        """See the port."""
        trigrams = sorted({part[at : at + 3] for at in range(len(part) - 2)})
        values = {
            "trigrams": " AND ".join(f'"{trigram}"' for trigram in trigrams),
            "part": part,
            "at_end": at_end,
            "length": len(part),
            "most": most + 1,
        }
        return [word for (word,) in self._connection.execute(_WORDS_WITH, values)]

    def find(self, needs: Needs, most: int, before: int | None = None) -> list[Match]:
        """See the port."""
        groups = (*((term,) for term in needs.terms), *needs.groups)
        needed = " AND ".join(_any([_phrase(term) for term in group]) for group in groups)
        unwanted = "".join(f" NOT {_phrase(term)}" for term in needs.without)
        values = {
            "needed": f"({needed}){unwanted}",
            "before": before or 2**62,
            "since": needs.since,
            "until": needs.until,
            "most": most,
        }
        return [
            Match(number, Place(KINDS[kind], job_id, run_id, message, position), at, length)
            for number, job_id, run_id, kind, message, position, at, length in (
                self._connection.execute(_FIND, values)
            )
        ]


def _phrase(term: Term) -> str:
    """See https://sqlite.org/fts5.html#full_text_query_syntax"""
    return f'"{" ".join(term.words)}"{" *" if term.is_prefix else ""}'


def _any(phrases: Sequence[str]) -> str:
    """Return what finds one of some phrases. For each match FTS5 visits every phrase of an OR, and joins
    nested ORs to one unless something is between them: here a word that no text has."""
    if len(phrases) <= _MOST_IN_ONE_OR:
        return f"({' OR '.join(phrases)})"
    starts = range(0, len(phrases), _MOST_IN_ONE_OR)
    parts = (phrases[start : start + _MOST_IN_ONE_OR] for start in starts)
    return f"({' OR '.join(f'({_any(part)} NOT {MARK})' for part in parts)})"


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
        for file in _files(new):
            file.unlink(missing_ok=True)
        new.touch(mode=0o600)  # it tells as much as the database
        with closing(sqlite3.connect(new, isolation_level=None)) as connection:
            for statement in ("PRAGMA journal_mode=WAL", *_SCHEMA.split(";")):
                connection.execute(statement)
        # What is beside the old index goes after it: beside an empty one it would not count.
        for file in _files(path):
            file.unlink(missing_ok=True)
        new.replace(path)


@contextmanager
def _lock(path: Path, how: int) -> Iterator[None]:
    with path.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, how)
        yield


def _files(path: Path) -> list[Path]:
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


def _again_if_unusable(work: Callable[[], T]) -> T:
    try:
        return work()
    except Unusable:  # another one is in its place now
        return work()

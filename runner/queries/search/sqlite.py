"""The index of a SQLite database: FTS5 in a file beside it, which may be removed at any time.

It shares no lock with the database, which is attached to be read. It notes the last block that it
holds, and by that knows its database: an index of another one is made again.

SQLite finds the files beside a database by its name. So opening an index and putting another in its
place exclude each other by a lock
(https://sqlite.org/howtocorrupt.html#_unlinking_or_renaming_a_database_file_while_in_use). A process
that has an index open goes on with it after it was replaced.
"""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Integer, Text, cast, literal_column, select

from runner.core.search import MARK, SHORTEST_PART, Term
from runner.errors import UnreachableError
from runner.queries.search.documents import KINDS, Place, Tell
from runner.queries.search.index import (
    GONE,
    NOTE,
    Additions,
    Entry,
    Match,
    Needs,
    Progress,
    Unusable,
    add_all,
    again_if_unusable,
    is_up_to_date,
)
from runner.store.database import BUSY_TIMEOUT_SECONDS, Database, in_lots
from runner.store.tables import blocks, jobs

# Documents that are indexed together; a follower takes so few that a worker's other threads go on.
_BATCH, _SMALL_BATCH = 1_000, 200

_MOST_KNOWN_WORDS = 500_000
_MOST_IN_ONE_OR = 32

_FIND = """
SELECT d.id, d.kind, r.job_id, r.run_id, d.message, d.position, d.at, d.length
FROM texts AS t CROSS JOIN documents AS d ON d.id = t.rowid
    CROSS JOIN search_runs AS r ON r.number = d.run
WHERE t.texts MATCH :needed AND t.rowid < :before
    AND (:since IS NULL OR d.at >= :since) AND (:until IS NULL OR d.at < :until)
ORDER BY t.rowid DESC LIMIT :most
"""
_WORDS_WITH = """
SELECT word FROM words WHERE id IN (SELECT rowid FROM parts WHERE parts MATCH :trigrams)
    AND instr(word, :part) AND (NOT :at_end OR substr(word, -:length) = :part) LIMIT :most
"""
_ROWID: Any = literal_column("blocks.rowid", Integer)
_OLDEST_JOB = select(jobs.c.id, jobs.c.created_at).order_by(literal_column("jobs.rowid")).limit(1)
# A hook may still replace a result of a tool.
_LAST = select(_ROWID).where(blocks.c.type != "tool_result").order_by(_ROWID.desc()).limit(1)
_BLOCK = select(*blocks.primary_key.columns, blocks.c.created_at, cast(blocks.c.content, Text))

VERSION = 4

# "RnSe" (https://sqlite.org/pragma.html#pragma_application_id)
_APPLICATION = 0x526E5365

# The bytes that FTS5 gathers in memory before it writes.
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
    *("journal_mode=WAL", "synchronous=NORMAL", "temp_store=MEMORY", "cache_size=-32000"),
    "mmap_size=2147483648",
)

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_FILE_TROUBLE = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


class SqliteIndex:
    """The index of a SQLite database, with the methods of ``postgres.PostgresIndex``. They also raise
    ``UnreachableError`` if the file cannot be used."""

    def __init__(self, database: Database, tell: Tell, batch: int | None = None) -> None:
        self._database = database
        self._path = path_of(database)
        self._tell = tell
        self._batch = batch or _BATCH

    @contextmanager
    def up_to_date(self, progress: Progress) -> Iterator[SqliteLookup]:
        # The file that was brought up to date is asked, even if another process puts a new one in its
        # place meanwhile.
        with ExitStack() as kept:

            def open_and_catch_up() -> sqlite3.Connection:
                with ExitStack() as own:
                    writer = own.enter_context(self._opened())
                    add_all(partial(writer.add, self._batch), progress)
                    kept.push(own.pop_all())
                return writer.connection

            yield SqliteLookup(again_if_unusable(open_and_catch_up))

    def follow(self) -> int:
        def add() -> int:
            with self._opened(patience=0.0) as writer:
                return writer.add(min(self._batch, _SMALL_BATCH))

        try:
            return again_if_unusable(add)
        except IndexBusyError:
            return 0

    def renew(self, progress: Progress) -> int:
        replace(self._path, identity_of(self._path), "somebody asked for it", lambda _line: None)

        def add() -> int:
            with self._opened() as writer:
                return add_all(partial(writer.add, self._batch), progress)

        return again_if_unusable(add)

    def drop_gone(self) -> None:
        """The index is made again later if it holds anything of them: its texts cannot be deleted."""
        identity = identity_of(self._path)
        if identity is None:
            return
        with suppress(Unusable), self._opened() as writer:
            if writer.connection.execute(GONE).fetchone() is None:
                return
        replace(self._path, identity, "jobs were pruned", lambda _line: None)

    def size(self) -> int:
        return sum(file.stat().st_size for file in files_of(self._path) if file.exists())

    @contextmanager
    def _opened(self, patience: float = BUSY_TIMEOUT_SECONDS) -> Iterator[_Writer]:
        with opened(self._path, self._tell, patience=patience) as connection:
            # Only to be read: a transaction of the index takes no lock there.
            record = f"file:{quote(str(self._database.url.database))}?mode=ro"
            connection.execute("ATTACH DATABASE ? AS record", (record,))
            yield _Writer(connection, self._database, self._tell)


class _Writer:
    """Adds to an open index. Of no use after an addition that failed."""

    def __init__(self, connection: sqlite3.Connection, database: Database, tell: Tell) -> None:
        self.connection = connection
        self._database = database
        self._tell = tell
        self._known: set[str] = set()  # words that are in the vocabulary

    def add(self, most: int, progress: Progress | None = None) -> int:
        """Add what comes next, and return how many documents that were."""
        connection = self.connection

        def ask(sql: str, values: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
            return connection.execute(sql, values).fetchall()

        held = connection.execute("SELECT last, key FROM held").fetchone()
        with self._database.reading() as source:
            if held is not None and _key(source, held[0]) != held[1]:
                raise Unusable("it is of another database")
        if is_up_to_date(ask):
            return 0  # a search waits for nobody if nothing is missing
        with connection:
            connection.execute("BEGIN IMMEDIATE")  # no two processes add the same
            with self._database.reading() as source:
                additions = Additions(ask, source, most, self._tell, progress)
                entries = list(additions.entries())
                self._store(entries, additions)
                last = source.execute(_LAST).scalar() or 0
                connection.execute("DELETE FROM held")
                connection.execute("INSERT INTO held VALUES (?, ?)", (last, _key(source, last)))
        return len(entries)

    def _store(self, entries: Sequence[tuple[int, Entry]], additions: Additions) -> None:
        """Store documents of runs after the existing ones, and note what the index holds now."""
        connection = self.connection
        (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM documents").fetchone()
        numbered = [(number, *each) for number, each in enumerate(entries, last + 1)]
        connection.executemany(
            "INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (number, run, KINDS.index(place.kind), *place[-2:], at, len(words))
                for number, run, (place, at, _, words) in numbered
            ],
        )
        connection.executemany(
            "INSERT INTO texts (rowid, words) VALUES (?, ?)",
            [(number, " ".join((*each.facets, *each.words))) for number, _, each in numbered],
        )
        forgotten = [(run, last) for run in additions.forgotten]
        connection.executemany("DELETE FROM documents WHERE run = ? AND id <= ?", forgotten)
        connection.executemany(NOTE, additions.notes())

        if len(self._known) > _MOST_KNOWN_WORDS:
            self._known.clear()
        found = {word for _, entry in entries for word in entry.words} - self._known
        new = sorted(word for word in found if len(word) >= SHORTEST_PART)
        (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM words").fetchone()
        insert = "INSERT OR IGNORE INTO words (word) VALUES (?)"
        connection.executemany(insert, [(word,) for word in new])
        insert = "INSERT INTO parts (rowid, word) SELECT id, word FROM words WHERE id > ?"
        connection.execute(insert, (last,))
        self._known.update(new)


def _key(source: Connection, last: int) -> str:
    """Return a key that tells a database from others and from diverged copies: a digest of its
    oldest job and of a block. SQLite numbers rows in the order of their commits."""
    found = [source.execute(query).first() for query in (_OLDEST_JOB, _BLOCK.where(last == _ROWID))]
    return blake2b(repr(found).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class SqliteLookup:
    """A lookup with the methods of ``postgres.PostgresLookup``."""

    knows_phrases = True

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def words_with(self, part: str, most: int, *, at_end: bool = False) -> list[str]:
        trigrams = sorted({part[at : at + 3] for at in range(len(part) - 2)})
        needed = " AND ".join(f'"{trigram}"' for trigram in trigrams)
        bounds = {"at_end": at_end, "length": len(part), "most": most + 1}
        values = {"trigrams": needed, "part": part, **bounds}
        return [word for (word,) in self._connection.execute(_WORDS_WITH, values)]

    def find(self, needs: Needs, most: int, before: int | None = None) -> list[Match]:
        groups = (*((term,) for term in needs.terms), *needs.groups)
        needed = " AND ".join(_any([_phrase(term) for term in group]) for group in groups)
        unwanted = "".join(f" NOT {_phrase(term)}" for term in needs.without)
        period = {"since": needs.since, "until": needs.until}
        values = {
            "needed": f"({needed}){unwanted}",
            "before": before or 2**62,
            "most": most,
            **period,
        }
        return [
            Match(number, Place(KINDS[kind], *place), at, length)
            for number, kind, *place, at, length in self._connection.execute(_FIND, values)
        ]


def _phrase(term: Term) -> str:  # https://sqlite.org/fts5.html#full_text_query_syntax
    return f'"{" ".join(term.words)}"{" *" if term.is_prefix else ""}'


def _any(phrases: Sequence[str]) -> str:
    """Return what finds one of some phrases. For each match FTS5 visits every phrase of an OR, and joins
    nested ORs to one unless something is between them: here a word that no text has."""
    if len(phrases) <= _MOST_IN_ONE_OR:
        return f"({' OR '.join(phrases)})"
    parts = in_lots(phrases, _MOST_IN_ONE_OR)
    return f"({' OR '.join(f'({_any(part)} NOT {MARK})' for part in parts)})"


# --- The file


class IndexBusyError(UnreachableError):
    """Other processes write to the index for longer than was to be waited."""


# Tells the file at a path from others that are put there: its device and its number.
Identity = tuple[int, int]


def path_of(database: Database) -> Path:
    """Return where the index of a SQLite database is."""
    path = Path(str(database.url.database))
    return path.with_name(path.name.removesuffix(".db") + ".search.db")


def identity_of(path: Path) -> Identity | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def opened(
    path: Path, tell: Tell, *, patience: float = BUSY_TIMEOUT_SECONDS
) -> Iterator[sqlite3.Connection]:
    """Open an index, made first if there is none. Waits ``patience`` seconds for others that write to it.
    Raises ``UnreachableError`` if it cannot be used now, and ``Unusable`` if it was of another version,
    damaged, or removed: ``tell`` receives a line, an empty one takes its place, open it again."""
    this: Identity | None = None
    try:
        with _raising_ours(path):
            if not path.exists():
                replace(path, None, "there is none", lambda _line: None)
            with _lock(path, fcntl.LOCK_SH):
                connection = sqlite3.connect(path, timeout=patience, isolation_level=None, uri=True)
                this = identity_of(path)
                try:
                    for pragma in _PRAGMAS:
                        connection.execute(f"PRAGMA {pragma}")
                    is_of = [
                        connection.execute(f"PRAGMA {name}").fetchone()[0]
                        for name in ("application_id", "user_version")
                    ]
                    if is_of != [_APPLICATION, VERSION]:
                        raise Unusable("it is of another version of Runner")
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
    """Put an empty index in the place of one that cannot be used (``bad``; None for no file at all), unless
    another one is there by now. ``tell`` receives a line if there was one."""
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


def _close(path: Path, connection: sqlite3.Connection) -> None:
    try:
        with _lock(path, fcntl.LOCK_SH):  # the last connection removes the files beside the index
            connection.close()
    except OSError:  # then no other index can be put there either
        connection.close()


@contextmanager
def _raising_ours(path: Path) -> Iterator[None]:
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

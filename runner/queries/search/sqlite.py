"""The index of a SQLite database: FTS5 in a file beside it.

It shares no lock with the database, which is attached to be read. It notes the last block that it
holds, and by that knows its database: an index of another one is made again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Integer, Text, cast, func, literal_column, select

from runner.core.search import MARK, SHORTEST_PART, Term
from runner.queries.search.documents import KINDS, Place, Tell
from runner.queries.search.index import Entry, Match, Needs, Progress, Unusable
from runner.queries.search.news import NOTE, News, add_all, is_up_to_date
from runner.queries.search.sqlite_file import (
    IndexBusyError,
    files_of,
    identity_of,
    opened,
    path_of,
    replace,
)
from runner.store.database import BUSY_TIMEOUT_SECONDS, Database
from runner.store.tables import blocks, jobs

# Documents that are indexed together; a follower takes so few that a worker's other threads go on.
_BATCH, _SMALL_BATCH = 1_000, 200

_MOST_KNOWN_WORDS = 500_000
_MOST_IN_ONE_OR = 32

_FIND = """
SELECT d.id, r.job_id, r.run_id, d.kind, d.message, d.position, d.at, d.length
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
_BLOCK = select(*blocks.primary_key.columns, blocks.c.created_at, cast(blocks.c.content, Text))

T = TypeVar("T")


class SqliteIndex:
    """``Index`` of a SQLite database."""

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
                    connection = own.enter_context(self._opened())
                    self._add_all(connection, progress)
                    kept.push(own.pop_all())
                return connection

            yield SqliteLookup(_again_if_unusable(open_and_catch_up))

    def follow(self) -> int:
        """See the port."""

        def add() -> int:
            with self._opened(patience=0.0) as connection:
                most = min(self._batch, _SMALL_BATCH)
                return self._add_batch(_Writer(connection), most)

        try:
            return _again_if_unusable(add)
        except IndexBusyError:
            return 0

    def renew(self, progress: Progress) -> int:
        """See the port."""
        replace(self._path, identity_of(self._path), "somebody asked for it", lambda _line: None)

        def add() -> int:
            with self._opened() as connection:
                return self._add_all(connection, progress)

        return _again_if_unusable(add)

    def size(self) -> int:
        """See the port."""
        return sum(file.stat().st_size for file in files_of(self._path) if file.exists())

    @contextmanager
    def _opened(self, patience: float = BUSY_TIMEOUT_SECONDS) -> Iterator[sqlite3.Connection]:
        with opened(self._path, self._tell, patience=patience) as connection:
            # Only to be read: a transaction of the index takes no lock there.
            record = f"file:{quote(str(self._database.url.database))}?mode=ro"
            connection.execute("ATTACH DATABASE ? AS record", (record,))
            yield connection

    def _add_all(self, connection: sqlite3.Connection, progress: Progress) -> int:
        add = partial(self._add_batch, _Writer(connection), self._batch)
        return add_all(add, progress)

    def _add_batch(self, writer: _Writer, most: int, progress: Progress | None = None) -> int:
        """Add what comes next, and return how many documents that were."""
        connection = writer.connection
        ask = partial(_ask, connection)
        self._database.read(lambda source: _refuse_another(connection, source))
        if is_up_to_date(ask):
            return 0  # a search waits for nobody if nothing is missing
        with connection:
            connection.execute("BEGIN IMMEDIATE")  # no two processes add the same
            with self._database.reading() as source:
                news = News(ask, source, most, self._tell, progress)
                entries = list(news.entries())
                writer.add(entries, news)
                _hold(connection, source)
        return len(entries)


def _ask(
    connection: sqlite3.Connection, sql: str, values: Mapping[str, Any]
) -> Sequence[tuple[Any, ...]]:
    return connection.execute(sql, values).fetchall()


def _refuse_another(connection: sqlite3.Connection, source: Connection) -> None:
    held = connection.execute("SELECT last, key FROM held").fetchone()
    if held is not None and _key(source, held[0]) != held[1]:
        raise Unusable("it is of another database")


def _hold(connection: sqlite3.Connection, source: Connection) -> None:
    last = source.execute(select(func.max(_ROWID)).select_from(blocks)).scalar() or 0
    connection.execute("DELETE FROM held")
    connection.execute("INSERT INTO held VALUES (?, ?)", (last, _key(source, last)))


def _key(source: Connection, last: int) -> str:
    """Return what tells a database, as it is now, from others and from copies that went on otherwise: a
    digest of its oldest job and of a block. SQLite numbers rows in the order of their commits."""
    found = [source.execute(query).first() for query in (_OLDEST_JOB, _BLOCK.where(last == _ROWID))]
    return blake2b(repr(found).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class _Writer:
    """Adds to an index, in transactions of its caller. Of no use after one that failed."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._known: set[str] = set()  # words that are in the vocabulary

    def add(self, entries: Sequence[tuple[int, Entry]], news: News) -> None:
        """Add documents of runs, after those that are there, and note what the index holds now."""
        connection = self.connection
        (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM documents").fetchone()
        connection.executemany(
            "INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    number,
                    run,
                    KINDS.index(place.kind),
                    place.message,
                    place.position,
                    at,
                    len(words),
                )
                for number, (run, (place, at, _, words)) in enumerate(entries, last + 1)
            ],
        )
        connection.executemany(
            "INSERT INTO texts (rowid, words) VALUES (?, ?)",
            [
                (number, " ".join((*entry.facets, *entry.words)))
                for number, (_, entry) in enumerate(entries, last + 1)
            ],
        )
        forgotten = [(run, last) for run in news.forgotten]
        connection.executemany("DELETE FROM documents WHERE run = ? AND id <= ?", forgotten)
        connection.executemany(NOTE, news.notes())
        self._add_words({word for _, entry in entries for word in entry.words})

    def _add_words(self, found: set[str]) -> None:
        if len(self._known) > _MOST_KNOWN_WORDS:
            self._known.clear()
        new = sorted(word for word in found - self._known if len(word) >= SHORTEST_PART)
        (last,) = self.connection.execute("SELECT coalesce(max(id), 0) FROM words").fetchone()
        insert = "INSERT OR IGNORE INTO words (word) VALUES (?)"
        self.connection.executemany(insert, [(word,) for word in new])
        insert = "INSERT INTO parts (rowid, word) SELECT id, word FROM words WHERE id > ?"
        self.connection.execute(insert, (last,))
        self._known.update(new)


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


def _again_if_unusable(work: Callable[[], T]) -> T:
    try:
        return work()
    except Unusable:  # another one is in its place now
        return work()

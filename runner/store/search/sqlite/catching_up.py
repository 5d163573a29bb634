"""Bringing the index of a SQLite database up to what the database holds."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import NamedTuple, TypeVar

from sqlalchemy import Connection

from runner.store.database import Database
from runner.store.search.index import Progress, Tell, Unusable
from runner.store.search.sqlite import reading
from runner.store.search.sqlite.file import IndexBusyError, identity_of, opened, path_of, replace
from runner.store.search.sqlite.looking import SqliteIndex
from runner.store.search.sqlite.writing import Writer, note_looked_at, read_last, read_unended
from runner.store.search.unread import entry_or_left_out

# Rows of a table that are indexed together: while nobody waits, so few that a worker's other threads
# are not kept waiting.
_MUCH, _A_LITTLE = 1_000, 200


T = TypeVar("T")


class SqliteSearch:
    """The index of a SQLite database, from outside."""

    def __init__(self, database: Database, tell: Tell) -> None:
        self._database = database
        self._path = path_of(database)
        self._tell = tell

    @contextmanager
    def up_to_date(self, progress: Progress) -> Iterator[SqliteIndex]:
        """See the port. What was caught up with is looked into, also where another process makes the
        file anew meanwhile."""
        with ExitStack() as kept:

            def open_and_catch_up() -> sqlite3.Connection:
                with ExitStack() as own:
                    connection = own.enter_context(self._opened())
                    self._add_all(connection, progress)
                    kept.push(own.pop_all())
                return connection

            yield SqliteIndex(_again_if_unusable(open_and_catch_up))

    def follow(self) -> int:
        """See the port."""

        def add() -> int:
            with opened(self._path, self._tell, patience=0.0) as connection:
                return self._add_batch(connection, Writer(), _A_LITTLE).documents

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
        names = (self._path.name + suffix for suffix in ("", "-wal"))
        files = (self._path.with_name(name) for name in names)
        return sum(file.stat().st_size for file in files if file.exists())

    def _add_all(self, connection: sqlite3.Connection, progress: Progress) -> int:
        """Add all that is not there yet; how many documents that were."""
        added = done = 0
        writer = Writer()  # it knows this very file: another process may make a new one
        while (batch := self._add_batch(connection, writer, _MUCH)).rows:
            added, done = added + batch.documents, done + batch.rows
            progress(done, done + batch.left)
        return added

    def _opened(self) -> AbstractContextManager[sqlite3.Connection]:
        return opened(self._path, self._tell)

    def _add_batch(self, connection: sqlite3.Connection, writer: Writer, most: int) -> _Added:
        """Add what is next, of at most so many rows of a table."""
        if not self._has_more(connection):
            return _Added(0, 0, 0)  # whoever only reads waits for nobody
        connection.execute("BEGIN IMMEDIATE")  # one at a time: no two do the same work
        try:
            batch, left = self._read(connection, most)
            now = time.time()
            entries = [entry_or_left_out(each, now, self._tell) for each in batch.documents]
            writer.add(connection, entries)
            note_looked_at(connection, batch.last, batch.unended)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return _Added(batch.rows, len(batch.documents), left)

    def _has_more(self, connection: sqlite3.Connection) -> bool:
        last, unended = read_last(connection), read_unended(connection)

        def look(source: Connection) -> bool:
            _refuse_another(source, last)
            return reading.has_more(source, last, unended)

        return self._database.read(look)

    def _read(self, connection: sqlite3.Connection, most: int) -> tuple[reading.Batch, int]:
        """What is next, and how many blocks are left after it."""
        last, unended = read_last(connection), read_unended(connection)

        def read(source: Connection) -> tuple[reading.Batch, int]:
            _refuse_another(source, last)
            batch = reading.next_batch(source, last, unended, most, self._tell)
            return batch, reading.count_left(source, batch.last)

        return self._database.read(read)


def _again_if_unusable(work: Callable[[], T]) -> T:
    try:
        return work()
    except Unusable:  # there is another one in its place now
        return work()


def _refuse_another(source: Connection, last: Mapping[str, reading.Last]) -> None:
    if not reading.is_of(source, last):
        raise Unusable("it is of another database")


class _Added(NamedTuple):
    """How much was added: rows that were looked at, and documents; and the blocks that are left."""

    rows: int
    documents: int
    left: int

"""Bringing the index of a Postgres database up to what the database holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TypeVar

from sqlalchemy import Connection, text

from runner.store.database import Database
from runner.store.search.index import Progress, Tell
from runner.store.search.postgres import reading
from runner.store.search.postgres.forgetting import LOCK, lock
from runner.store.search.postgres.looking import PostgresIndex
from runner.store.search.postgres.segments import MEDIUM
from runner.store.search.postgres.vocabulary import Vocabulary
from runner.store.search.postgres.writing import Numbered, Writer
from runner.store.search.unread import entry_or_left_out

# Documents that are indexed together: while nobody waits, so few that a worker's other threads are
# not kept waiting.
_MUCH, _A_LITTLE = 1_000, 200

# What a crash takes away of what was committed last is found to be missing, and added again.
_FOR_MUCH = ("work_mem = '128MB'", "synchronous_commit = off")

_TABLES = (
    "search_documents",
    "search_fresh",
    "search_small",
    "search_medium",
    "search_large",
    "search_words",
    "search_runs",
)

T = TypeVar("T")


class PostgresSearch:
    """The index of a Postgres database, from outside."""

    def __init__(self, database: Database, tell: Tell) -> None:
        self._database = database
        self._vocabulary = Vocabulary()
        self._tell = tell

    @contextmanager
    def up_to_date(self, progress: Progress) -> Iterator[PostgresIndex]:
        """See the port."""
        if not self._database.read(reading.is_up_to_date):
            self._catch_up(progress)
        yield PostgresIndex(self._database)

    def follow(self) -> int:
        """See the port."""
        if self._database.read(reading.is_up_to_date):
            return 0
        return self._written(self._add_a_little_if_free)

    def renew(self, progress: Progress) -> int:
        """See the port."""

        def empty(connection: Connection) -> None:
            lock(connection)
            connection.execute(text(f"TRUNCATE {', '.join(_TABLES)} RESTART IDENTITY"))

        self._vocabulary.forget()
        self._database.write(empty)
        return self._catch_up(progress)

    def size(self) -> int:
        """See the port."""
        sizes = " + ".join(f"pg_total_relation_size('{table}')" for table in _TABLES)
        query = text(f"SELECT {sizes}")
        return int(self._database.read(lambda connection: connection.execute(query).scalar_one()))

    def _catch_up(self, progress: Progress) -> int:
        added = 0

        def add_much(connection: Connection) -> int:
            return self._add_much(connection, added, progress)

        while count := self._written(add_much):
            added += count
        return added

    def _written(self, work: Callable[[Connection], int]) -> int:
        """How many documents were added."""
        try:
            return self._database.write(work)
        except BaseException:
            self._vocabulary.forget()
            raise

    def _add_much(self, connection: Connection, before: int, progress: Progress) -> int:
        """Add what becomes one lot of lists. It is read by another connection, which sees what was
        committed before the lock was taken, or after."""
        lock(connection)
        for setting in _FOR_MUCH:
            connection.execute(text(f"SET LOCAL {setting}"))
        writer = Writer(connection, self._vocabulary)
        left = reading.count_left(connection)
        added = 0
        with closing(one_ahead(self._numbered(writer))) as lot:
            for documents in lot:
                writer.gather(documents)
                added += len(documents)
                progress(before + added, before + max(left, added))
        writer.finish()
        if added:
            progress(before + added, before + added + reading.count_left(connection))
        return added

    def _numbered(self, writer: Writer) -> Generator[list[Numbered], None, None]:
        """The documents of a lot, to be gathered."""
        added = 0
        with closing(one_ahead(self._read_beside())) as batches:
            for batch in batches:
                documents = self._number(writer, batch)
                yield documents
                added += len(documents)
                if added >= MEDIUM:
                    break

    def _read_beside(self) -> Generator[reading.Batch, None, None]:
        with self._database.reading() as connection:
            yield from reading.batches(connection, _MUCH, self._tell)

    def _add_a_little_if_free(self, connection: Connection) -> int:
        query = text("SELECT pg_try_advisory_xact_lock(:lock)").bindparams(lock=LOCK)
        if not connection.execute(query).scalar_one():
            return 0
        writer = Writer(connection, self._vocabulary)
        added = 0
        for batch in reading.batches(connection, _A_LITTLE, self._tell):
            documents = self._number(writer, batch)
            writer.gather(documents)
            added += len(documents)
            if added:
                break
        writer.finish()
        return added

    def _number(self, writer: Writer, batch: reading.Batch) -> list[Numbered]:
        now = time.time()
        # One by one: the words of a text are gone before the next ones come.
        entries = (entry_or_left_out(each, now, self._tell) for each in batch.documents)
        return writer.number(entries, batch.seen)


def one_ahead(items: Generator[T, None, None]) -> Generator[T, None, None]:
    """The same, each made in a thread while the one before it is worked with."""
    with closing(items), ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item

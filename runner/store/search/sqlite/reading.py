"""What a SQLite database holds that its index does not, found by the numbers of its rows.

Nothing is ever deleted from these tables, and SQLite has one writer at a time: rows are numbered in
the order in which they were committed, without gaps (https://sqlite.org/rowidtable.html).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    Integer,
    Select,
    Table,
    Text,
    cast,
    literal_column,
    select,
    tuple_,
)

from runner.store.search.documents import MOST_CHARACTERS, Document, Place
from runner.store.search.index import Tell
from runner.store.search.ran import ran_document, ran_place
from runner.store.search.rows import (
    Jobs,
    block_document,
    block_place,
    block_rows,
    compaction_document,
    compaction_place,
    compaction_rows,
    is_without_summary,
    system_document,
    system_rows,
    verification_document,
    verification_place,
    verification_rows,
)
from runner.store.search.unread import read_or_leave_out
from runner.store.tables import blocks, compactions, jobs, verifications

# What of a row never changes.
_FIXED = {
    jobs: (jobs.c.id, jobs.c.created_at),
    blocks: (*blocks.primary_key.columns, blocks.c.created_at, cast(blocks.c.content, Text)),
    compactions: (*compactions.primary_key.columns, compactions.c.created_at),
    verifications: (*verifications.primary_key.columns, verifications.c.started_at),
}
_TABLES: Mapping[str, Table] = {table.name: table for table in _FIXED}
_SAMPLES = (0, 1, 10, 100, 1_000, 10_000, 100_000)

# A row that is to be looked at again: its table, run and number.
Open = tuple[str, str, int]


class Last(NamedTuple):
    """The last row of a table that the index has looked at: its number, and a digest of it and of some
    rows before it."""

    number: int = 0
    key: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """What is next to be indexed. ``last`` (by table) and ``unended`` (what is to be looked at again)
    are what the index is to note then; where ``rows`` is 0 there is nothing more."""

    documents: tuple[Document, ...]
    last: Mapping[str, Last]
    unended: frozenset[Open]
    rows: int


def is_of(connection: Connection, last: Mapping[str, Last]) -> bool:
    """Whether an index that looked at these rows last is of this database, as it is now: not of another
    one, nor of what it was before it was put back and gone on with."""
    return all(
        _key(connection, _TABLES[name], noted.number) == noted.key for name, noted in last.items()
    )


def has_more(connection: Connection, last: Mapping[str, Last], unended: frozenset[Open]) -> bool:
    """Whether there is anything that the index has not looked at."""
    for table in _FIXED:
        number = last.get(table.name, Last()).number
        newer = select(_row(table)).select_from(table).where(_row(table) > number)
        if connection.execute(newer.limit(1)).first() is not None:
            return True
    jobs_read = Jobs(connection)
    return any(
        not is_open(row)
        for table, rows, is_open in _openable(jobs_read)
        for row in _looked_at_again(connection, table, rows, unended)
    )


def count_left(connection: Connection, last: Mapping[str, Last]) -> int:
    """How many blocks are still to be indexed."""
    query = select(_row(blocks)).select_from(blocks).order_by(_row(blocks).desc())
    newest = connection.execute(query.limit(1)).scalar()
    return (newest or 0) - last.get(blocks.name, Last()).number


def next_batch(
    connection: Connection,
    last: Mapping[str, Last],
    unended: frozenset[Open],
    most: int,
    tell: Tell,
) -> Batch:
    """What follows on the rows that the index has looked at last.

    Args:
        unended: those among them that are to be looked at again.
        most: rows of each table; fewer where they hold much text.
        tell: is told of what cannot be read.
    """
    reading = _Reading(connection, last, unended, most, tell)
    jobs_read = Jobs(connection)
    reading.jobs()
    reading.blocks(jobs_read)
    for table, rows, is_open in _openable(jobs_read):
        reading.look_again(table, rows, is_open, jobs_read)
    return reading.batch()


class _Reading:
    """Reads rows until there are enough."""

    def __init__(
        self,
        connection: Connection,
        last: Mapping[str, Last],
        unended: frozenset[Open],
        most: int,
        tell: Tell,
    ) -> None:
        self._connection = connection
        self._last, self._after = last, {name: noted.number for name, noted in last.items()}
        self._unended = set(unended)
        self._most, self._tell = most, tell
        self._documents: list[Document] = []
        self._rows = 0
        self._room = MOST_CHARACTERS

    def jobs(self) -> None:
        for row in self._next(jobs, system_rows()):
            self._add(Place("system", row.id), row.created_at, partial(system_document, row))

    def blocks(self, jobs_read: Jobs) -> None:
        for row in self._next(blocks, block_rows()):
            self._add(block_place(row), row.created_at, partial(block_document, row, jobs_read))
            if row.ran_with is not None:
                ran = partial(ran_document, self._connection, row, jobs_read)
                self._add(ran_place(row), row.created_at, ran)

    def look_again(
        self,
        table: Table,
        query: Select[Any],
        is_open: Callable[[Any], bool],
        jobs_read: Jobs,
    ) -> None:
        """Read those rows of a table that are complete now, and then the next ones."""
        document_of, place_of = _DOCUMENTS[table]
        again = _looked_at_again(self._connection, table, query, frozenset(self._unended))
        for row in _until(again, lambda: self._room <= 0):
            if not is_open(row):
                self._unended.discard((table.name, row.run_id, row.number))
                self._rows += 1
                self._add(place_of(row), _at(row), partial(document_of, row, jobs_read))
        for row in self._next(table, query):
            if is_open(row):
                self._unended.add((table.name, row.run_id, row.number))
            else:
                self._add(place_of(row), _at(row), partial(document_of, row, jobs_read))

    def batch(self) -> Batch:
        """All that was read."""
        last = dict(self._last)
        for name, number in self._after.items():
            if number != last.get(name, Last()).number:
                last[name] = Last(number, _key(self._connection, _TABLES[name], number))
        return Batch(tuple(self._documents), last, frozenset(self._unended), self._rows)

    def _next(self, table: Table, query: Select[Any]) -> Iterator[Any]:
        number = self._after.get(table.name, 0)
        query = query.add_columns(_row(table).label("row_number")).where(_row(table) > number)
        with closing(
            self._connection.execute(query.order_by(_row(table)).limit(self._most))
        ) as found:
            for row in _until(found, lambda: self._room <= 0):
                self._after[table.name] = row.row_number
                self._rows += 1
                yield row

    def _add(self, place: Place, at: float, read: Callable[[], Document | None]) -> None:
        document = read_or_leave_out(place, at, read, self._tell)
        if document is not None:
            self._documents.append(document)
            self._room -= len(document.text or "")


_DOCUMENTS: Mapping[Table, tuple[Callable[[Any, Jobs], Document | None], Callable[[Any], Place]]]
_DOCUMENTS = {
    compactions: (compaction_document, compaction_place),
    verifications: (verification_document, verification_place),
}


def _openable(
    jobs_read: Jobs,
) -> Iterator[tuple[Table, Select[Any], Callable[[Any], bool]]]:
    """Tables with rows that are completed later, and which of them are not yet."""
    yield compactions, compaction_rows(), lambda row: is_without_summary(row, jobs_read)
    yield verifications, verification_rows(), lambda row: row.ended_at is None


def _looked_at_again(
    connection: Connection, table: Table, query: Select[Any], unended: frozenset[Open]
) -> Iterator[Any]:
    keys = sorted((run_id, number) for name, run_id, number in unended if name == table.name)
    if keys:
        with closing(
            connection.execute(query.where(tuple_(table.c.run_id, table.c.number).in_(keys)))
        ) as found:
            yield from found


def _until(rows: Iterable[Any], is_enough: Callable[[], bool]) -> Iterator[Any]:
    for row in rows:
        yield row
        if is_enough():
            break


def _at(row: Any) -> float:
    """When what was said beside the blocks was said."""
    at: float = row._mapping["ended_at" if "ended_at" in row._mapping else "created_at"]
    return at


def _row(table: Table) -> Any:
    return literal_column(f"{table.name}.rowid", Integer)


def _key(connection: Connection, table: Table, number: int) -> str:
    """A digest of some rows up to the one of that number."""
    numbers = [number - back for back in _SAMPLES if back < number]
    query = select(_row(table), *_FIXED[table]).where(_row(table).in_(numbers))
    digest = blake2b(digest_size=16)
    for row in connection.execute(query.order_by(_row(table))):
        digest.update(repr(tuple(row)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()

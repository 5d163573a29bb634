"""How documents get into the lists: in small lots at first, which are put together as they grow.

The newest documents have rows of their own with their numbers (``search_fresh``). A thousand of them become
a segment: lists of who has which number (``search_small``). Some of these become a larger one
(``search_medium``), and those of a whole stretch one for good (``search_large``). A segment is within one
stretch: lists of the same number are put together by putting one after the other.
"""

from __future__ import annotations

import struct
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from runner.store.search.postgres.lists import (
    BIT_BYTES,
    GONE,
    LENGTH_BYTES,
    LENGTHS,
    STRETCH,
    TIMES,
    bits_of,
    marked,
    packed,
)

# So many documents are put together first, and then; more that come together are a larger segment at once.
FRESH, MEDIUM = 1_024, 16_384
_MEDIUM_AT_ONCE = 8_192

_LISTS = "(SELECT * FROM search_medium UNION ALL SELECT * FROM search_small)"
_EVERY_LIST = f"(SELECT * FROM search_large UNION ALL SELECT * FROM {_LISTS} AS l)"
_NEXT = text(
    "SELECT greatest((SELECT coalesce(max(id) + 1, 0) FROM search_fresh), "
    f"(SELECT coalesce(max(first + octet_length(list) / {LENGTH_BYTES}), 0) "
    f"FROM {_EVERY_LIST} AS l WHERE number = {LENGTHS}))"
)
_COUNT_FRESH = text("SELECT count(*) FROM search_fresh")
_TAKE_FRESH = text(
    "WITH gone AS (DELETE FROM search_fresh RETURNING *) "
    "SELECT id, length, at, numbers FROM gone ORDER BY id"
)
_COUNT_SMALL = text(
    f"SELECT coalesce(sum(octet_length(list)), 0) / {LENGTH_BYTES} FROM search_small "
    f"WHERE number = {LENGTHS}"
)
_TOGETHER = "string_agg(list, CAST('' AS bytea) ORDER BY first)"
_SMALL_TO_MEDIUM = (
    text(
        f"INSERT INTO search_medium SELECT number, min(first), {_TOGETHER} "
        "FROM search_small GROUP BY number"
    ),
    text("DELETE FROM search_small"),
)
_IS_LONG = f"number NOT IN ({GONE}, {LENGTHS}, {TIMES}) AND sum(octet_length(list)) >= {BIT_BYTES}"
_LONG = text(
    f"SELECT number, {_TOGETHER} AS list FROM {_LISTS} AS l GROUP BY number HAVING {_IS_LONG}"
)
_ALL_TO_LARGE = (
    text(
        f"INSERT INTO search_large SELECT number, min(first), {_TOGETHER} FROM {_LISTS} AS l "
        f"GROUP BY number HAVING NOT ({_IS_LONG})"
    ),
    text("DELETE FROM search_medium"),
    text("DELETE FROM search_small"),
)


class Numbered(NamedTuple):
    """A document as the lists have it. ``numbers`` are those of its words and pairs."""

    id: int
    length: int
    at: float
    numbers: Iterable[int]


class Segments:
    """Adds documents to the lists, in a transaction of its caller, who is the only one to do so."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._few: list[Numbered] = []
        self._segment: _Segment | None = None
        self.next: int = connection.execute(_NEXT).scalar_one()

    def add(self, length: int, at: float, numbers: Iterable[int]) -> None:
        """Add the document that has the number ``next``."""
        self._few.append(Numbered(self.next, length, at, numbers))
        self.next += 1
        if len(self._few) >= FRESH or self.next % STRETCH == 0:
            self._gather()

    def finish(self) -> None:
        """Write what was added."""
        if self._segment is None and self._fits():
            with copying(self._connection, "search_fresh (id, length, at, numbers)") as copy:
                for each in self._few:
                    numbers = array("i", each.numbers)
                    listed = struct.pack(f"<{len(numbers)}i", *numbers).hex()
                    copy.write(f"{each.id}\t{each.length}\t{each.at!r}\t\\\\x{listed}\n")
            return
        self._gather()
        if self._segment is not None:
            self._write(self._segment)

    def _fits(self) -> bool:
        count: int = self._connection.execute(_COUNT_FRESH).scalar_one()
        return count + len(self._few) < FRESH

    def _gather(self) -> None:
        """Put the documents that came, and those before them, into a segment."""
        if self._segment is None:
            fresh = [
                Numbered(row.id, row.length, row.at, _numbers_in(row.numbers))
                for row in self._connection.execute(_TAKE_FRESH)
            ]
            self._few = [*fresh, *self._few]
            self._segment = _Segment(self._few[0].id)
        self._segment.add(self._few)
        self._few = []
        if self.next % STRETCH == 0:
            self._write(self._segment)

    def _write(self, segment: _Segment) -> None:
        self._segment = None
        is_medium = segment.count >= _MEDIUM_AT_ONCE
        with copying(self._connection, f"search_{'medium' if is_medium else 'small'}") as copy:
            for number, listed in segment.lists():
                copy.write(f"{number}\t{segment.first}\t\\\\x{listed.hex()}\n")
        if self.next % STRETCH == 0:
            self._put_away()
        elif self._connection.execute(_COUNT_SMALL).scalar_one() >= MEDIUM:
            for statement in _SMALL_TO_MEDIUM:
                self._connection.execute(statement)

    def _put_away(self) -> None:
        """Put the lists of a whole stretch together."""
        first = self.next - STRETCH
        long = [(row.number, bits_of(row.list)) for row in self._connection.execute(_LONG)]
        with copying(self._connection, "search_large") as copy:
            for number, bits in long:
                copy.write(f"{number}\t{first}\t\\\\x{marked(bits).hex()}\n")
        for statement in _ALL_TO_LARGE:
            self._connection.execute(statement)


class _Segment:
    """Documents that follow each other, and which of them have each number."""

    def __init__(self, first: int) -> None:
        self.first, self.count = first, 0
        self._places: defaultdict[int, list[int]] = defaultdict(list)
        self._lengths = array("I")
        self._times = array("d")

    def add(self, documents: Sequence[Numbered]) -> None:
        places = self._places
        for each in documents:
            place = each.id % STRETCH
            for number in each.numbers:
                places[number].append(place)
            self._lengths.append(each.length)
            self._times.append(each.at)
        self.count += len(documents)

    def lists(self) -> Iterator[tuple[int, bytes]]:
        """Each number with its list."""
        yield TIMES, struct.pack(f"<{self.count}d", *self._times)
        yield LENGTHS, struct.pack(f"<{self.count}I", *self._lengths)
        for number in sorted(self._places):
            yield number, packed(self._places[number])


def _numbers_in(listed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(listed) // 4}i", listed)


@contextmanager
def copying(connection: Connection, into: str) -> Iterator[Any]:
    """Rows to be written into a table, as text."""
    cursor: Any = connection.connection.cursor()
    with cursor, cursor.copy(f"COPY {into} FROM STDIN") as copy:
        yield copy

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
from collections.abc import Iterable, Iterator, Sequence, Set
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
from runner.store.search.postgres.vocabulary import PAIRS

# So many documents are put together first, and then; more that come together are a larger segment at once.
FRESH, MEDIUM = 1_024, 16_384
_MEDIUM_AT_ONCE = 8_192

# The types of the columns of what is written.
_FRESH = ("float8", "int4", "int4", "bytea")
_LIST = ("int4", "int4", "bytea")

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


class _Fresh(NamedTuple):
    """A document as it is stored at first. ``numbers`` are those of its words and pairs."""

    at: float
    id: int
    length: int
    numbers: array[int]


class Segments:
    """Adds documents to the lists, in a transaction of its caller, who is the only one to do so."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._few: list[_Fresh] = []
        self._segments: list[_Segment] = []
        self.next: int = connection.execute(_NEXT).scalar_one()

    def add(self, length: int, at: float, words: Set[int], pairs: Set[int] = frozenset()) -> None:
        """Add the document that has the number ``next``, with the numbers of its words and of its
        pairs. This asks nothing of the database."""
        if self._segments:
            self._put(self.next, length, at, words, pairs)
        else:
            self._few.append(_Fresh(at, self.next, length, array("i", words | pairs)))
        self.next += 1
        if len(self._few) >= FRESH:
            self._gather()

    def finish(self) -> None:
        """Write what was added."""
        if not self._segments and self._fits():
            with copying(self._connection, "search_fresh", _FRESH) as copy:
                for at, id, length, numbers in self._few:
                    listed = struct.pack(f"<{len(numbers)}i", *numbers)
                    copy.write_row((at, id, length, listed))
            return
        self._gather()
        fresh = [
            _Fresh(row.at, row.id, row.length, _numbers_in(row.numbers))
            for row in self._connection.execute(_TAKE_FRESH)
        ]
        self._segments[0].precede(fresh)
        for segment in self._segments:
            self._write(segment)

    def _fits(self) -> bool:
        """Whether those that came are few, with those that are there, and end no stretch."""
        count: int = self._connection.execute(_COUNT_FRESH).scalar_one()
        return count + len(self._few) < FRESH and self.next % STRETCH >= len(self._few)

    def _gather(self) -> None:
        for each in self._few:
            self._put(each.id, each.length, each.at, *_apart(each.numbers))
        self._few = []

    def _put(
        self, id: int, length: int, at: float, words: Iterable[int], pairs: Iterable[int]
    ) -> None:
        if not self._segments or id % STRETCH == 0:
            self._segments.append(_Segment(id))
        self._segments[-1].add(length, at, words, pairs)

    def _write(self, segment: _Segment) -> None:
        is_medium = segment.count >= _MEDIUM_AT_ONCE
        table = f"search_{'medium' if is_medium else 'small'}"
        with copying(self._connection, table, _LIST) as copy:
            for number, listed in segment.lists():
                copy.write_row((number, segment.first, listed))
        end = segment.first + segment.count
        if end % STRETCH == 0:
            self._put_away(end - STRETCH)
        elif self._connection.execute(_COUNT_SMALL).scalar_one() >= MEDIUM:
            for statement in _SMALL_TO_MEDIUM:
                self._connection.execute(statement)

    def _put_away(self, first: int) -> None:
        """Put the lists of a whole stretch together."""
        long = [(row.number, bits_of(row.list)) for row in self._connection.execute(_LONG)]
        with copying(self._connection, "search_large", _LIST) as copy:
            for number, bits in long:
                copy.write_row((number, first, marked(bits)))
        for statement in _ALL_TO_LARGE:
            self._connection.execute(statement)


class _Segment:
    """Documents that follow each other, and which of them have each number, in any order."""

    def __init__(self, first: int) -> None:
        self.first = first
        self._lengths = array("I")
        self._times = array("d")
        self._words: defaultdict[int, list[int]] = defaultdict(list)
        self._pairs: list[list[int]] = [[] for _ in range(PAIRS)]

    @property
    def count(self) -> int:
        return len(self._lengths)

    def add(self, length: int, at: float, words: Iterable[int], pairs: Iterable[int]) -> None:
        self._mark((self.first + self.count) % STRETCH, words, pairs)
        self._lengths.append(length)
        self._times.append(at)

    def precede(self, documents: Sequence[_Fresh]) -> None:
        """Add documents before the others."""
        for each in documents:
            self._mark(each.id % STRETCH, *_apart(each.numbers))
        self.first -= len(documents)
        self._lengths[:0] = array("I", (each.length for each in documents))
        self._times[:0] = array("d", (each.at for each in documents))

    def _mark(self, place: int, words: Iterable[int], pairs: Iterable[int]) -> None:
        of_words, of_pairs = self._words, self._pairs
        for number in words:
            of_words[number].append(place)
        for number in pairs:
            of_pairs[number].append(place)

    def lists(self) -> Iterator[tuple[int, bytes]]:
        """Each number with its list."""
        for number, places in enumerate(self._pairs):
            if places:
                yield number, packed(places)
        yield LENGTHS, struct.pack(f"<{self.count}I", *self._lengths)
        yield TIMES, struct.pack(f"<{self.count}d", *self._times)
        for number in sorted(self._words):
            yield number, packed(self._words[number])


def _apart(numbers: Sequence[int]) -> tuple[list[int], list[int]]:
    """The numbers of words, and those of pairs."""
    return [n for n in numbers if n >= PAIRS], [n for n in numbers if n < PAIRS]


def _numbers_in(listed: bytes) -> array[int]:
    return array("i", struct.unpack(f"<{len(listed) // 4}i", listed))


@contextmanager
def copying(connection: Connection, into: str, types: Sequence[str]) -> Iterator[Any]:
    """Rows to be written into a table.

    Args:
        types: of all its columns, in order, as Postgres names them.
    """
    cursor: Any = connection.connection.cursor()
    with cursor, cursor.copy(f"COPY {into} FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types(types)
        yield copy

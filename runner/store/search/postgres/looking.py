"""Looking in the index of a Postgres database: lists of documents are read, and put together here."""

from __future__ import annotations

import struct
import sys
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import Any

from sqlalchemy import Connection, text

from runner.core.search.words import MARK
from runner.store.database import Database
from runner.store.search.documents import KINDS, Place
from runner.store.search.index import MOST_MATCHES, Match, Needs
from runner.store.search.postgres.lists import (
    BIT_BYTES,
    GONE,
    LENGTHS,
    STRETCH,
    TIMES,
    bits_in,
    bits_of,
    packed,
    places_in,
)
from runner.store.search.postgres.wanted import AnyOf, Wanted, bits_for, leaves_of, wanted_by

# Each number is looked up by the keys of the lists: whatever else is planned reads all of them.
_LISTS = f"""
WITH wanted AS MATERIALIZED (
    SELECT * FROM unnest(CAST($1 AS integer[]), CAST($2 AS integer[])) AS w (leaf, number)
)
SELECT leaf, first / {STRETCH} AS stretch, is_marked, string_agg(list, CAST('' AS bytea)) FROM (
    SELECT w.leaf, l.first, l.list,
        w.number <> {GONE} AND octet_length(l.list) = {BIT_BYTES} AS is_marked
    FROM wanted AS w CROSS JOIN LATERAL
    (SELECT first, list FROM search_large WHERE number = w.number OFFSET 0) AS l
    UNION ALL
    SELECT w.leaf, l.first, l.list, false FROM wanted AS w CROSS JOIN LATERAL
    (SELECT first, list FROM search_medium WHERE number = w.number OFFSET 0) AS l
    UNION ALL
    SELECT w.leaf, l.first, l.list, false FROM wanted AS w CROSS JOIN LATERAL
    (SELECT first, list FROM search_small WHERE number = w.number OFFSET 0) AS l
) AS found GROUP BY leaf, stretch, is_marked
"""
_FRESH = "SELECT id, length, at, numbers FROM search_fresh ORDER BY id"
_COLUMN = f"""
SELECT first / {STRETCH} AS stretch, string_agg(list, CAST('' AS bytea) ORDER BY first) FROM (
    SELECT * FROM search_large WHERE number = $1
    UNION ALL SELECT * FROM search_medium WHERE number = $1
    UNION ALL SELECT * FROM search_small WHERE number = $1
) AS found WHERE first / {STRETCH} = ANY($2) GROUP BY stretch
"""
_SETTINGS = (
    "SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true), "
    "set_config('work_mem', '64MB', true)"
)
_LAST_ID = 2**32 - 1

_IS_GONE = AnyOf(frozenset((GONE,)))


class PostgresIndex:
    """``Index`` over the tables."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def words_with(self, part: str, most: int, *, at_end: bool = False) -> list[str]:
        """See the port."""
        trigrams = sorted({part[at : at + 3] for at in range(len(part) - 2)})
        query = text(
            "SELECT word FROM search_words WHERE search_trigrams(word) @> CAST(:trigrams AS text[]) "
            "AND strpos(word, :part) > 0 AND (NOT :at_end OR right(word, :length) = :part) "
            f"AND NOT starts_with(word, '{MARK}') LIMIT :most"
        )
        values = {
            "trigrams": trigrams,
            "part": part,
            "at_end": at_end,
            "length": len(part),
            "most": most + 1,
        }
        return list(self._database.read(lambda c: list(c.execute(query, values).scalars())))

    def matches(self, needs: Needs) -> PostgresMatches:
        """See the port."""
        return PostgresMatches(self._database, needs)


class PostgresMatches:
    """``Matches`` in the tables. The bits of those that were found are kept, a number for each stretch."""

    def __init__(self, database: Database, needs: Needs) -> None:
        self._database = database
        self.is_sure = True
        self._found: dict[int, int] = {}
        self._keys: list[int] = []
        database.read(lambda connection: self._look(connection, needs))
        self.count = min(sum(map(int.bit_count, self._found.values())), MOST_MATCHES + 1)

    def part(self, start: int, stop: int) -> list[Match]:
        """See the port."""
        if self.count > MOST_MATCHES:
            found = dict.fromkeys(self._newest(start, stop), 0)
        else:
            best = nsmallest(stop, self._keys) if stop < self.count else sorted(self._keys)
            found = {_LAST_ID - (key & _LAST_ID): key >> 32 for key in best[start:stop]}
        return self._database.read(lambda connection: _matches(connection, found))

    def _look(self, connection: Connection, needs: Needs) -> None:
        wanted = wanted_by(connection, needs)
        if wanted is None:
            return
        self.is_sure = wanted.is_sure
        lists = _Lists(connection)
        self._found = dict(lists.found(wanted))
        if needs.since is not None or needs.until is not None:
            self._found = dict(lists.between(self._found, needs.since, needs.until))
        if sum(map(int.bit_count, self._found.values())) <= MOST_MATCHES:
            self._keys = lists.keys(self._found)

    def _newest(self, start: int, stop: int) -> list[int]:
        ids: list[int] = []
        for stretch in sorted(self._found, reverse=True):
            ids += (
                stretch * STRETCH + place for place in reversed(places_in(self._found[stretch]))
            )
            if len(ids) >= stop:
                break
        return ids[start:stop]


class _Lists:
    """What the lists say, in one view of the data."""

    def __init__(self, connection: Connection) -> None:
        connection.execute(text(_SETTINGS))
        self._cursor: Any = connection.connection.cursor(binary=True)
        self._fresh = [
            (id, length, at, struct.unpack(f"<{len(listed) // 4}i", listed))
            for id, length, at, listed in self._cursor.execute(_FRESH)
        ]

    def found(self, wanted: Wanted) -> Iterator[tuple[int, int]]:
        """Each stretch with those in it that are wanted."""
        leaves = list(dict.fromkeys((*leaves_of(wanted.condition), wanted.without, _IS_GONE)))
        bits = self._read(leaves)
        for stretch in {stretch for _, stretch in bits}:
            read = _In(stretch, bits)
            found = bits_for(wanted.condition, read)
            found &= ~(read(wanted.without) | read(_IS_GONE))
            if found:
                yield stretch, found

    def _read(self, leaves: Sequence[AnyOf]) -> Mapping[tuple[AnyOf, int], int]:
        """The bits of documents that have one of some numbers, for each stretch."""
        asked = [(at, number) for at, leaf in enumerate(leaves) for number in leaf.numbers]
        bits: defaultdict[tuple[AnyOf, int], int] = defaultdict(int)
        rows = self._cursor.execute(_LISTS, [[at for at, _ in asked], [n for _, n in asked]])
        for at, stretch, is_marked, listed in rows:
            bits[leaves[at], stretch] |= bits_in(listed) if is_marked else bits_of(listed)
        asking = defaultdict(list)
        for at, number in asked:
            asking[number].append(leaves[at])
        numbers = frozenset(asking)
        for id, _, _, has in self._fresh:
            for leaf in {leaf for number in numbers.intersection(has) for leaf in asking[number]}:
                bits[leaf, id // STRETCH] |= 1 << id % STRETCH
        return bits

    def between(
        self, found: Mapping[int, int], since: float | None, until: float | None
    ) -> Iterator[tuple[int, int]]:
        """Those of which the time is from ``since`` on and before ``until``."""
        first = float("-inf") if since is None else since
        end = float("inf") if until is None else until
        for stretch, times in self._column(found, TIMES, "d"):
            places = [place for place in places_in(found[stretch]) if first <= times[place] < end]
            if places:
                yield stretch, bits_of(packed(places))

    def keys(self, found: Mapping[int, int]) -> list[int]:
        """A number for each document, in the order of which the shortest come first, and of those as
        long the newest."""
        keys: list[int] = []
        for stretch, lengths in self._column(found, LENGTHS, "I"):
            last = _LAST_ID - stretch * STRETCH
            keys += [lengths[place] << 32 | last - place for place in places_in(found[stretch])]
        return keys

    def _column(
        self, found: Mapping[int, int], number: int, kind: str
    ) -> Iterator[tuple[int, array[Any]]]:
        """Each stretch with a value for each document in it."""
        columns = {stretch: array(kind) for stretch in found}
        for stretch, listed in self._cursor.execute(_COLUMN, [number, list(found)]):
            columns[stretch].frombytes(listed)
            if sys.byteorder == "big":
                columns[stretch].byteswap()
        for id, length, at, _ in self._fresh:
            if id // STRETCH in columns:
                columns[id // STRETCH].append(length if number == LENGTHS else at)
        yield from columns.items()


class _In:
    """The bits of one stretch."""

    def __init__(self, stretch: int, bits: Mapping[tuple[AnyOf, int], int]) -> None:
        self._stretch, self._bits = stretch, bits

    def __call__(self, leaf: AnyOf) -> int:
        return self._bits.get((leaf, self._stretch), 0)


def _matches(connection: Connection, lengths: Mapping[int, int]) -> list[Match]:
    """Documents, of each of which the length is given, in the same order."""
    if not lengths:
        return []
    query = text(
        "SELECT d.id, r.job_id, r.run_id, d.kind, d.message, d.position, d.at "
        "FROM search_documents AS d JOIN search_runs AS r ON r.number = d.run "
        "WHERE d.id = ANY(CAST(:ids AS integer[]))"
    )
    found = {
        row.id: Match(
            Place(KINDS[row.kind], row.job_id, row.run_id, row.message, row.position),
            row.at,
            lengths[row.id],
        )
        for row in connection.execute(query, {"ids": list(lengths)})
    }
    return [found[number] for number in lengths if number in found]

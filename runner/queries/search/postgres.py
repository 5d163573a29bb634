"""The index of a Postgres database: a ``tsvector`` of each document's words, under GIN.

The words are ours and are cast to ``tsvector`` as text: Postgres' parser would take paths and versions
for words of their own. GIN tells which documents have some words; a search is for the newest, so it
asks for the newest stretch of documents first, and for all only if that gives too few.

Words side by side are kept as a signature: for each pair of neighbours one bit of ``pairs``, chosen by
the end of the first word and the start of the second. A document whose bits are set probably has the
phrase. Positions in the ``tsvector`` would take twice as much (docs/decisions/0012).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from hashlib import blake2b
from operator import xor
from typing import Any

from sqlalchemy import Connection, text

from runner.core.search import LONG, MARK, SHORTEST_PART, Term
from runner.queries.search.documents import KINDS, Place, Tell
from runner.queries.search.index import (
    GONE,
    NOTE,
    Additions,
    Entry,
    Match,
    Needs,
    Progress,
    add_all,
    is_up_to_date,
)
from runner.store.database import Database

# Documents that are indexed together; a follower takes so few that a worker's other threads go on.
_BATCH, _SMALL_BATCH = 16_384, 200

# "runner s": whoever changes the index holds this lock until the end of the transaction.
_LOCK = 0x72756E6E65722073

# A batch goes into GIN at once. What a crash takes away is found to be missing, and added again.
_WHILE_ADDING = (
    "SET LOCAL work_mem = '128MB'",
    "SET LOCAL maintenance_work_mem = '128MB'",
    "SET LOCAL gin_pending_list_limit = '512MB'",
    "SET LOCAL synchronous_commit = off",
)
_WHILE_ASKING = (
    "SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true), "
    "set_config('work_mem', '64MB', true)"
)

# Each document has a word for its stretch of documents that were indexed together, and one for a
# longer stretch.
STRETCH_BITS = (14, 17)

# A tsvector has less than 1 MB. The words of a longer text are in several rows, its parts.
_MOST_BYTES = 1_000_000
_PART = f"{MARK}part"

_BITS_A_PAIR = 6
_MOST_PAIR_BYTES = 65_536
_ALL_PAIRS = b"\xff"  # the signature of a text that may have any phrase

_TABLES = ("search_documents", "search_words", "search_runs")
_COPY = """
COPY search_documents (id, document, run, message, position, kind, at, length, pairs, words)
FROM STDIN
"""


class PostgresIndex:
    """The index in Postgres. All methods raise ``UnreachableError`` if the database does not answer."""

    def __init__(self, database: Database, tell: Tell, batch: int | None = None) -> None:
        self._database = database
        self._tell = tell
        self._batch = batch or _BATCH

    @contextmanager
    def up_to_date(self, progress: Progress) -> Iterator[PostgresLookup]:
        """Add all documents that were committed before, and yield a lookup in the index."""
        if not self._is_up_to_date():
            self._add_all(progress)
        yield PostgresLookup(self._database)

    def follow(self) -> int:
        """Add a small batch of missing documents, unless another process adds some. Return its size."""

        def add(connection: Connection) -> int:
            query = text("SELECT pg_try_advisory_xact_lock(:lock)").bindparams(lock=_LOCK)
            if not connection.execute(query).scalar_one():
                return 0
            return self._add(connection, min(self._batch, _SMALL_BATCH))

        return 0 if self._is_up_to_date() else self._database.write(add)

    def renew(self, progress: Progress) -> int:
        """Build the index again from nothing, and return how many documents it has."""

        def empty(connection: Connection) -> None:
            _lock(connection)
            connection.execute(text(f"TRUNCATE {', '.join(_TABLES)}"))

        self._database.write(empty)
        return self._add_all(progress)

    def drop_gone(self) -> None:
        """Drop the documents of runs that the database no longer has."""

        def drop(connection: Connection) -> bool:
            _lock(connection)
            gone = [number for (number,) in _ask(connection, GONE)]
            for table, column in (("search_documents", "run"), ("search_runs", "number")):
                delete = text(f"DELETE FROM {table} WHERE {column} = ANY(:gone)")
                connection.execute(delete, {"gone": gone})
            return bool(gone)

        while self._database.write(drop):
            pass

    def size(self) -> int:
        sizes = " + ".join(f"pg_total_relation_size('{table}')" for table in _TABLES)
        return int(self._database.read(partial(_ask, sql=f"SELECT {sizes}"))[0][0])

    def _is_up_to_date(self) -> bool:
        return self._database.read(lambda source: is_up_to_date(partial(_ask, source)))

    def _add_all(self, progress: Progress) -> int:
        def add_much(connection: Connection, progress: Progress) -> int:
            _lock(connection)
            for setting in _WHILE_ADDING:
                connection.execute(text(setting))
            added = self._add(connection, self._batch, progress)
            connection.execute(text("SELECT gin_clean_pending_list('ix_search_documents_words')"))
            return added

        write = self._database.write
        return add_all(lambda progress: write(partial(add_much, progress=progress)), progress)

    def _add(self, connection: Connection, most: int, progress: Progress | None = None) -> int:
        """Add what comes next. While Postgres takes it in, more is read on another connection, which
        sees what was committed before the lock was taken, or after."""
        rows = _Rows(connection)
        driver: Any = connection.connection.driver_connection
        with self._database.reading() as source:
            additions = Additions(partial(_ask, source), source, most, self._tell, progress)
            with driver.cursor() as cursor, cursor.copy(_COPY) as copy:
                for run, entry in additions.entries():
                    for row in rows.of(run, entry):
                        copy.write_row(row)
        rows.finish(additions)
        return rows.documents


def _ask(source: Connection, sql: str, values: Mapping[str, Any] | None = None) -> Sequence[Any]:
    return source.execute(text(sql), values or {}).all()


def _lock(connection: Connection) -> None:
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)").bindparams(lock=_LOCK))


class _Rows:
    """Makes the rows of documents after the existing rows. Its caller holds the lock."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        last = _ask(connection, "SELECT coalesce(max(id), 0) FROM search_documents")[0][0]
        self._first = self._next = last + 1
        self.documents = 0
        self._words: set[str] = set()

    def of(self, run: int, entry: Entry) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a document: one unless it has very many words."""
        place, document = entry.place, self._next
        words = set(entry.words)
        self._words |= words
        parts = list(_parts(words))
        facets = [*entry.facets, *((_PART,) if len(parts) > 1 else ())]
        is_plain = len(parts) == 1 and LONG not in facets
        pairs = _signature(entry.words) if is_plain else _ALL_PAIRS
        for part in parts:
            yield (
                *(self._next, document, run, place.message, place.position),
                *(KINDS.index(place.kind), entry.at, len(entry.words), pairs),
                " ".join((*facets, *_stretches(self._next), *part)),
            )
            self._next += 1
        self.documents += 1

    def finish(self, additions: Additions) -> None:
        """Add the words to the vocabulary, and note what the index holds now."""
        words = sorted(word for word in self._words if len(word) >= SHORTEST_PART)
        add = (
            "INSERT INTO search_words SELECT unnest(CAST(:words AS text[])) ON CONFLICT DO NOTHING"
        )
        self._connection.execute(text(add), {"words": words})
        delete = text("DELETE FROM search_documents WHERE run = :run AND id < :first")
        for run in additions.forgotten:
            self._connection.execute(delete, {"run": run, "first": self._first})
        if notes := additions.notes():
            self._connection.execute(text(NOTE), notes)


def _parts(words: Collection[str]) -> Iterator[Collection[str]]:
    if sum(map(len, words)) * 4 <= _MOST_BYTES:
        yield words
        return
    part: list[str] = []
    size = 0
    for word in words:
        size += len(word.encode())
        if size > _MOST_BYTES:
            yield part
            part, size = [], len(word.encode())
        part.append(word)
    yield part


def _stretches(number: int) -> list[str]:
    return [f"{MARK}{bits}n{number >> bits}" for bits in STRETCH_BITS]


def _code(salt: bytes, part: str) -> int:
    """Return a random number for a part of a word, always the same one."""
    return int.from_bytes(blake2b(part.encode(), digest_size=4, salt=salt).digest(), "big")


_end_code, _start_code = (cache(partial(_code, salt)) for salt in (b"end", b"start"))


def _pairs(words: Sequence[str]) -> Collection[int]:
    """Return the numbers of all neighbours. Three letters of each word are known from its parts."""
    ends = [_end_code(word[-SHORTEST_PART:]) for word in words[:-1]]
    return set(map(xor, ends, [_start_code(word[:SHORTEST_PART]) for word in words[1:]]))


def _signature(words: Sequence[str]) -> bytes:
    """Return one bit for each pair of neighbours, in the order of Postgres' ``get_bit``."""
    pairs = _pairs(words)
    size = min(len(pairs) * _BITS_A_PAIR // 8 + 1, _MOST_PAIR_BYTES)
    signature = bytearray(size)
    for bit in {pair % (8 * size) for pair in pairs}:
        signature[bit >> 3] |= 1 << (bit & 7)
    return bytes(signature)


class PostgresLookup:
    # True if the index knows which words are adjacent. If not, some matches of a phrase do not contain
    # it, and an unwanted phrase excludes nothing.
    knows_phrases = False

    def __init__(self, database: Database) -> None:
        self._database = database

    def words_with(self, part: str, most: int, *, at_end: bool = False) -> list[str]:
        """Return at most ``most`` + 1 words that contain, or end with, ``part`` (3 or more characters)."""
        query = text(
            "SELECT word FROM search_words WHERE search_trigrams(word) @> CAST(:trigrams AS text[]) "
            "AND strpos(word, :part) > 0 AND (NOT :at_end OR right(word, :length) = :part) "
            "LIMIT :most"
        )
        trigrams = sorted({part[at : at + 3] for at in range(len(part) - 2)})
        bounds = {"at_end": at_end, "length": len(part), "most": most + 1}
        values = {"trigrams": trigrams, "part": part, **bounds}
        return list(self._database.read(lambda c: list(c.execute(query, values).scalars())))

    def find(self, needs: Needs, most: int, before: int | None = None) -> list[Match]:
        """Return at most ``most`` documents that meet the needs, with numbers below ``before``, the newest
        first."""
        return self._database.read(lambda c: _Asking(c, needs, most, before).matches())


class _Asking:
    """Asks for the newest matches, in one view of the data."""

    def __init__(self, connection: Connection, needs: Needs, most: int, before: int | None) -> None:
        connection.execute(text(_WHILE_ASKING))
        self._connection, self._most = connection, most
        newest = text("SELECT max(id) FROM search_documents")
        self._before = before or (connection.execute(newest).scalar() or 0) + 1
        groups = (*((term,) for term in needs.terms), *needs.groups)
        self._wanted = [_any_of(group) for group in groups]
        self._wanted_apart = [each for group in groups for each in _apart(group)]
        self._unwanted = [_all_of(term) for term in needs.without if len(term.words) == 1]
        self._pairs = sorted({pair for group in groups for pair in _pairs_of(group)})
        self._since, self._until = needs.since, needs.until

    def matches(self) -> list[Match]:
        found = self._in_parts() + self._whole()
        found.sort(key=lambda match: -match.number)
        return found[: self._most]

    def _whole(self) -> list[Match]:
        """Return documents in one row: the newest stretches are asked first."""
        query = " & ".join((*self._wanted, *(f"!{each}" for each in self._unwanted), f"!'{_PART}'"))
        condition = "words @@ CAST(:query AS tsquery)"
        for at, bits in enumerate(STRETCH_BITS):
            newest, before = (_stretches(self._before - back)[at] for back in (0, 1 << bits))
            found = self._rows(condition, query=f"('{newest}' | '{before}') & {query}")
            if len(found) >= self._most:
                return found
        return self._rows(condition, query=query)

    def _in_parts(self) -> list[Match]:
        """Return documents in several rows: each word may be in any of them."""
        queries = [
            *(("INTERSECT", each) for each in self._wanted_apart),
            *(("EXCEPT", each) for each in self._unwanted),
        ]
        select = "SELECT document FROM search_documents WHERE words @@ CAST(:query{} AS tsquery)"
        sql = " ".join(f"{how} {select.format(at)}" for at, (how, _) in enumerate(queries))
        values = {f"query{at}": f"'{_PART}' & {each}" for at, (_, each) in enumerate(queries)}
        return self._rows(f"id IN ({sql.removeprefix('INTERSECT ')})", **values)

    def _rows(self, condition: str, **values: Any) -> list[Match]:
        """Return the newest rows that meet a condition and all that is not in the words."""
        conditions = [condition, "id < :before"]
        for at, pair in enumerate(self._pairs):
            conditions.append(f"get_bit(pairs, :pair{at} % (8 * octet_length(pairs))) = 1")
            values[f"pair{at}"] = pair
        for name, sign, time in (("since", ">=", self._since), ("until", "<", self._until)):
            if time is not None:
                conditions.append(f"at {sign} :{name}")
                values[name] = time
        # Not in the order of the key: Postgres would try one document after the other.
        query = text(
            "SELECT d.id, d.kind, r.job_id, r.run_id, d.message, d.position, d.at, d.length FROM ("
            "SELECT id, run, kind, message, position, at, length FROM search_documents "
            f"WHERE {' AND '.join(conditions)} ORDER BY id + 0 DESC LIMIT :most"
            ") AS d JOIN search_runs AS r ON r.number = d.run"
        )
        values |= {"before": self._before, "most": self._most}
        return [
            Match(number, Place(KINDS[kind], *place), at, length)
            for number, kind, *place, at, length in self._connection.execute(query, values)
        ]


def _any_of(group: Sequence[Term]) -> str:
    return f"({' | '.join(map(_all_of, group))})"


def _all_of(term: Term) -> str:
    words = [f"'{word}'" for word in term.words]
    return f"({' & '.join(words)}{':*' if term.is_prefix else ''})"


def _apart(group: Sequence[Term]) -> Iterator[str]:
    """Yield what a document in several rows needs, each in any of the rows."""
    if len(group) > 1:
        first = [Term(each.words[:1], each.is_prefix and len(each.words) == 1) for each in group]
        yield _any_of(first)
        return
    *words, last = group[0].words
    yield from (_all_of(Term((word,))) for word in words)
    yield _all_of(Term((last,), group[0].is_prefix))


def _pairs_of(group: Sequence[Term]) -> Collection[int]:
    """Return the neighbours in every document with one of the terms; long runs have all pairs."""
    pairs = []
    for term in group:
        words = term.words
        if term.is_prefix and len(words[-1]) < SHORTEST_PART:
            words = words[:-1]  # the third letter is not known
        if words != (LONG,):
            pairs.append(set(_pairs(words)))
    return set.intersection(*pairs) if pairs else ()

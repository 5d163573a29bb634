"""The index of a Postgres database: a ``tsvector`` of each document's words, under GIN.

The words are ours and are cast to ``tsvector`` as text: Postgres' parser would take paths and versions
for words of their own. GIN tells which documents have some words; a search is for the newest, so it
asks for the newest stretch of documents first, and for all only if that gives too few.

Words side by side are kept as a signature: for each pair of neighbours one bit of ``pairs``, chosen by
the end of the first word and the start of the second. A document whose bits are set probably has the
phrase. Positions in the ``tsvector`` would take twice as much (docs/decisions/0012).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any
from zlib import crc32

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    func,
    or_,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import insert

from runner.core.search import LONG, MARK, SHORTEST_PART, Term
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
    entry_of,
)
from runner.store.database import Database
from runner.store.jobs import SESSIONS
from runner.store.tables import blocks, compactions, jobs, runs, verifications

# Documents that are indexed together; a follower takes so few that a worker's other threads go on.
_BATCH, _SMALL_BATCH = 16_384, 200
_RUNS_AT_ONCE, _ROWS_AT_ONCE = 100, 20

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

# Each document has a word for its stretch: 16,384 documents that were indexed one after the other.
_STRETCH_BITS = 14
_STRETCHES_ASKED = (2, 12)

# A tsvector has less than 1 MB. The words of a longer text are in several rows, its parts.
_MOST_BYTES = 1_000_000
_PART = f"{MARK}part"

_BITS_A_PAIR = 8
_MOST_PAIR_BYTES = 65_536
_ALL_PAIRS = b"\xff"  # the signature of a text that may have any phrase

_TABLES = ("search_documents", "search_words", "search_runs")
_COPY = """
COPY search_documents (id, document, run, message, position, kind, at, length, pairs, words)
FROM STDIN
"""

_search_runs = Table(
    "search_runs",
    MetaData(),
    Column("number", Integer, primary_key=True),
    Column("job_id", Text),
    Column("run_id", Text),
    Column("seen", BigInteger),
    Column("message", Integer),
    Column("positions", ARRAY(Integer)),
    Column("compactions", Integer),
    Column("verifications", ARRAY(Integer)),
)
_INSERT_RUNS = insert(_search_runs)
_NOTE = _INSERT_RUNS.on_conflict_do_update(
    index_elements=[_search_runs.c.number],
    set_={each.name: each for each in _INSERT_RUNS.excluded},
)

# Whatever is added to a run makes one of its counters grow.
_COUNTED = runs.c.revision + runs.c.event_count + runs.c.message_count
_IS_OF_RUN = and_(_search_runs.c.run_id == runs.c.id, _search_runs.c.job_id == runs.c.job_id)
_IS_OF_JOB = and_(_search_runs.c.run_id == "", _search_runs.c.job_id == jobs.c.id)
_IS_CHANGED = or_(_search_runs.c.number.is_(None), _search_runs.c.seen != _COUNTED)
_RUNS = runs.join(jobs, jobs.c.id == runs.c.job_id).outerjoin(_search_runs, _IS_OF_RUN)
_CHANGED_RUNS = (
    select(
        runs.c.id,
        runs.c.job_id.label("of_job"),
        jobs.c.source,
        _COUNTED.label("counted"),
        *(column for column in _search_runs.c if column.name not in ("job_id", "run_id")),
    )
    .select_from(_RUNS)
    .where(_IS_CHANGED)
)
_NEW_JOBS = SYSTEMS.query.select_from(jobs.outerjoin(_search_runs, _IS_OF_JOB)).where(
    _search_runs.c.number.is_(None)
)

# What is new of a run, given by the names of ``_Seen``.
_NEW_BLOCKS = (
    BLOCKS.query.where(
        blocks.c.run_id == bindparam("run_id"),
        blocks.c.message >= bindparam("message"),
        or_(
            blocks.c.message > bindparam("message"),
            blocks.c.position.not_in(bindparam("positions", expanding=True)),
        ),
    )
    .order_by(blocks.c.message, blocks.c.position)
    .limit(_ROWS_AT_ONCE)
)
_NEW_COMPACTIONS = (
    COMPACTIONS.query.where(
        compactions.c.run_id == bindparam("run_id"),
        compactions.c.number > bindparam("compactions"),
    )
    .order_by(compactions.c.number)
    .limit(_ROWS_AT_ONCE)
)
_NEW_VERIFICATIONS = (
    VERIFICATIONS.query.where(
        verifications.c.run_id == bindparam("run_id"),
        verifications.c.ended_at.is_not(None),
        verifications.c.number.not_in(bindparam("verifications", expanding=True)),
    )
    .order_by(verifications.c.number)
    .limit(_ROWS_AT_ONCE)
)


class PostgresIndex:
    """``Index`` of a Postgres database."""

    def __init__(self, database: Database, tell: Tell, batch: int | None = None) -> None:
        self._database = database
        self._tell = tell
        self._batch = batch or _BATCH

    @contextmanager
    def up_to_date(self, progress: Progress) -> Iterator[PostgresLookup]:
        """See the port."""
        if not self._database.read(_is_up_to_date):
            self._add_all(progress)
        yield PostgresLookup(self._database)

    def follow(self) -> int:
        """See the port."""

        def add(connection: Connection) -> int:
            query = text("SELECT pg_try_advisory_xact_lock(:lock)").bindparams(lock=_LOCK)
            if not connection.execute(query).scalar_one():
                return 0
            most = min(self._batch, _SMALL_BATCH)
            return self._add(connection, most, lambda _added: None)

        if self._database.read(_is_up_to_date):
            return 0
        return self._database.write(add)

    def renew(self, progress: Progress) -> int:
        """See the port."""

        def empty(connection: Connection) -> None:
            _lock(connection)
            connection.execute(text(f"TRUNCATE {', '.join(_TABLES)}"))

        self._database.write(empty)
        return self._add_all(progress)

    def size(self) -> int:
        """See the port."""
        sizes = " + ".join(f"pg_total_relation_size('{table}')" for table in _TABLES)
        query = text(f"SELECT {sizes}")
        return int(self._database.read(lambda connection: connection.execute(query).scalar_one()))

    def _add_all(self, progress: Progress) -> int:
        total = 0

        def add(connection: Connection) -> int:
            _lock(connection)
            for setting in _WHILE_ADDING:
                connection.execute(text(setting))
            left = self._database.read(_count_left)
            added = self._add(
                connection,
                self._batch,
                lambda added: progress(total + added, total + max(left, added)),
            )
            connection.execute(text("SELECT gin_clean_pending_list('ix_search_documents_words')"))
            return added

        while added := self._database.write(add):
            total += added
        progress(total, total)
        return total

    def _add(self, connection: Connection, most: int, added: Callable[[int], None]) -> int:
        """Add the next documents. While Postgres takes them in, the next ones are read on another
        connection, which sees what was committed before the lock was taken, or after."""
        rows = _Rows(connection)
        with self._database.reading() as source:
            news = _News(source, rows.next_run, most, self._tell)
            now = time.time()
            driver: Any = connection.connection.driver_connection
            with driver.cursor() as cursor, cursor.copy(_COPY) as copy:
                for run, document in news.documents():
                    for row in rows.of(run, entry_of(document, now, self._tell)):
                        copy.write_row(row)
                    added(rows.documents)
        rows.finish(news.forgotten)
        if news.seen:
            connection.execute(_NOTE, [asdict(each) for each in news.seen])
        return rows.documents


def _lock(connection: Connection) -> None:
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)").bindparams(lock=_LOCK))


def _is_up_to_date(source: Connection) -> bool:
    changed = select(runs.c.id).select_from(_RUNS).where(_IS_CHANGED)
    return all(source.execute(query.limit(1)).first() is None for query in (_NEW_JOBS, changed))


def _count_left(source: Connection) -> int:
    """Return about how many blocks are still to be indexed."""
    messages = runs.c.message_count - func.coalesce(_search_runs.c.message, 0)
    query = select(func.sum(func.greatest(messages, 1))).select_from(_RUNS).where(_IS_CHANGED)
    return int(source.execute(query).scalar() or 0)


@dataclass(frozen=True, slots=True)
class _Seen:
    """How much of a run the index holds."""

    number: int  # of the run in the index
    job_id: str
    run_id: str = ""  # empty for a system prompt
    seen: int = 0  # the sum of the run's counters; negative until all of it is indexed
    message: int = 0  # the last message: it may grow, as results of one reply come in any order
    positions: tuple[int, ...] = ()  # the blocks of that message
    compactions: int = 0
    verifications: tuple[int, ...] = ()

    def with_block(self, row: Any) -> _Seen:
        before = self.positions if row.message == self.message else ()
        return replace(self, message=row.message, positions=(*before, row.position))

    def with_compaction(self, row: Any) -> _Seen:
        return replace(self, compactions=row.number)

    def with_verification(self, row: Any) -> _Seen:
        return replace(self, verifications=(*self.verifications, row.number))


_OF_RUN: tuple[tuple[Origin, Select[Any], Callable[[_Seen, Any], _Seen]], ...] = (
    (BLOCKS, _NEW_BLOCKS, _Seen.with_block),
    (COMPACTIONS, _NEW_COMPACTIONS, _Seen.with_compaction),
    (VERIFICATIONS, _NEW_VERIFICATIONS, _Seen.with_verification),
)


class _News:
    """Reads what the index lacks: documents of jobs that it does not know, and of runs whose counters
    have changed. The counters are read with what they count, in one view of the data.

    Args:
        next_run: the number for the next run that the index does not know.
        most: documents; fewer if their texts are long.
    """

    def __init__(self, source: Connection, next_run: int, most: int, tell: Tell) -> None:
        self._source, self._next_run = source, next_run
        self._reader = Reader(source, tell)
        self._left, self._room = most, most * CHARACTERS_EACH
        self.seen: list[_Seen] = []  # what the index holds after the documents were added
        self.forgotten: list[int] = []  # numbers of runs that were read again from the start

    def documents(self) -> Iterator[tuple[int, Document]]:
        """Yield documents, each with the number of its run."""
        for row in self._pages(_NEW_JOBS, jobs.c.id):
            seen = _Seen(self._new_number(), row.id)
            yield from self._taken(seen, SYSTEMS.documents(self._reader, row))
            self.seen.append(seen)
        for row in self._pages(_CHANGED_RUNS, runs.c.id):
            yield from self._of_run(row)

    def _of_run(self, row: Any) -> Iterator[tuple[int, Document]]:
        seen = self._seen_before(row)
        for origin, new, note in _OF_RUN:
            rows: Sequence[Any] = range(_ROWS_AT_ONCE)
            while len(rows) == _ROWS_AT_ONCE:
                rows = self._source.execute(new, asdict(seen)).all()
                for each in rows:
                    yield from self._taken(seen, origin.documents(self._reader, each))
                    seen = note(seen, each)
                    if self._is_full:
                        self.seen.append(replace(seen, seen=-row.counted))
                        return
        self.seen.append(replace(seen, seen=row.counted))

    def _seen_before(self, row: Any) -> _Seen:
        if row.number is None:
            return _Seen(self._new_number(), row.of_job, row.id)
        if row.source == SESSIONS and row.seen != -row.counted:
            self.forgotten.append(row.number)  # an imported session may grow anywhere
            return _Seen(row.number, row.of_job, row.id)
        return _Seen(
            row.number,
            row.of_job,
            row.id,
            message=row.message,
            positions=tuple(row.positions),
            compactions=row.compactions,
            verifications=tuple(row.verifications),
        )

    @property
    def _is_full(self) -> bool:
        return self._left <= 0 or self._room <= 0

    def _taken(self, seen: _Seen, documents: Iterator[Document]) -> Iterator[tuple[int, Document]]:
        for document in documents:
            self._left -= 1
            self._room -= len(document.text or "")
            yield seen.number, document

    def _new_number(self) -> int:
        self._next_run += 1
        return self._next_run - 1

    def _pages(self, query: Select[Any], id: Column[str]) -> Iterator[Any]:
        """Yield the rows of a query in the order of their ids, until enough was read."""
        after = ""
        page = query.order_by(id).limit(_RUNS_AT_ONCE)
        while rows := self._source.execute(page.where(id > after)).all():
            for row in rows:
                if self._is_full:
                    return
                yield row
            after = rows[-1].id


class _Rows:
    """Makes the rows of documents, after those that the index has. Its caller holds the lock."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._first = self._next = self._after("id", "search_documents")
        self.next_run = self._after("number", "search_runs")
        self.documents = 0
        self._words: set[str] = set()

    def _after(self, column: str, table: str) -> int:
        query = text(f"SELECT coalesce(max({column}), 0) + 1 FROM {table}")
        return int(self._connection.execute(query).scalar_one())

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
                self._next,
                document,
                run,
                place.message,
                place.position,
                KINDS.index(place.kind),
                entry.at,
                len(entry.words),
                pairs,
                " ".join((*facets, _stretch(self._next), *part)),
            )
            self._next += 1
        self.documents += 1

    def finish(self, forgotten: Sequence[int]) -> None:
        """Add the words to the vocabulary, and delete what was of some runs before."""
        words = sorted(word for word in self._words if len(word) >= SHORTEST_PART)
        add = (
            "INSERT INTO search_words SELECT unnest(CAST(:words AS text[])) ON CONFLICT DO NOTHING"
        )
        self._connection.execute(text(add), {"words": words})
        delete = (
            "DELETE FROM search_documents WHERE run = ANY(CAST(:runs AS integer[])) AND id < :id"
        )
        if forgotten:
            self._connection.execute(text(delete), {"runs": list(forgotten), "id": self._first})


def _parts(words: Collection[str]) -> Iterator[Collection[str]]:
    """Yield all words in parts that fit into a ``tsvector``."""
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


def _stretch(number: int) -> str:
    return f"{MARK}n{number >> _STRETCH_BITS}"


def _signature(words: Sequence[str]) -> bytes:
    """Return one bit for each pair of neighbours, in the order of Postgres' ``get_bit``."""
    pairs = {_pair(first, second) for first, second in set(pairwise(words))}
    size = min(len(pairs) * _BITS_A_PAIR // 8 + 1, _MOST_PAIR_BYTES)
    signature = bytearray(size)
    for pair in pairs:
        bit = pair % (8 * size)
        signature[bit >> 3] |= 1 << (bit & 7)
    return bytes(signature)


@lru_cache(maxsize=100_000)
def _pair(first: str, second: str) -> int:
    """Return the number of two neighbours, which are known if three letters of each are."""
    return crc32(f"{first[-SHORTEST_PART:]} {second[:SHORTEST_PART]}".encode())


class PostgresLookup:
    """``Lookup`` in the tables."""

    knows_phrases = False

    def __init__(self, database: Database) -> None:
        self._database = database

    def words_with(self, part: str, most: int, *, at_end: bool = False) -> list[str]:
        """See the port."""
        query = text(
            "SELECT word FROM search_words WHERE search_trigrams(word) @> CAST(:trigrams AS text[]) "
            "AND strpos(word, :part) > 0 AND (NOT :at_end OR right(word, :length) = :part) "
            "LIMIT :most"
        )
        values = {
            "trigrams": sorted({part[at : at + 3] for at in range(len(part) - 2)}),
            "part": part,
            "at_end": at_end,
            "length": len(part),
            "most": most + 1,
        }
        return list(self._database.read(lambda c: list(c.execute(query, values).scalars())))

    def find(self, needs: Needs, most: int, before: int | None = None) -> list[Match]:
        """See the port."""
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
        newest = self._before >> _STRETCH_BITS
        for count in _STRETCHES_ASKED:
            if count <= newest:
                numbers = range(newest, newest - count, -1)
                stretches = " | ".join(f"'{MARK}n{number}'" for number in numbers)
                found = self._rows(
                    "words @@ CAST(:query AS tsquery)", query=f"({stretches}) & {query}"
                )
                if len(found) >= self._most:
                    return found
        return self._rows("words @@ CAST(:query AS tsquery)", query=query)

    def _in_parts(self) -> list[Match]:
        """Return documents in several rows: each word may be in any of them."""
        queries = [
            *(("INTERSECT", each) for each in self._wanted),
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
        if self._since is not None:
            conditions.append("at >= :since")
            values["since"] = self._since
        if self._until is not None:
            conditions.append("at < :until")
            values["until"] = self._until
        # Not in the order of the key: Postgres would try one document after the other.
        query = text(
            "SELECT d.*, r.job_id, r.run_id FROM ("
            "SELECT id, run, kind, message, position, at, length FROM search_documents "
            f"WHERE {' AND '.join(conditions)} ORDER BY id + 0 DESC LIMIT :most"
            ") AS d JOIN search_runs AS r ON r.number = d.run"
        )
        values |= {"before": self._before, "most": self._most}
        return [
            Match(
                row.id,
                Place(KINDS[row.kind], row.job_id, row.run_id, row.message, row.position),
                row.at,
                row.length,
            )
            for row in self._connection.execute(query, values)
        ]


def _any_of(group: Sequence[Term]) -> str:
    return f"({' | '.join(map(_all_of, group))})"


def _all_of(term: Term) -> str:
    """Return the words of a term as a ``tsquery``."""
    words = [f"'{word}'" for word in term.words]
    return f"({' & '.join(words)}{':*' if term.is_prefix else ''})"


def _pairs_of(group: Sequence[Term]) -> Iterator[int]:
    """Yield the pairs of neighbours that every document with one of the terms has. Those with a long run
    have all pairs."""
    terms = [term for term in group if term.words != (LONG,)]
    pairs = [
        {
            _pair(first, second)
            for at, (first, second) in enumerate(pairwise(term.words), 2)
            # of a shorter start the third letter is not known
            if at < len(term.words) or not term.is_prefix or len(second) >= SHORTEST_PART
        }
        for term in terms
    ]
    if pairs:
        yield from set.intersection(*pairs)

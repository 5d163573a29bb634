"""What a Postgres database holds that its index does not, found by what its runs count.

Whatever is added to a run makes one of its counters grow (its revision, its events, its messages): a
run whose sum is the one that was seen last has nothing new. Only the last message of a run grows, as
the results of one reply may be stored in any order: of that one the index knows each block. (A session
that was imported and went on may grow anywhere: whoever adds to it has the index forget it.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

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
    system_document,
    system_rows,
    verification_document,
    verification_place,
    verification_rows,
)
from runner.store.search.unread import read_or_leave_out
from runner.store.tables import blocks, compactions, jobs, runs, tool_outputs, verifications

# Apart from the other tables, which are the same on both databases.
search_runs = Table(
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

_COUNTED = runs.c.revision + runs.c.event_count + runs.c.message_count
_BESIDE = (
    runs.c.compaction_count,
    select(func.count())
    .where(verifications.c.run_id == runs.c.id, verifications.c.ended_at.is_not(None))
    .scalar_subquery()
    .label("ended_verifications"),
)
_KNOWN = (
    search_runs.c.message,
    search_runs.c.positions,
    search_runs.c.compactions.label("known_compactions"),
    search_runs.c.verifications.label("known_verifications"),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """How far the index has come with a run: the sum of its counters, its last message with the blocks
    of it, how many compactions, and which verifications. Of a job's own text ``run_id`` is empty."""

    job_id: str
    run_id: str = ""
    seen: int = 0
    message: int = 0
    positions: tuple[int, ...] = ()
    compactions: int = 0
    verifications: tuple[int, ...] = ()


class _Changed(NamedTuple):
    """A run with something new: as the index knows it, ``seen`` as it is now, and how many compactions
    and ended verifications there are."""

    seen: Seen
    compactions: int
    ended: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What is next to be indexed, and how far the index has come then."""

    documents: tuple[Document, ...]
    seen: tuple[Seen, ...]


def count_left(connection: Connection) -> int:
    """How many blocks are still to be indexed, about."""
    messages = runs.c.message_count - func.coalesce(search_runs.c.message, 0)
    query = select(func.sum(func.greatest(messages, 1)))
    query = query.select_from(runs.outerjoin(search_runs, _IS_OF_RUN)).where(_IS_NEW)
    return int(connection.execute(query).scalar() or 0)


def is_up_to_date(connection: Connection) -> bool:
    """Whether there is nothing to be indexed."""
    new_run = select(runs.c.id).select_from(runs.outerjoin(search_runs, _IS_OF_RUN)).where(_IS_NEW)
    new_job = select(jobs.c.id).select_from(jobs.outerjoin(search_runs, _IS_OF_JOB)).where(_NO_ROW)
    return all(connection.execute(query.limit(1)).first() is None for query in (new_run, new_job))


def batches(connection: Connection, most: int, tell: Tell) -> Iterator[Batch]:
    """What of the database is not in the index, in the order of the runs. The counters are read before
    what they count, so that nothing is taken for seen that is not. What the index has come to is known
    as it was before the first of them.

    Args:
        most: documents that come together, about; fewer where they hold much text.
        tell: is told of what cannot be read.
    """
    reading = _Reading(connection, most, tell)
    for _ in reading.each():
        if reading.is_full:
            yield reading.taken()
    if reading.has_any:
        yield reading.taken()


_IS_OF_RUN = and_(search_runs.c.run_id == runs.c.id, search_runs.c.job_id == runs.c.job_id)
_IS_OF_JOB = and_(search_runs.c.run_id == "", search_runs.c.job_id == jobs.c.id)
_NO_ROW = search_runs.c.number.is_(None)
_IS_NEW = or_(_NO_ROW, search_runs.c.seen != _COUNTED)


def _new_jobs(connection: Connection, most: int) -> Iterator[Any]:
    query = system_rows().select_from(jobs.outerjoin(search_runs, _IS_OF_JOB)).where(_NO_ROW)
    return _in_order(connection, query, jobs.c.id, most)


def _changed(connection: Connection, most: int) -> Iterator[_Changed]:
    query = (
        select(runs.c.id, runs.c.job_id, _COUNTED.label("now"), *_BESIDE, *_KNOWN)
        .select_from(runs.outerjoin(search_runs, _IS_OF_RUN))
        .where(_IS_NEW)
    )
    for row in _in_order(connection, query, runs.c.id, most):
        seen = Seen(row.job_id, row.id, row.now)
        if row.message is not None:
            seen = replace(
                seen,
                message=row.message,
                positions=tuple(row.positions),
                compactions=row.known_compactions,
                verifications=tuple(row.known_verifications),
            )
        yield _Changed(seen, row.compaction_count, row.ended_verifications)


def _in_order(
    connection: Connection, query: Select[Any], id: Column[str], most: int
) -> Iterator[Any]:
    """All rows of a query by their ids, so many at a time."""
    after = ""
    while rows := connection.execute(query.where(id > after).order_by(id).limit(most)).all():
        yield from rows
        after = rows[-1].id


_BLOCKS = (
    block_rows()
    .where(
        blocks.c.run_id == bindparam("run"),
        or_(
            blocks.c.message > bindparam("message"),
            and_(
                blocks.c.message == bindparam("message"),
                blocks.c.position.not_in(bindparam("positions", expanding=True)),
            ),
        ),
    )
    .order_by(blocks.c.message, blocks.c.position)
    .limit(bindparam("most"))
)
# About how many bytes the texts of blocks take, without unpacking them.
_SIZES = _BLOCKS.with_only_columns(
    func.coalesce(tool_outputs.c.size, func.pg_column_size(blocks.c.content))
)


class _Reading:
    """Reads documents, which are taken when there are enough."""

    def __init__(self, connection: Connection, most: int, tell: Tell) -> None:
        self._connection, self._tell = connection, tell
        self._jobs = Jobs(connection)
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self._documents: list[Document] = []
        self._seen: dict[tuple[str, str], Seen] = {}
        self._room = MOST_CHARACTERS

    @property
    def is_full(self) -> bool:
        return self._room <= 0 or len(self._documents) >= self._most

    @property
    def has_any(self) -> bool:
        return bool(self._seen)

    def taken(self) -> Batch:
        """What was read since this was asked last."""
        batch = Batch(tuple(self._documents), tuple(self._seen.values()))
        self._begin()
        return batch

    def each(self) -> Iterator[None]:
        """Read all that is new, a part of it at a time."""
        for row in _new_jobs(self._connection, self._most):
            self._add(Place("system", row.id), row.created_at, partial(system_document, row))
            self._note(Seen(row.id))
            yield
        for changed in _changed(self._connection, self._most):
            is_all = False
            while not is_all:
                changed, is_all = self._read(changed)
                yield

    def _read(self, changed: _Changed) -> tuple[_Changed, bool]:
        """Read what is new of a run, or the first of it: then it is not yet seen as it is now."""
        run, is_all = self._blocks(changed.seen)
        if is_all and changed.compactions > run.compactions:
            run = self._summaries(run)
        if is_all and changed.ended > len(run.verifications):
            run, is_all = self._verifications(run)
        self._note(run if is_all else replace(run, seen=-1))
        return changed._replace(seen=run), is_all

    def _blocks(self, run: Seen) -> tuple[Seen, bool]:
        new = {
            "run": run.run_id,
            "message": run.message,
            "positions": run.positions,
            "most": self._most,
        }
        sizes = self._connection.execute(_SIZES, new).scalars().all()
        new["most"] = count = _how_many(sizes, self._room)
        rows = self._connection.execute(_BLOCKS, new).all() if count else []
        for row in rows:
            document = partial(block_document, row, self._jobs)
            self._add(block_place(row), row.created_at, document)
            if row.ran_with is not None:
                ran = partial(ran_document, self._connection, row, self._jobs)
                self._add(ran_place(row), row.created_at, ran)
        if rows:
            last = rows[-1].message
            positions = tuple(row.position for row in rows if row.message == last)
            before = run.positions if last == run.message else ()
            run = replace(run, message=last, positions=(*before, *positions))
        return run, count == len(sizes) < self._most

    def _summaries(self, run: Seen) -> Seen:
        new = and_(compactions.c.run_id == run.run_id, compactions.c.number > run.compactions)
        summaries = compaction_rows().where(new).order_by(compactions.c.number)
        for row in self._connection.execute(summaries):
            document = partial(compaction_document, row, self._jobs)
            self._add(compaction_place(row), row.created_at, document)
            run = replace(run, compactions=row.number)
        return run

    def _verifications(self, run: Seen) -> tuple[Seen, bool]:
        ended = and_(
            verifications.c.run_id == run.run_id,
            verifications.c.ended_at.is_not(None),
            verifications.c.number.not_in(run.verifications),
        )
        query = select(verifications.c.number).where(ended).order_by(verifications.c.number)
        for number in self._connection.execute(query).scalars().all():
            if self.is_full:
                return run, False
            one = verification_rows().where(ended, verifications.c.number == number)
            row = self._connection.execute(one).one()
            verified = partial(verification_document, row, self._jobs)
            self._add(verification_place(row), row.ended_at, verified)
            run = replace(run, verifications=(*run.verifications, number))
        return run, True

    def _note(self, seen: Seen) -> None:
        self._seen[seen.run_id, seen.job_id] = seen

    def _add(self, place: Place, at: float, read: Callable[[], Document | None]) -> None:
        document = read_or_leave_out(place, at, read, self._tell)
        if document is not None:
            self._documents.append(document)
            self._room -= len(document.text or "")


def _how_many(sizes: Sequence[int], room: int) -> int:
    """How many of the first texts of these sizes there is room for, and one at least."""
    return min(len(sizes), 1 + sum(taken <= room for taken in accumulate(sizes)))

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

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    Table,
    Text,
    and_,
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
_KNOWN = (
    search_runs.c.message,
    search_runs.c.positions,
    search_runs.c.compactions,
    search_runs.c.verifications,
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


def next_batch(connection: Connection, most: int, tell: Tell) -> Batch:
    """What of the database is not in the index, or the first of it. The counters are read before what
    they count, so that nothing is taken for seen that is not.

    Args:
        most: documents, about; fewer where they hold much text.
        tell: is told of what cannot be read.
    """
    reading = _Reading(connection, most, tell)
    reading.jobs()
    for run in list(_changed(connection, most)):
        reading.run(run)
        if reading.is_full:
            break
    return Batch(tuple(reading.documents), tuple(reading.seen))


_IS_OF_RUN = and_(search_runs.c.run_id == runs.c.id, search_runs.c.job_id == runs.c.job_id)
_IS_OF_JOB = and_(search_runs.c.run_id == "", search_runs.c.job_id == jobs.c.id)
_NO_ROW = search_runs.c.number.is_(None)
_IS_NEW = or_(_NO_ROW, search_runs.c.seen != _COUNTED)


def _changed(connection: Connection, most: int) -> Iterator[Seen]:
    """Runs with something new, as the index knows them, ``seen`` as it is now."""
    query = (
        select(runs.c.id, runs.c.job_id, _COUNTED.label("now"), *_KNOWN)
        .select_from(runs.outerjoin(search_runs, _IS_OF_RUN))
        .where(_IS_NEW)
        .order_by(runs.c.id)
        .limit(most)
    )
    for row in connection.execute(query):
        if row.message is None:
            yield Seen(row.job_id, row.id, row.now)
        else:
            yield Seen(
                row.job_id,
                row.id,
                row.now,
                row.message,
                tuple(row.positions),
                row.compactions,
                tuple(row.verifications),
            )


class _Reading:
    """Reads documents until there are enough."""

    def __init__(self, connection: Connection, most: int, tell: Tell) -> None:
        self._connection, self._tell = connection, tell
        self._jobs = Jobs(connection)
        self._most, self._room = most, MOST_CHARACTERS
        self.documents: list[Document] = []
        self.seen: list[Seen] = []

    @property
    def is_full(self) -> bool:
        return self._room <= 0 or len(self.documents) >= self._most

    def jobs(self) -> None:
        """Read the jobs that are new."""
        new = system_rows().select_from(jobs.outerjoin(search_runs, _IS_OF_JOB)).where(_NO_ROW)
        for row in self._connection.execute(new.limit(self._most)):
            self._add(Place("system", row.id), row.created_at, partial(system_document, row))
            self.seen.append(Seen(row.id))

    def run(self, run: Seen) -> None:
        """Read what is new of a run, or the first of it: then it is not yet seen as it is now."""
        run, is_all = self._blocks(run)
        if is_all:
            run, is_all = self._beside(run)
        self.seen.append(run if is_all else replace(run, seen=-1))

    def _blocks(self, run: Seen) -> tuple[Seen, bool]:
        is_new = and_(
            blocks.c.run_id == run.run_id,
            or_(
                blocks.c.message > run.message,
                and_(
                    blocks.c.message == run.message,
                    blocks.c.position.not_in(run.positions),
                ),
            ),
        )
        query = block_rows().where(is_new).order_by(blocks.c.message, blocks.c.position)
        query = query.limit(self._most)
        sizes = self._connection.execute(query.with_only_columns(_SIZE)).scalars().all()
        count = _how_many(sizes, self._room)
        rows = self._connection.execute(query.limit(count)).all() if count else []
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

    def _beside(self, run: Seen) -> tuple[Seen, bool]:
        """What is new beside the blocks."""
        new = and_(compactions.c.run_id == run.run_id, compactions.c.number > run.compactions)
        summaries = compaction_rows().where(new).order_by(compactions.c.number)
        for row in self._connection.execute(summaries):
            document = partial(compaction_document, row, self._jobs)
            self._add(compaction_place(row), row.created_at, document)
            run = replace(run, compactions=row.number)
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

    def _add(self, place: Place, at: float, read: Callable[[], Document | None]) -> None:
        document = read_or_leave_out(place, at, read, self._tell)
        if document is not None:
            self.documents.append(document)
            self._room -= len(document.text or "")


# About how many bytes a block's text takes, without unpacking it.
_SIZE = func.coalesce(tool_outputs.c.size, func.pg_column_size(blocks.c.content))


def _how_many(sizes: Sequence[int], room: int) -> int:
    """How many of the first texts of these sizes there is room for, and one at least."""
    return min(len(sizes), 1 + sum(taken <= room for taken in accumulate(sizes)))

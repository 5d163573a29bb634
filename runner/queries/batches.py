"""The Message Batches that runs and jobs wait for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from runner.core.state import Rounds
from runner.store.batches import rounds_of
from runner.store.database import Database, reads
from runner.store.tables import batch_calls, batches, jobs

_IS_OPEN = batch_calls.c.ended_at.is_(None), batch_calls.c.result.is_(None)


@dataclass(frozen=True, slots=True)
class BatchedCall:
    """A call that waits for its result. Times are in seconds since the epoch."""

    asked_at: float
    api_id: str | None  # of its batch; None without one, or while nobody knows if it was made
    count: int | None  # of the calls of its batch; None: it waits for others
    expires_at: float | None


@dataclass(frozen=True, slots=True)
class LaneOfJob:
    lane: str
    unsent: int  # calls that no batch has yet
    sent: int  # calls in batches
    batches: int  # that have not ended
    rounds: Rounds


def waiting_calls(database: Database, run_ids: Collection[str]) -> dict[str, BatchedCall]:
    """Return, by run, the calls of runs that wait for a batch."""
    query = select(
        batch_calls.c.run_id,
        batch_calls.c.asked_at,
        *(batches.c[name] for name in ("api_id", "count", "expires_at")),
    ).outerjoin(batches, batches.c.id == batch_calls.c.batch_id)
    found = database.rows_in(query.where(*_IS_OPEN), batch_calls.c.run_id, run_ids)
    return {run_id: BatchedCall(*rest) for run_id, *rest in found}


def lanes_of(database: Database, job_ids: Sequence[str]) -> dict[str, str]:
    """Return the lanes of the jobs that have not always called the API one by one."""
    query = select(jobs.c.id, jobs.c.lane).where(jobs.c.lane.is_not(None))
    return dict(database.rows_in(query, jobs.c.id, job_ids))


@reads
def lane_of(connection: Connection, job_id: str) -> LaneOfJob:
    """Return the lane of a job by now, and what waits in it."""
    lane = connection.execute(select(jobs.c.lane).where(jobs.c.id == job_id)).scalar()
    counts = select(
        func.count(),
        func.count(batch_calls.c.batch_id),
        func.count(batch_calls.c.batch_id.distinct()),
    ).where(batch_calls.c.job_id == job_id, *_IS_OPEN)
    calls, sent, count = connection.execute(counts).one()
    rounds = rounds_of(connection, job_id)
    return LaneOfJob(lane or "realtime", calls - sent, sent, count, rounds)

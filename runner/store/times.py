"""Moves the time from which no model call of a job begins, and queues the runs that wait for that."""

from __future__ import annotations

from functools import partial

from sqlalchemy import ColumnElement, Connection, select, update

from runner.core.events import signed_event
from runner.core.run import RUNNER, Author
from runner.core.times import Moment
from runner.store.changes import MOST_AT_ONCE, add_job_events, locked_runs, queued, signed_change
from runner.store.database import Database
from runner.store.rules import lock_rules
from runner.store.tables import jobs, runs

_WAITS = (runs.c.state == "waiting") & (runs.c.reason == "finish_by")


def move_finish_by(
    database: Database, job_id: str, moment: Moment, now: float, *, author: Author
) -> list[str]:
    """Let model calls of a job begin until ``moment``, which has its instant, and return the ids of the
    runs that go on. Raises ``NotFoundError``."""

    def work(connection: Connection) -> None:
        lock_rules(connection, job_id)
        of_job = jobs.c.id == job_id
        columns = {"finish_by": moment.at, "finish_by_text": str(moment)}
        old = connection.execute(select(*(jobs.c[name] for name in columns)).where(of_job)).one()
        connection.execute(update(jobs).where(of_job).values(columns))
        moved = signed_event("finish_by_moved", author, old=dict(old._mapping), new=columns)
        add_job_events(connection, job_id, [moved], now)

    database.write(work)
    return queue_moved(database, now, jobs.c.id == job_id, author=author)


def queue_moved(
    database: Database, now: float, *of_jobs: ColumnElement[bool], author: Author = RUNNER
) -> list[str]:
    """Queue the runs again that wait although their job's ``finish_by`` is to come, and return their ids.
    Dispatchers look for these too: an attempt may have seen the old time and begun to wait since."""
    waiting = (
        select(runs.c.id)
        .join(jobs, jobs.c.id == runs.c.job_id)
        .where(jobs.c.finish_by > now, _WAITS, *of_jobs)
        .order_by(runs.c.id)
        .limit(MOST_AT_ONCE)
    )

    def work(connection: Connection, run_ids: list[str]) -> list[str]:
        found = locked_runs(connection, run_ids, _WAITS)
        for run in found:
            signed_change(
                connection, run, now, "resumed", author, queued(now), {"reason": "finish_by"}
            )
        return [run.id for run in found]

    moved: list[str] = []
    while run_ids := [run.id for run in database.rows(waiting)]:
        moved += database.write(partial(work, run_ids=run_ids))
    return moved

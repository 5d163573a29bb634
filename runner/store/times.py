"""The times of jobs' model calls: moving ``finish_by``, and runs that wait while a window is closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from sqlalchemy import ColumnElement, Connection, Float, bindparam, case, func, select, true, update

from runner.core.events import Event
from runner.core.run import FRESH, RUNNER, Author
from runner.core.shares import JobLoad
from runner.core.spec import JobSpec
from runner.core.times import Moment
from runner.store.changes import FREED, event_rows, resume, resumed_event, tell_of_job
from runner.store.database import MOST_AT_ONCE, Database
from runner.store.due_runs import FIRST
from runner.store.rules import lock_rules
from runner.store.specs import JobCache
from runner.store.statements import Row, execute, insert_many
from runner.store.tables import events, jobs, runs

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
        query = select(*(jobs.c[name] for name in columns)).where(of_job)
        old = connection.execute(query).mappings().one()
        connection.execute(update(jobs).where(of_job).values(columns))
        tell_of_job(connection, job_id, now, "finish_by_moved", author, old=dict(old), new=columns)

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
    )
    found = [run.id for run in database.rows(waiting)]
    event = resumed_event(author, "finish_by")
    return [each.id for each in resume(database, found, _WAITS, event, now)]


_opens, _deadline = bindparam("opens", type_=Float), bindparam("deadline", type_=Float)
# Of a run with a deadline: it ends then, in the window or not.
_ends = func.coalesce(runs.c.created_at + _deadline, _opens)
# A fork may have more to do before its next model call.
_IS_FRESH = runs.c.id.in_(
    FIRST.where(
        runs.c.fork_of.is_(None),
        func.coalesce(runs.c.created_at + _deadline > bindparam("now"), true()),
    ).with_for_update(skip_locked=True)
)
_BEGIN_LATER = (
    update(runs)
    .where(_IS_FRESH)
    .values(due_at=case((_ends < _opens, _ends), else_=_opens), reason=bindparam("why"))
    .returning(runs.c.id)
)
_WAIT_FOR_PERSON = (
    update(runs)
    .where(_IS_FRESH)
    .values(
        **{**FREED, "state": "waiting", "reason": "finish_by", "detail": ""},
        event_count=runs.c.event_count + 1,
    )
    .returning(runs.c.id, runs.c.event_count, runs.c.attempt)
)


def close_windows(
    database: Database, jobs_read: JobCache, loads: Sequence[JobLoad], now: float
) -> bool:
    """Make due runs wait that have not begun and may begin no model call now: the job's window has closed,
    or its ``finish_by`` has passed. A worker would claim them only to let them wait. True if any run
    waits."""
    due = {load.job_id: load.finish_by for load in loads if load.due}
    specs = jobs_read.specs(database, due)
    return sum(_close(database, id_, spec, due[id_], now) for id_, spec in specs.items()) > 0


def _close(
    database: Database, job_id: str, spec: JobSpec, finish_by: float | None, now: float
) -> bool:
    values = {"job": job_id, "rank": FRESH, "now": now, "most": MOST_AT_ONCE}
    values |= {"deadline": spec.limits.deadline}
    if finish_by is not None and finish_by <= now:
        work = partial(_wait_for_person, values=values)
    elif spec.times.window is not None and (start := spec.times.next_start(now)) is not None:
        values |= {"opens": start[0], "why": start[1]}
        work = partial(execute, statement=_BEGIN_LATER, values=values)
    else:
        return False
    found = False
    while database.write(work):
        found = True
    return found


def _wait_for_person(connection: Connection, values: Mapping[str, Any]) -> list[Row]:
    found = execute(connection, _WAIT_FOR_PERSON, values)
    waiting = Event("waiting", {"reason": "finish_by"})
    rows = [
        event_rows(run.id, [waiting], values["now"], after=run.event_count - 1, attempt=run.attempt)
        for run in found
    ]
    insert_many(connection, events, [*chain.from_iterable(rows)])
    return found

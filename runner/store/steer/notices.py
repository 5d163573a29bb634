"""What to tell people of: questions that nobody has been told of yet."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select, update

from runner.core.spec import JobSpec
from runner.store.conditions import IS_OPEN_APPROVAL
from runner.store.connection.database import Database
from runner.store.steer.questions import Asked, load_asked
from runner.store.tables import approvals, jobs, runs


@dataclass(frozen=True, slots=True)
class Notice:
    """Questions of a job that came up, and the shell command that the job runs to tell of them."""

    job_id: str
    job_name: str
    command: str
    asked: tuple[Asked, ...]


def take_notices(database: Database, now: float, most: int = 200) -> list[Notice]:
    """The new questions of each job that wants to be told of them. Each question is given once: who
    takes it, tells.

    Args:
        now: seconds since the epoch.
        most: how many questions to take at most.
    """
    untold = (
        select(approvals.c.id)
        .join(runs, runs.c.id == approvals.c.run_id)
        .where(IS_OPEN_APPROVAL, approvals.c.notified_at.is_(None))
        .order_by(approvals.c.asked_at, approvals.c.id)
        .limit(most)
    )
    found = database.read(lambda connection: connection.execute(untold).first())
    if found is None:
        return []

    def work(connection: Connection) -> list[Notice]:
        # Who answers holds a run and then its questions: waiting for them here could lock both out.
        locked = untold.with_for_update(skip_locked=True, of=approvals)
        taken = connection.execute(locked).scalars().all()
        connection.execute(
            update(approvals).where(approvals.c.id.in_(taken)).values(notified_at=now)
        )
        by_job: dict[str, list[Asked]] = {}
        for asked in load_asked(connection, approvals.c.id.in_(taken)):
            by_job.setdefault(asked.job_id, []).append(asked)
        query = select(jobs.c.id, jobs.c.name, jobs.c.spec).where(jobs.c.id.in_(by_job))
        return [
            Notice(job.id, job.name, command, tuple(by_job[job.id]))
            for job in connection.execute(query.order_by(jobs.c.id))
            if (command := JobSpec.from_json(job.spec).asking.notify)
        ]

    return database.write(work)

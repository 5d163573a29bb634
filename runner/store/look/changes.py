"""What was done to a job and its runs, and by whom."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from runner.core.journal.events import SIGNED
from runner.store.connection.database import Database
from runner.store.look.family.events import with_places
from runner.store.tables import events, job_events, runs

# The job's own event tells of all the runs that were submitted with it.
_OF_RUNS = tuple(kind for kind in SIGNED if kind != "run_submitted")


def changes_of(database: Database, job_id: str) -> list[dict[str, Any]]:
    """The events of a job, and those of its runs that say who did something; in order of time.

    Returns:
        ``job_id`` and ``run_id`` (None: of the job), then ``events``' columns; those of a run with its
        place in its tree, as ``family.events`` has them.
    """
    of_job = select(job_events).where(job_events.c.job_id == job_id).order_by(job_events.c.number)
    of_runs = (
        select(events)
        .join(runs, runs.c.id == events.c.run_id)
        .where(runs.c.job_id == job_id, events.c.type.in_(_OF_RUNS))
        .order_by(events.c.run_id, events.c.number)
    )

    def work(connection: Connection) -> list[dict[str, Any]]:
        found = [
            {"job_id": job_id, "run_id": None, "attempt": None, **row}
            for row in connection.execute(of_job).mappings()
        ]
        found += [{"job_id": job_id, **row} for row in connection.execute(of_runs).mappings()]
        return with_places(connection, sorted(found, key=lambda event: event["at"]))

    return database.read(work)

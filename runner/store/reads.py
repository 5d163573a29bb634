"""Who read the transcript of a run, for jobs that want it recorded."""

from __future__ import annotations

from sqlalchemy import Connection, select

from runner.core.run import Author
from runner.core.spec import JobSpec
from runner.store.changes import locked_runs, signed_change
from runner.store.database import Database
from runner.store.tables import jobs, runs


def record_read(database: Database, run_id: str, now: float, author: Author) -> None:
    """Append to a run that a person read its transcript, if its job wants that recorded."""
    query = select(jobs.c.spec).join(runs, runs.c.job_id == jobs.c.id).where(runs.c.id == run_id)
    if not any(JobSpec.from_json(row.spec).record_reads for row in database.rows(query)):
        return

    def work(connection: Connection) -> None:
        for run in locked_runs(connection, [run_id]):
            signed_change(connection, run, now, "transcript_read", author, {})

    database.write(work)

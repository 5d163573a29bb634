"""Jobs' shares of the workers' slots: what a job was submitted with, and changing its priority.

A claim of a job with a limit locks the job's row here before it locks anything else.
"""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from runner.core.events import signed_event
from runner.core.run import Author
from runner.core.shares import NORMAL
from runner.core.spec import JobSpec
from runner.store.changes import add_job_events
from runner.store.database import Database
from runner.store.rules import lock_rules
from runner.store.tables import job_shares


def insert_shares(
    connection: Connection, job_id: str, spec: JobSpec, workspace_id: str | None
) -> None:
    row = {"job_id": job_id, "weight": spec.priority, "max_concurrency": spec.max_concurrency}
    if spec.workspace is not None and spec.workspace.max_concurrency is not None:
        row |= {
            "workspace_id": workspace_id,
            "workspace_concurrency": spec.workspace.max_concurrency,
        }
    connection.execute(insert(job_shares).values(row))


def priority_of(database: Database, job_id: str) -> float:
    return database.read(lambda connection: _weight(connection, job_id))


def set_priority(
    database: Database, job_id: str, weight: float, now: float, author: Author
) -> None:
    """Change the weight of a job; its next runs are chosen by it. Raises ``NotFoundError``."""

    def work(connection: Connection) -> None:
        lock_rules(connection, job_id)
        old = _weight(connection, job_id)
        changed = update(job_shares).where(job_shares.c.job_id == job_id).values(weight=weight)
        if connection.execute(changed).rowcount == 0:  # of a job from before there were shares
            connection.execute(insert(job_shares).values(job_id=job_id, weight=weight))
        event = signed_event(
            "priority_changed", author, old={"priority": old}, new={"priority": weight}
        )
        add_job_events(connection, job_id, [event], now)

    database.write(work)


def _weight(connection: Connection, job_id: str) -> float:
    query = select(job_shares.c.weight).where(job_shares.c.job_id == job_id)
    weight: float | None = connection.execute(query).scalar()
    return NORMAL if weight is None else weight

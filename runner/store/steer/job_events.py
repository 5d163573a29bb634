"""What happened to a job as a whole, for the record."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, func, insert, select

from runner.core.journal.events import Event
from runner.store.tables import job_events


def add_job_events(
    connection: Connection, job_id: str, happened: Iterable[Event], now: float
) -> None:
    """Append events to a job that is locked (``store.rules.lock_rules``), or is being submitted.

    Args:
        now: seconds since the epoch.
    """
    newest = select(func.max(job_events.c.number)).where(job_events.c.job_id == job_id)
    last = connection.execute(newest).scalar() or 0
    rows = [
        {"job_id": job_id, "number": number, "at": now, "type": event.type, "data": event.data}
        for number, event in enumerate(happened, last + 1)
    ]
    if rows:
        connection.execute(insert(job_events), rows)

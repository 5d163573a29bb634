"""Reads for people who watch a job: what its runs do now, what the model said last, what happens to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, select

from runner.store.database import Database
from runner.store.tables import blocks, events, job_events, runs

# As many as the events of a turn with several calls: the start of what a run does now is among them.
_NEWEST = 24


def newest_events(database: Database, run_ids: Sequence[str]) -> Mapping[str, list[Row[Any]]]:
    """Return the newest events of each run, in order."""
    query = (
        select(events)
        .join(runs, runs.c.id == events.c.run_id)
        .where(runs.c.id.in_(run_ids), events.c.number > runs.c.event_count - _NEWEST)
        .order_by(events.c.run_id, events.c.number)
    )
    found: defaultdict[str, list[Row[Any]]] = defaultdict(list)
    for row in database.rows(query) if run_ids else ():
        found[row.run_id].append(row)
    return found


def last_texts(database: Database, run_ids: Sequence[str]) -> dict[str, str]:
    """Return the last text that the model wrote, by run that has any."""
    last = (
        select(blocks.c.content)
        .where(blocks.c.run_id == runs.c.id, blocks.c.role == "assistant", blocks.c.type == "text")
        .order_by(blocks.c.message.desc(), blocks.c.position.desc())
        .limit(1)
        .scalar_subquery()
    )
    query = select(runs.c.id, last.label("content")).where(runs.c.id.in_(run_ids))
    found = database.rows(query) if run_ids else ()
    return {row.id: row.content["text"] for row in found if row.content}


def job_events_after(database: Database, job_id: str, number: int) -> list[Row[Any]]:
    """Return the events of a job, without those of its runs, after the one with this number."""
    query = select(job_events).where(job_events.c.job_id == job_id, job_events.c.number > number)
    return [*database.rows(query.order_by(job_events.c.number))]

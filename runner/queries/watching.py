"""Queries for live screens and pages: events of a job and its runs, and versions of what pages show."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, func, select

from runner.core.agents import lineage
from runner.store.conditions import IS_OPEN_APPROVAL, in_trees
from runner.store.database import Database
from runner.store.tables import approvals, events, job_events, job_pauses, jobs, runs

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


def job_events_after(database: Database, job_id: str, number: int) -> list[Row[Any]]:
    """Return the events of a job, without those of its runs, after the one with this number."""
    query = select(job_events).where(job_events.c.job_id == job_id, job_events.c.number > number)
    return [*database.rows(query.order_by(job_events.c.number))]


# --- Versions of what pages watch ---


JOBS, INBOX = "jobs", "inbox"
_OPEN = ("queued", "running", "waiting")


def versions(database: Database, topics: Collection[str]) -> dict[str, str]:
    """The version of each topic: ``jobs``, ``inbox``, ``job:ID`` or ``run:ID``. The version of a run also
    changes with its sub-agents. Topics that do not exist are left out."""
    return database.read(lambda connection: dict(_versions(connection, topics)), snapshot=False)


def _versions(connection: Connection, topics: Collection[str]) -> Iterator[tuple[str, str]]:
    if JOBS in topics:
        by_state = select(runs.c.job_id, runs.c.state, func.count(), func.sum(runs.c.turns))
        by_state = by_state.where(runs.c.state.in_(_OPEN)).group_by(runs.c.job_id, runs.c.state)
        newest = connection.execute(select(func.max(jobs.c.id))).scalar()
        yield JOBS, _digest(newest, sorted(map(tuple, connection.execute(by_state))))
    if INBOX in topics:
        asked = select(approvals.c.id).join(runs, runs.c.id == approvals.c.run_id)
        found = connection.execute(asked.where(IS_OPEN_APPROVAL)).scalars()
        yield INBOX, _digest(sorted(found))
    by_kind: defaultdict[str, list[str]] = defaultdict(list)
    for kind, _, name in (topic.partition(":") for topic in topics):
        by_kind[kind].append(name)
    if by_kind["job"]:
        counts = select(runs.c.job_id, func.count(), func.sum(runs.c.event_count), job_pauses.c.at)
        counts = counts.outerjoin(job_pauses, job_pauses.c.job_id == runs.c.job_id)
        counts = counts.where(runs.c.job_id.in_(by_kind["job"]))
        for job_id, *numbers in connection.execute(counts.group_by(runs.c.job_id, job_pauses.c.at)):
            yield f"job:{job_id}", _digest(*map(str, numbers))
    if by_kind["run"]:
        roots = {lineage(run_id)[0] for run_id in by_kind["run"]}
        counted = select(runs.c.id, runs.c.event_count, runs.c.state).where(in_trees(roots))
        rows = connection.execute(counted.order_by(runs.c.id)).all()
        for run_id in by_kind["run"]:
            below = [tuple(row) for row in rows if lineage(row.id)[0] == lineage(run_id)[0]]
            if below:
                yield f"run:{run_id}", _digest(below)


def _digest(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]

"""Versions of what pages watch: a version changes when its topic does. One look serves all pages."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterator

from sqlalchemy import Connection, func, select

from runner.core.agents import lineage
from runner.store.conditions import IS_OPEN_APPROVAL, in_trees
from runner.store.database import Database
from runner.store.tables import approvals, job_pauses, jobs, runs

JOBS, INBOX = "jobs", "inbox"
_OPEN = ("queued", "running", "waiting")


def versions(database: Database, topics: Collection[str]) -> dict[str, str]:
    """The version of each topic: ``jobs``, ``inbox``, ``job:ID`` or ``run:ID``. That of a run changes
    with the runs below it, too. Topics that do not exist are left out."""
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

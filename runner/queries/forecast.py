"""Reads for the forecasts of jobs: the work on each item that has begun or ended, and the jobs' times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, case, func, or_, select

from runner.queries.find import in_batches
from runner.store.conditions import IS_ITEM_RUN, ROOT_RUN
from runner.store.database import Database
from runner.store.tables import jobs, runs


def begun_trees(database: Database, job_ids: Sequence[str]) -> list[Row[Any]]:
    """Return a row for each run of an item that has begun, or ended without (``started_at`` is None): its
    job, its own ``state``, ``reason`` and times, and the ``tokens`` of its tree."""
    own = ("state", "reason", "started_at", "ended_at")
    query = (
        select(
            *(runs.c.job_id, ROOT_RUN.label("id")),
            *(func.max(case((IS_ITEM_RUN, runs.c[name]))).label(name) for name in own),
            func.sum(runs.c.charged_tokens).label("tokens"),
        )
        .where(or_(runs.c.started_at.is_not(None), runs.c.ended_at.is_not(None)))
        .group_by(runs.c.job_id, ROOT_RUN)
    )
    query = query.order_by(ROOT_RUN)
    return [
        row
        for some in in_batches(job_ids)
        for row in database.rows(query.where(runs.c.job_id.in_(some)))
    ]


def superseded(database: Database, job_ids: Sequence[str]) -> set[str]:
    """Return the runs that were started afresh: their successors stand for them."""
    query = select(runs.c.fresh_of).where(runs.c.fresh_of.is_not(None))
    return {
        str(row.fresh_of)
        for some in in_batches(job_ids)
        for row in database.rows(query.where(runs.c.job_id.in_(some)))
    }


def times_of(database: Database, job_ids: Sequence[str]) -> dict[str, Row[Any]]:
    """Return the ``finish_by`` and the ``spec`` of jobs."""
    query = select(jobs.c.id, jobs.c.finish_by, jobs.c.spec)
    return {
        row.id: row
        for some in in_batches(job_ids)
        for row in database.rows(query.where(jobs.c.id.in_(some)))
    }

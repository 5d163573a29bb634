"""Counts by run for the report on a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select

from runner.store.connection.database import Database
from runner.store.look.decisions import IS_ITS_OWN
from runner.store.look.family.places import ROOT
from runner.store.tables import approvals, runs, tool_calls


def answer_counts(database: Database, job_id: str) -> dict[str, dict[tuple[str, str], int]]:
    """How the questions of each tree of a job were answered and how often: by the id of the item's run,
    then by the answer and what it came from (``approved`` by a ``person``). Open ones are left out."""
    query = (
        select(ROOT, approvals.c.answer, approvals.c.answered_via, func.count())
        .join_from(approvals, runs, runs.c.id == approvals.c.run_id)
        .where(approvals.c.job_id == job_id, approvals.c.answer.is_not(None))
        .group_by(ROOT, approvals.c.answer, approvals.c.answered_via)
    )
    found: dict[str, dict[tuple[str, str], int]] = {}
    for run_id, answer, via, count in database.read(
        lambda connection: connection.execute(query).all()
    ):
        found.setdefault(run_id, {})[answer, via] = count
    return found


def unknown_outcomes(database: Database, job_id: str) -> Mapping[str, int]:
    """How many tool calls of each tree of a job have an outcome that nobody knows, by the id of the
    item's run; those without one are left out."""
    query = (
        select(ROOT, func.count())
        .join_from(tool_calls, runs, runs.c.id == tool_calls.c.run_id)
        .where(runs.c.job_id == job_id, IS_ITS_OWN, tool_calls.c.outcome == "unknown")
        .group_by(ROOT)
    )
    rows: Any = database.read(lambda connection: connection.execute(query).all())
    return {row[0]: row[1] for row in rows}

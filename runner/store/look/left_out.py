"""Runs whose oldest turns the model was no longer sent, because no summary could stand in for them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select

from runner.store.connection.database import Database
from runner.store.tables import compactions, model_calls, runs


@dataclass(frozen=True, slots=True)
class LeftOut:
    """In how many runs turns were left out, and how the newest call for a summary in them failed
    (None: none was made, for want of room or money)."""

    runs: int
    why: str | None


def turns_left_out(database: Database, job_id: str, run_id: str | None = None) -> LeftOut:
    """Where turns were left out.

    Args:
        job_id: the job whose runs are looked at. run_id: only this one of them.
    """
    pruned = (
        select(compactions.c.run_id)
        .join(runs, runs.c.id == compactions.c.run_id)
        .where(runs.c.job_id == job_id, compactions.c.kind == "prune")
    )
    if run_id is not None:
        pruned = pruned.where(compactions.c.run_id == run_id)
    failed = (
        select(model_calls.c.error)
        .where(
            model_calls.c.run_id.in_(pruned),
            model_calls.c.purpose == "summary",
            model_calls.c.error.is_not(None),
        )
        .order_by(model_calls.c.started_at.desc())
        .limit(1)
    )
    count = select(func.count(pruned.subquery().c.run_id.distinct()))
    return database.read(
        lambda connection: LeftOut(
            connection.execute(count).scalar_one(), connection.execute(failed).scalar()
        )
    )

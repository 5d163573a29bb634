"""Answering the questions that nobody answered in time."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, select, true

from runner.store.conditions import IS_OPEN_APPROVAL
from runner.store.connection.database import Database
from runner.store.steer.questions import Given, lock_open, store_answers
from runner.store.tables import approvals, runs

_BATCH = 200


def expire(database: Database, now: float, most: int = _BATCH) -> list[str]:
    """Answer the questions that have waited for too long.

    Args:
        now: seconds since the epoch.
        most: how many questions at most, and with them all that are late of the same runs.

    Returns:
        The ids of the runs that are queued again.
    """
    return _expire(database, true(), now, most)


def expire_these(database: Database, approval_ids: Sequence[str], now: float) -> None:
    """Answer those of these questions that have waited for too long, and with them all that are late
    of their runs."""
    for start in range(0, len(approval_ids), _BATCH):
        some = approval_ids[start : start + _BATCH]
        _expire(database, approvals.c.id.in_(some), now, _BATCH)


def _expire(database: Database, condition: ColumnElement[bool], now: float, most: int) -> list[str]:
    late = (
        select(approvals.c.run_id)
        .join(runs, runs.c.id == approvals.c.run_id)
        .where(IS_OPEN_APPROVAL, approvals.c.expires_at <= now, condition)
        .order_by(approvals.c.expires_at, approvals.c.id)
        .limit(most)
    )
    run_ids = database.read(lambda connection: connection.execute(late).scalars().all())
    if not run_ids:
        return []
    expired = Given("expired", "timeout", reason="nobody answered in time")

    def work(connection: Connection) -> list[str]:
        queued = []
        for run in lock_open(connection, sorted(set(run_ids))):
            given = {
                question.id: expired
                for question in run.questions
                if question.expires_at is not None and question.expires_at <= now
            }
            if given and store_answers(connection, run, given, now):
                queued.append(run.row.id)
        return queued

    return database.write(work)

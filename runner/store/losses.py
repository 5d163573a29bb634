"""Attempts that ended without an outcome: their runs are queued again, or failed.

A model call that they leave behind is charged at its reserve: a run that then waits for hours must
not keep from its siblings what it will never use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, select, update

from runner.core.journal.events import Event, usage_of
from runner.core.run import Lease
from runner.store.connection.database import Database
from runner.store.job.purse import charge_open_call
from runner.store.job.warming import let_siblings_start
from runner.store.rows.progress import progress_from_row
from runner.store.runs import add_event
from runner.store.tables import runs, workers

LOST_LEASES_BEFORE_FAILED = 5

_NO_REPLY = "the worker was gone before the reply was stored"


def take_from(
    database: Database,
    worker_ids: Sequence[str],
    now: float,
    *,
    leases: Mapping[str, float] | None = None,
) -> list[str]:
    """Take the runs of dead workers: each is queued again, or failed when its workers keep dying.

    Args:
        leases: take only from those whose leases still end when this says, looked at once more.

    Returns:
        The ids of the runs that are queued again.
    """

    def work(connection: Connection) -> list[str]:
        dead = select(workers.c.id, workers.c.lease_expires_at).where(workers.c.id.in_(worker_ids))
        dead_ids = [
            row.id
            for row in connection.execute(dead.with_for_update())
            if leases is None or row.lease_expires_at == leases[row.id]
        ]
        connection.execute(update(workers).where(workers.c.id.in_(dead_ids)).values(ended_at=now))
        taken = connection.execute(
            select(runs)
            .where(runs.c.worker_id.in_(dead_ids), runs.c.state == "running")
            .order_by(runs.c.job_id, runs.c.id)  # so the jobs' purses are locked in order
            .with_for_update(skip_locked=True)
        ).all()
        return [run.id for run in taken if _take(connection, run, now)]

    return database.write(work)


def _take(connection: Connection, run: Row[Any], now: float) -> bool:
    lost = run.lost_leases + 1
    failure = None
    if lost >= LOST_LEASES_BEFORE_FAILED:
        detail = f"{lost} workers in a row were gone before anything was stored"
        failure = _failure("crash_loop", detail)
    _free(connection, run, failure, "lease_lost", now, lost_leases=lost)
    data = {"why": "lease_lost", "worker": run.worker_id, "in_a_row": lost}
    add_event(connection, run, Event("attempt_ended", data), now)
    _tell(connection, run, failure, now)
    return failure is None


def give_back(database: Database, lease: Lease, now: float) -> None:
    """Queue a run again that this worker holds and does not work on (it was dropped, or the answer
    to its claim was lost)."""

    def work(connection: Connection) -> None:
        run = _held(connection, lease)
        if run is not None:
            _free(connection, run, None, "lease_lost", now)
            add_event(connection, run, Event("attempt_ended", {"why": "lease_lost"}), now)

    database.write(work)


def give_up(database: Database, lease: Lease, error: str, now: float) -> None:
    """An attempt ended by an exception that nobody classified: once it is tried again, then failed.

    Args:
        error: the traceback, for the event.
    """

    def work(connection: Connection) -> None:
        run = _held(connection, lease)
        if run is None:
            return
        failure = _failure("bug", error.strip().splitlines()[-1]) if run.bugs else None
        _free(connection, run, failure, "bug", now, bugs=run.bugs + 1)
        add_event(connection, run, Event("error", {"reason": "bug", "traceback": error}), now)
        add_event(connection, run, Event("attempt_ended", {"why": "bug"}), now)
        _tell(connection, run, failure, now)

    database.write(work)


def _held(connection: Connection, lease: Lease) -> Row[Any] | None:
    query = select(runs).where(
        runs.c.id == lease.run_id,
        runs.c.attempt == lease.attempt,
        runs.c.worker_id == lease.worker_id,
    )
    return connection.execute(query.with_for_update()).one_or_none()


def _failure(reason: str, detail: str) -> dict[str, str]:
    return {"state": "failed", "reason": reason, "detail": detail}


def _free(
    connection: Connection,
    run: Row[Any],
    failure: dict[str, str] | None,
    queued_for: str,
    now: float,
    **counts: int,
) -> None:
    """Take the run from its worker: failed, or queued again."""
    changes: dict[str, Any] = {"state": "queued", "reason": queued_for, "due_at": now}
    if failure is not None:
        changes = {**failure, "ended_at": now, "pause_requested": False}
        if progress_from_row(run).warms:
            let_siblings_start(connection, run.job_id, now)
    charges, charged = charge_open_call(connection, run, "worker_lost", _NO_REPLY, now)
    connection.execute(
        update(runs)
        .where(runs.c.id == run.id)
        .values(worker_id=None, rung_at=None, **changes, **charges, **counts)
    )
    for event in charged:
        add_event(connection, run, event, now)


def _tell(
    connection: Connection, run: Row[Any], failure: dict[str, str] | None, now: float
) -> None:
    if failure is not None:
        total = usage_of(progress_from_row(run).usage)
        add_event(connection, run, Event("error", {**failure}), now)
        add_event(connection, run, Event("done", {**failure, "total": total}), now)

"""Leases: one row per worker, and taking over the runs of a worker whose lease has expired.

A model call that a lost attempt leaves open is charged its reservation at once: otherwise a run
that then waits for hours would withhold budget from its siblings.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, insert, select, text, update

from runner.core.events import Event, usage_of
from runner.core.run import Lease
from runner.store.budgets import charge_open_call, let_siblings_start
from runner.store.database import Database
from runner.store.run_state import progress_from_row
from runner.store.runs import add_event
from runner.store.statements import execute
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
        if progress_from_row(run).model.warms_cache:
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
        total = usage_of(progress_from_row(run).money.usage)
        add_event(connection, run, Event("error", {**failure}), now)
        add_event(connection, run, Event("done", {**failure, "total": total}), now)


LEASE_SECONDS = 15.0


class DatabaseClock:
    """The process's clock, corrected by its offset against the database's (``runner.ports.Clock``).

    SQLite's clock is the process's own.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._offset = 0.0

    def now(self) -> float:
        return time.time() + self._offset

    def monotonic(self) -> float:
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()

    def measure(self) -> None:
        """Ask the database for its time. Raises ``UnreachableError``."""
        if self._database.dialect == "sqlite":
            return
        query = text("SELECT extract(epoch FROM clock_timestamp())")
        before = time.time()
        theirs = self._database.read(lambda c: float(c.execute(query).scalar_one()))
        self._offset = theirs - (before + time.time()) / 2


def register(
    database: Database,
    worker_id: str,
    *,
    host_id: str,
    hostname: str,
    pid: int,
    slots: int,
    now: float,
) -> None:
    """Make a worker known; its leases last until it renews them."""
    database.write(
        lambda connection: connection.execute(
            insert(workers).values(
                id=worker_id,
                host_id=host_id,
                hostname=hostname,
                pid=pid,
                slots=slots,
                started_at=now,
                lease_expires_at=now + LEASE_SECONDS,
            )
        )
    )


_RENEW = (
    update(workers)
    .where(workers.c.id == bindparam("worker"))
    .values(lease_expires_at=bindparam("expires_at"), ended_at=None)
)


def renew(database: Database, worker_id: str, now: float) -> None:
    """Extend all leases of a worker. Raises ``UnreachableError``."""
    values = {"worker": worker_id, "expires_at": now + LEASE_SECONDS}
    database.write(lambda connection: execute(connection, _RENEW, values))


def end(database: Database, worker_id: str, now: float) -> None:
    """A worker that holds nothing any more."""
    database.write(
        lambda connection: connection.execute(
            update(workers).where(workers.c.id == worker_id).values(ended_at=now)
        )
    )


def others(database: Database, worker_id: str) -> list[tuple[str, str, float]]:
    """Id, host id and lease expiry of every other worker that has not ended, or that holds a run."""

    def work(connection: Connection) -> list[tuple[str, str, float]]:
        holds = select(runs.c.worker_id).where(runs.c.worker_id.is_not(None))
        query = select(workers.c.id, workers.c.host_id, workers.c.lease_expires_at).where(
            workers.c.id != worker_id, workers.c.ended_at.is_(None) | workers.c.id.in_(holds)
        )
        return [(row.id, row.host_id, row.lease_expires_at) for row in connection.execute(query)]

    return database.read(work)


def live(database: Database, now: float) -> int:
    """How many workers hold valid leases."""
    query = select(func.count()).where(
        workers.c.ended_at.is_(None), workers.c.lease_expires_at > now
    )
    return database.read(lambda connection: connection.execute(query).scalar_one())

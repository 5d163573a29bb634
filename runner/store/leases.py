"""Leases: one row per worker, and taking over the runs of a worker whose lease has expired.

A model call that a lost attempt leaves open is charged at once: otherwise a run that then waits for
hours would withhold budget from its siblings. A worker whose leases ran out may be frozen, and still
read its replies: only of a dead one it is known when they ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from runner.core.events import Event, usage_of
from runner.core.run import LEASE_SECONDS, Lease
from runner.core.text import visible
from runner.store.budgets import charge_open_call, let_siblings_start, lock_all
from runner.store.changes import ended, locked_runs, queued, store_change
from runner.store.database import Database, writes
from runner.store.run_state import progress_from_row
from runner.store.statements import execute
from runner.store.tables import runs, tool_calls, workers

LOST_LEASES_BEFORE_FAILED = 5
HOSTS_BEFORE_FAILED = 3


@writes
def take_from(
    connection: Connection,
    worker_ids: Sequence[str],
    now: float,
    *,
    leases: Mapping[str, float] | None = None,
) -> list[str]:
    """Take the runs of dead workers: each is queued again, or failed when its workers keep dying.
    Returns the ids of the runs that are queued again.

    Args:
        leases: take only from workers whose leases still end at this time, looked at once more. None:
            the workers' processes have ended.
    """

    def take(connection: Connection, run: Row[Any]) -> bool:
        lost, failure = run.lost_leases + 1, None
        if lost >= LOST_LEASES_BEFORE_FAILED:
            failure = "crash_loop", f"{lost} workers in a row were gone before anything was stored"
        data = {"why": "lease_lost", "worker": run.worker_id, "in_a_row": lost}
        happened = [Event("attempt_ended", data)]
        died, why = leases is None, "lease_lost"
        return _free(connection, run, now, happened, why, failure, died=died, lost_leases=lost)

    dead = select(workers.c.id, workers.c.lease_expires_at).where(workers.c.id.in_(worker_ids))
    dead = dead.order_by(workers.c.id)
    dead_ids = [
        row.id
        for row in connection.execute(dead.with_for_update())
        if leases is None or row.lease_expires_at == leases[row.id]
    ]
    connection.execute(update(workers).where(workers.c.id.in_(dead_ids)).values(ended_at=now))
    taken = connection.execute(
        select(runs)
        .where(runs.c.worker_id.in_(dead_ids), runs.c.state == "running")
        .order_by(runs.c.job_id, runs.c.id)
        .with_for_update(skip_locked=True)
    ).all()
    lock_all(connection, {run.job_id for run in taken})
    return [run.id for run in taken if take(connection, run)]


@writes
def give_back(connection: Connection, lease: Lease, now: float) -> None:
    """Queue a run again that this worker holds and does not work on (it was dropped, or the answer
    to its claim was lost)."""
    for run in _held(connection, lease):
        happened = [Event("attempt_ended", {"why": "lease_lost"})]
        _free(connection, run, now, happened, "lease_lost", None)


@writes
def give_up(connection: Connection, lease: Lease, error: str, now: float) -> None:
    """Free the run of an attempt that ended by an unclassified exception: it is tried again once, then
    failed. ``error`` is the traceback, for the event."""
    for run in _held(connection, lease):
        failure = ("bug", error.strip().splitlines()[-1]) if run.bugs else None
        raised = Event("error", {"reason": "bug", "traceback": error})
        happened = [raised, Event("attempt_ended", {"why": "bug"})]
        _free(connection, run, now, happened, "bug", failure, bugs=run.bugs + 1)


@dataclass(frozen=True, slots=True)
class HostFault:
    """A fault of a host that ended an attempt."""

    host_id: str
    hostname: str
    detail: str  # one line
    fails: bool = True  # the run, if enough hosts met one


@writes
def give_back_for_host(
    connection: Connection, lease: Lease, fault: HostFault, unbegun: Sequence[int], now: float
) -> None:
    """Queue the run of an attempt again that met a fault of its host. No failure of the run, unless so
    many hosts met one that it has to be the run's.

    Args:
        unbegun: indexes of calls that are stored as started and were not.
    """
    for run in _held(connection, lease):
        hosts = dict(run.host_faults or {})
        times = hosts.get(fault.host_id, {}).get("times", 0) + 1
        hosts[fault.host_id] = {"times": times, "at": now, "fails": fault.fails}
        why, failure = visible(fault.detail), None
        detail = f"{fault.hostname}: {why}"
        count = sum(host.get("fails", True) for host in hosts.values())
        if count >= HOSTS_BEFORE_FAILED:
            failure = "workspace", f"{count} hosts could not work it, at last {detail}"
        data = {"why": "host_fault", "host": fault.hostname, "detail": why}
        happened = [Event("attempt_ended", data)]
        counts: dict[str, Any] = {"host_faults": hosts} | ({} if failure else {"detail": detail})
        if _free(connection, run, now, happened, "host_fault", failure, **counts):
            started = tool_calls.c.started_attempt == lease.attempt
            connection.execute(
                update(tool_calls)
                .where(tool_calls.c.run_id == run.id, tool_calls.c.ended_at.is_(None), started)
                .where(tool_calls.c.position.in_(unbegun))
                .values(started_attempt=None, started_at=None)
            )


def _held(connection: Connection, lease: Lease) -> Sequence[Row[Any]]:
    """The row of the lease's run, locked; none if its attempt has ended."""
    this = runs.c.attempt == lease.attempt, runs.c.worker_id == lease.worker_id
    return locked_runs(connection, [lease.run_id], *this)


def _free(
    connection: Connection,
    run: Row[Any],
    now: float,
    happened: Sequence[Event],
    queued_for: str,
    failure: tuple[str, str] | None,
    *,
    died: bool = False,
    **more: Any,
) -> bool:
    """Take the run from its worker, which may have ``died``: failed (for a reason, with a detail), or
    queued. True if queued."""
    progress, changes = progress_from_row(run), queued(now, queued_for)
    failed: list[Event] = []
    if failure is not None:
        end = {"state": "failed", "reason": failure[0], "detail": failure[1]}
        changes = ended(**end, now=now)
        total = {"total": usage_of(progress.money.usage)}
        failed = [Event("error", end), Event("done", {**end, **total})]
        if progress.model.warms_cache:
            let_siblings_start(connection, run.job_id, now)
    no_reply = "the worker was gone before the reply was stored"
    charges, charged = dict[str, Any](), list[Event]()
    call = progress.model.open_call
    if call is not None and (failure is not None or not call.reservation.batch):
        charges, charged = charge_open_call(
            connection, run, "worker_lost", no_reply, now, died=died
        )
    happened = [*charged, *happened, *failed]
    store_change(connection, run, now, happened, **changes | charges | more)
    return failure is None


def register(
    database: Database, worker_id: str, *, now: float, **columns: str | int | None
) -> None:
    """Make a worker known, with the other columns of its row; its leases last until it renews them."""
    times = {"started_at": now, "lease_expires_at": now + LEASE_SECONDS}
    database.execute(insert(workers).values(id=worker_id, **columns, **times))


_RENEW = (
    update(workers)
    .where(workers.c.id == bindparam("worker"))
    .values(lease_expires_at=bindparam("expires_at"), ended_at=None)
)


def renew(database: Database, worker_id: str, now: float) -> None:
    """Extend all leases of a worker. Raises ``UnreachableError``."""
    values = {"worker": worker_id, "expires_at": now + LEASE_SECONDS}
    database.write(lambda connection: execute(connection, _RENEW, values), alone=True)


def drain(database: Database, worker_id: str, now: float) -> None:
    """Note that a worker takes nothing new from now on. Raises ``UnreachableError``."""
    database.execute(update(workers).where(workers.c.id == worker_id).values(draining_at=now))


def set_fault(
    database: Database, worker_id: str, fault: str | None, now: float | None = None
) -> None:
    """Store the fault of a worker's host, since ``now`` or since its earlier fault; None: it has none."""
    since = None if fault is None else func.coalesce(workers.c.fault_at, now)
    marked = {"fault": fault and visible(fault), "fault_at": since}
    database.execute(update(workers).where(workers.c.id == worker_id).values(**marked))


def end(database: Database, worker_id: str, now: float) -> None:
    """Mark a worker that holds no runs as ended."""
    database.execute(update(workers).where(workers.c.id == worker_id).values(ended_at=now))


def is_untried(database: Database, run_id: str, host_id: str, now: float) -> bool:
    """True if a host other than this one can take a run, and has met no fault at it."""
    query = (
        select(workers.c.host_id, runs.c.host_faults)
        .join(runs, workers.c.job_id.is_(None) | (workers.c.job_id == runs.c.job_id))
        .where(runs.c.id == run_id, workers.c.host_id != host_id, workers.c.lease_expires_at > now)
        .where(*(workers.c[name].is_(None) for name in ("ended_at", "draining_at", "fault")))
    )
    return any(row.host_id not in (row.host_faults or {}) for row in database.rows(query))


def others(database: Database, worker_id: str) -> list[tuple[str, str, float]]:
    """Id, host id and lease expiry of every other worker that has not ended, or that holds a run."""
    holds = select(runs.c.worker_id).where(runs.c.worker_id.is_not(None))
    query = select(workers.c.id, workers.c.host_id, workers.c.lease_expires_at).where(
        workers.c.id != worker_id, workers.c.ended_at.is_(None) | workers.c.id.in_(holds)
    )
    return [tuple(row) for row in database.rows(query)]

"""Find due runs and claim them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Float, Integer, bindparam, exists, func, or_, select, update

from runner.core.agents import is_within, lineage
from runner.core.conversation import Usage
from runner.core.events import Event
from runner.core.run import ENDED, RUNNER, Ended, Lease
from runner.ports import Ending
from runner.store.changes import FREED, event_rows, locked_runs, queued, signed_change, store_change
from runner.store.children import IS_ORPHAN, IS_READY
from runner.store.database import Database
from runner.store.statements import Writes, execute
from runner.store.tables import events, runs, workers

NOTIFY_AGAIN_SECONDS = 15.0
LOST_LEASES_BEFORE_ALONE = 3


@dataclass(frozen=True, slots=True)
class DueRun:
    """A queued run before a worker claims it."""

    id: str
    job_id: str
    item_key: str
    attempt: int
    lost_leases: int
    workspace_path: str | None
    workspace_id: str | None
    last_host_id: str | None  # where its last attempt was
    of_family: bool  # some run of its tree has started another

    @property
    def must_be_alone(self) -> bool:
        """True if workers died on it: the next one works nothing else."""
        return self.lost_leases >= LOST_LEASES_BEFORE_ALONE


_IS_QUEUED = runs.c.state == "queued"
_below = runs.alias("below")
_DUE_RUN = (
    select(
        runs.c.id,
        runs.c.job_id,
        runs.c.item_key,
        runs.c.attempt,
        runs.c.lost_leases,
        runs.c.workspace_path,
        runs.c.workspace_id,
        workers.c.host_id,
        exists()
        .where(_below.c.root_run == func.coalesce(runs.c.root_run, runs.c.id))
        .correlate(runs)
        .label("of_family"),
    )
    .outerjoin(workers, workers.c.id == runs.c.last_worker_id)
    .where(runs.c.id == bindparam("run"), _IS_QUEUED, runs.c.due_at <= bindparam("now"))
)


def look_at(database: Database, run_id: str, now: float) -> DueRun | None:
    """The run, if it is queued and due."""
    for row in database.find(_DUE_RUN, {"run": run_id, "now": now}):
        return DueRun(*row)
    return None


_ENDED_IN_TREE = select(runs.c.id).where(
    runs.c.root_run == bindparam("root"), runs.c.ended_at.is_not(None)
)


def ended_below(database: Database, run_id: str) -> list[str]:
    """The ids of the ended sub-agents below a run, at any depth."""
    ended = database.find(_ENDED_IN_TREE, {"root": lineage(run_id)[0]})
    return [row.id for row in ended if row.id != run_id and is_within(row.id, run_id)]


_CLAIM = (
    update(runs)
    .where(
        runs.c.id == bindparam("run"),
        _IS_QUEUED,
        runs.c.attempt == bindparam("last_attempt"),
        runs.c.due_at <= bindparam("now"),
    )
    .values(
        state="running",
        reason="",
        detail="",
        attempt=bindparam("new_attempt"),
        worker_id=bindparam("worker"),
        last_worker_id=bindparam("worker"),
        due_at=None,
        rung_at=None,
        started_at=func.coalesce(runs.c.started_at, bindparam("now")),
        event_count=runs.c.event_count + 1,
    )
    .returning(runs.c.event_count)
)


def claim(database: Database, run: DueRun, worker_id: str, now: float) -> Lease | None:
    """Take a due run for a worker: a new attempt, unless someone was faster."""
    attempts = {"last_attempt": run.attempt, "new_attempt": (attempt := run.attempt + 1)}
    values = {"run": run.id, "worker": worker_id, "now": now, **attempts}

    def work(connection: Connection) -> Lease | None:
        claimed = execute(connection, _CLAIM, values)
        if not claimed:
            return None
        started = Event("attempt_started", {"attempt": attempt, "worker": worker_id})
        before, writes = claimed[0].event_count - 1, Writes()
        writes.insert(events, event_rows(run.id, [started], now, after=before, attempt=attempt))
        writes.run(connection)
        return Lease(run.id, attempt, worker_id)

    return database.write(work)


def postpone(database: Database, run: DueRun, until: float) -> None:
    """Look at a queued run again later; its attempt has not begun."""
    database.execute(
        update(runs)
        .where(runs.c.id == run.id, _IS_QUEUED, runs.c.attempt == run.attempt)
        .values(due_at=until, rung_at=None)
    )


def wait_for_workspace(database: Database, run: DueRun, now: float) -> None:
    """This worker cannot see the run's workspace: let it wait for one that can."""
    is_due = _IS_QUEUED, runs.c.attempt == run.attempt
    event = Event("waiting", {"reason": "workspace", "path": run.workspace_path})

    def work(connection: Connection) -> None:
        for row in locked_runs(connection, [run.id], *is_due):
            changes = {**FREED, "state": "waiting", "reason": "workspace"}
            store_change(connection, row, now, [event], **changes)

    database.write(work)


_WAITING = (runs.c.state == "waiting") & (runs.c.reason == "workspace")


def missing_workspaces(database: Database, of: str | None = None) -> list[tuple[str, str]]:
    """The path and id of every workspace that runs wait for; with ``of``, a job's or run's id, of
    those runs."""
    query = (
        select(runs.c.workspace_path, runs.c.workspace_id)
        .where(_WAITING, runs.c.workspace_path.is_not(None), runs.c.workspace_id.is_not(None))
        .distinct()
    )
    if of is not None:
        query = query.where(or_(runs.c.job_id == of, runs.c.id == of))
    return [tuple(row) for row in database.rows(query)]


def workspace_found(
    database: Database, path: str, workspace_id: str, most: int, now: float
) -> list[str]:
    """Queue runs again whose workspace a worker sees, at most ``most``, and return their ids. The worker
    takes them itself: from the queue, a worker that does not see the workspace could be faster."""
    of_it = (runs.c.workspace_path == path) & (runs.c.workspace_id == workspace_id)
    waiting = select(runs.c.id).where(_WAITING, of_it).order_by(runs.c.id).limit(most)

    def work(connection: Connection) -> list[str]:
        run_ids = connection.execute(waiting).scalars().all()
        found = locked_runs(connection, run_ids, _WAITING)
        changes = {**queued(now), "rung_at": now}
        for run in found:
            signed_change(connection, run, now, "resumed", RUNNER, changes, {"reason": "workspace"})
        return [run.id for run in found]

    return database.write(work)


_DUE = (
    select(runs.c.id)
    .where(
        _IS_QUEUED,
        runs.c.due_at <= bindparam("now"),
        # A time to come is of a clock that was set back since.
        or_(
            runs.c.rung_at.is_(None),
            runs.c.rung_at < bindparam("rung_before", type_=Float),
            runs.c.rung_at > bindparam("now"),
        ),
    )
    .order_by(runs.c.due_at, runs.c.id)
    .limit(bindparam("most", type_=Integer))
)
# Apart from the update: as a part of it Postgres may look for them anew for each row, and so take more
# than ``most`` (https://www.postgresql.org/docs/current/queries-with.html).
_TAKEN = _DUE.with_for_update(skip_locked=True).cte("taken")
_DUE_TO_NOTIFY = (
    update(runs)
    .where(runs.c.id.in_(select(_TAKEN.c.id)))
    .values(rung_at=bindparam("now"))
    .returning(runs.c.id, runs.c.due_at)
)


def due_to_notify(database: Database, most: int, now: float) -> list[str]:
    """The ids of at most ``most`` due runs to notify of, oldest first; each is stamped as notified."""
    values = {"most": most, "now": now, "rung_before": now - NOTIFY_AGAIN_SECONDS}
    if not database.find(_DUE, values):
        return []
    notified = database.write(lambda connection: execute(connection, _DUE_TO_NOTIFY, values))
    return [run.id for run in sorted(notified, key=lambda run: (run.due_at, run.id))]


def not_notified(database: Database, run_ids: Sequence[str]) -> None:
    """The queue could not be notified: the next pass takes these runs again."""
    database.execute(update(runs).where(runs.c.id.in_(run_ids), _IS_QUEUED).values(rung_at=None))


# For the budget and the cache warm-up, runs are queued that go on when another run of their job has.
_GOES_ON = or_(
    runs.c.due_at <= bindparam("now"), runs.c.reason == "budget", runs.c.reason == "warming"
)
_UNFINISHED = (
    select(runs.c.id)
    .where(or_(runs.c.state == "running", _IS_QUEUED & _GOES_ON, IS_READY, IS_ORPHAN))
    .limit(1)
)


def unfinished(database: Database, now: float) -> bool:
    """True if a run is being worked, is due, or waits for a moment: for its siblings, or until a pass sees
    that its sub-agents or its parent have ended."""
    return bool(database.find(_UNFINISHED, {"now": now}))


_HELD_BY = select(runs.c.id, runs.c.attempt).where(runs.c.worker_id == bindparam("worker"))


def held_by(database: Database, worker_id: str) -> dict[str, int]:
    """The ids of the runs that a worker holds, with their attempts."""
    return {row.id: row.attempt for row in database.find(_HELD_BY, {"worker": worker_id})}


def endings(database: Database, run_ids: Sequence[str]) -> list[Ending]:
    """Return the ends of the runs that have ended. Raises ``UnreachableError``."""
    names = ("id", "last_worker_id", "state", "reason", "detail", "ended_at", *Usage.__slots__)
    query = select(*(runs.c[name] for name in names))
    query = query.where(runs.c.id.in_(run_ids), runs.c.state.in_(sorted(ENDED)))
    return [
        Ending(run_id, worker_id, Ended(state, reason, detail), at, Usage(*tokens))
        for run_id, worker_id, state, reason, detail, at, *tokens in database.rows(query)
    ]

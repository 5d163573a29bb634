"""Claim runs and find those that are due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Connection,
    Float,
    Integer,
    and_,
    bindparam,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from runner.core.agents import is_within, lineage
from runner.core.conversation import Usage
from runner.core.events import Event, signed_event
from runner.core.run import ENDED, RUNNER, Ended, Lease
from runner.ports import Ending
from runner.store.children import IS_ORPHAN, IS_READY
from runner.store.database import Database
from runner.store.statements import Writes, execute
from runner.store.tables import events, runs, workers

NOTIFY_AGAIN_SECONDS = 15.0
LOST_LEASES_BEFORE_ALONE = 3
# Why a run is queued that goes on when another run of its job has.
WAITS_FOR_SIBLINGS = ("budget", "warming")


@dataclass(frozen=True, slots=True)
class DueRun:
    """A queued run as a worker sees it before it claims it. ``last_host_id`` is where its last
    attempt was, and ``of_family`` says that some run of its tree has started another."""

    id: str
    attempt: int
    lost_leases: int
    workspace_path: str | None
    workspace_id: str | None
    last_host_id: str | None
    of_family: bool

    @property
    def must_be_alone(self) -> bool:
        """Its workers died on it: the next one has nothing else to lose."""
        return self.lost_leases >= LOST_LEASES_BEFORE_ALONE


def add_event(connection: Connection, run: Any, event: Event, now: float) -> None:
    """Append an event to a run from outside its attempt. ``run`` is its row, locked; the row's
    ``event_count`` is raised with it."""
    count = connection.execute(
        update(runs)
        .where(runs.c.id == run.id)
        .values(event_count=runs.c.event_count + 1)
        .returning(runs.c.event_count, runs.c.attempt)
    ).one()
    connection.execute(
        insert(events).values(
            run_id=run.id,
            number=count.event_count,
            at=now,
            attempt=count.attempt,
            type=event.type,
            data=event.data,
        )
    )


_below = runs.alias("below")
_DUE_RUN = (
    select(
        runs.c.id,
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
    .where(
        runs.c.id == bindparam("run"), runs.c.state == "queued", runs.c.due_at <= bindparam("now")
    )
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
    """The ids of those that a run, or one that it started, has started and that have ended."""
    ended = database.find(_ENDED_IN_TREE, {"root": lineage(run_id)[0]})
    return [row.id for row in ended if row.id != run_id and is_within(row.id, run_id)]


_CLAIM = (
    update(runs)
    .where(
        runs.c.id == bindparam("run"),
        runs.c.state == "queued",
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
    attempt = run.attempt + 1
    values = {
        "run": run.id,
        "last_attempt": run.attempt,
        "new_attempt": attempt,
        "worker": worker_id,
        "now": now,
    }

    def work(connection: Connection) -> Lease | None:
        claimed = execute(connection, _CLAIM, values)
        if not claimed:
            return None
        started = Event("attempt_started", {"attempt": attempt, "worker": worker_id})
        row = {
            "run_id": run.id,
            "number": claimed[0].event_count,
            "at": now,
            "attempt": attempt,
            "type": started.type,
            "data": started.data,
        }
        writes = Writes()
        writes.insert(events, [row])
        writes.run(connection)
        return Lease(run.id, attempt, worker_id)

    return database.write(work)


def postpone(database: Database, run: DueRun, until: float) -> None:
    """Look at a queued run again later; its attempt has not begun."""
    database.write(
        lambda connection: connection.execute(
            update(runs)
            .where(runs.c.id == run.id, runs.c.state == "queued", runs.c.attempt == run.attempt)
            .values(due_at=until, rung_at=None)
        )
    )


def wait_for_workspace(database: Database, run: DueRun, now: float) -> None:
    """This worker cannot see the run's workspace: let it wait for one that can."""

    def work(connection: Connection) -> None:
        changed = connection.execute(
            update(runs)
            .where(runs.c.id == run.id, runs.c.state == "queued", runs.c.attempt == run.attempt)
            .values(state="waiting", reason="workspace", due_at=None, rung_at=None)
        )
        if changed.rowcount:
            data = {"reason": "workspace", "path": run.workspace_path}
            add_event(connection, run, Event("waiting", data), now)

    database.write(work)


_WORKSPACE_SEEN = signed_event(
    "resumed",
    RUNNER,
    {"reason": "workspace"},
    old={"state": "waiting", "reason": "workspace"},
    new={"state": "queued", "reason": ""},
)
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
    rows = database.read(lambda connection: connection.execute(query).all())
    return [(row.workspace_path, row.workspace_id) for row in rows]


def workspace_found(
    database: Database, path: str, workspace_id: str, most: int, now: float
) -> list[str]:
    """Queue runs again whose workspace a worker sees, at most ``most``. It takes them itself: not
    from the queue, where a worker that does not see it could be faster.

    Returns:
        Their ids.
    """
    of_it = (runs.c.workspace_path == path) & (runs.c.workspace_id == workspace_id)
    waiting = select(runs.c.id).where(_WAITING, of_it).order_by(runs.c.id).limit(most)

    def work(connection: Connection) -> list[str]:
        found = connection.execute(
            update(runs)
            .where(runs.c.id.in_(waiting.scalar_subquery()), runs.c.state == "waiting")
            .values(state="queued", reason="", due_at=now, rung_at=now)
            .returning(runs.c.id)
        ).all()
        for run in found:
            add_event(connection, run, _WORKSPACE_SEEN, now)
        return [run.id for run in found]

    return database.write(work)


_RUNG_BEFORE = bindparam("rung_before", type_=Float)
_DUE = (
    select(runs.c.id)
    .where(
        runs.c.state == "queued",
        runs.c.due_at <= bindparam("now"),
        # A time to come is of a clock that was set back since.
        or_(
            runs.c.rung_at.is_(None),
            runs.c.rung_at < _RUNG_BEFORE,
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


def unring(database: Database, run_ids: Sequence[str]) -> None:
    """The queue could not be notified: the next pass takes these runs again."""
    database.write(
        lambda connection: connection.execute(
            update(runs)
            .where(runs.c.id.in_(run_ids), runs.c.state == "queued")
            .values(rung_at=None)
        )
    )


_UNFINISHED = (
    select(runs.c.id)
    .where(
        or_(
            runs.c.state == "running",
            and_(
                runs.c.state == "queued",
                or_(
                    runs.c.due_at <= bindparam("now"),
                    *(runs.c.reason == reason for reason in WAITS_FOR_SIBLINGS),
                ),
            ),
            IS_READY,
            IS_ORPHAN,
        )
    )
    .limit(1)
)


def unfinished(database: Database, now: float) -> bool:
    """Whether any run is being worked, is due now, or waits for a moment until its siblings let it, or
    somebody sees that its sub-agents have ended, or its parent."""
    return bool(database.find(_UNFINISHED, {"now": now}))


_HELD_BY = select(runs.c.id, runs.c.attempt).where(runs.c.worker_id == bindparam("worker"))


def held_by(database: Database, worker_id: str) -> dict[str, int]:
    """The runs that a worker holds, with the attempt that does."""
    return {row.id: row.attempt for row in database.find(_HELD_BY, {"worker": worker_id})}


_COLUMNS = (
    runs.c.id,
    runs.c.last_worker_id,
    runs.c.state,
    runs.c.reason,
    runs.c.detail,
    runs.c.ended_at,
    runs.c.input_tokens,
    runs.c.cache_read_tokens,
    runs.c.cache_creation_tokens,
    runs.c.output_tokens,
)


def endings(database: Database, run_ids: Sequence[str]) -> list[Ending]:
    """Of these runs, those that have ended.

    Raises:
        UnreachableError: the database does not answer.
    """
    query = select(*_COLUMNS).where(runs.c.id.in_(run_ids), runs.c.state.in_(sorted(ENDED)))
    rows = database.read(lambda connection: connection.execute(query).all())
    return [
        Ending(run_id, worker_id, Ended(state, reason, detail), at, Usage(*tokens))
        for run_id, worker_id, state, reason, detail, at, *tokens in rows
    ]

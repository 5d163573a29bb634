"""Change runs from outside their attempts: lock a run's row, check it, write columns and events.

The order of locks is in ``store.budgets``. Here and in all commands, ``now`` is in seconds since the
epoch, and ``author`` says who changes something and why, for the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, func, insert, select, update

from runner.core.agents import lineage
from runner.core.commands import Change
from runner.core.events import CONNECTION, Event, connection_events, signed_event
from runner.core.network import Connection as HostConnection
from runner.core.run import FRESH, INTERRUPTED, TRANSITIONS, Author, Lease, RunStatus
from runner.errors import LeaseLost, UsageError
from runner.store.database import Database, in_lots, writes
from runner.store.tables import events, job_events, jobs, runs

T = TypeVar("T")

# The columns that an event shows when they change.
_SHOWN = ("state", "reason", "pause_requested", "queued_count")
_SHOWN_LIMITS = ("max_turns", "token_ceiling", "cost_ceiling_usd", "working_time")

# The columns of a run that no worker holds, and that is not due.
FREED: dict[str, Any] = {"worker_id": None, "due_at": None, "rung_at": None}


def queued(due_at: float, reason: str = "", rank: int = INTERRUPTED) -> dict[str, Any]:
    """The columns of a run that had begun and is queued."""
    place = {"due_at": due_at, "rank": rank}
    return {**FREED, "state": "queued", "reason": reason, "detail": "", **place}


def queued_again(run: Row[Any], due_at: float, rank: int = INTERRUPTED) -> dict[str, Any]:
    """The columns of a run that is queued, whether it has begun or not."""
    return queued(due_at, rank=rank if run.attempt else FRESH)


def ended(state: str, reason: str, detail: str, now: float) -> dict[str, Any]:
    """The columns of a run that ends."""
    end = {"state": state, "reason": reason, "detail": detail}
    return {**FREED, **end, "ended_at": now, "pause_requested": False}


def locked_runs(
    connection: Connection, run_ids: Sequence[str], *conditions: ColumnElement[bool]
) -> Sequence[Row[Any]]:
    """Lock the runs that meet the conditions. Returns their rows by id."""
    query = select(runs).where(runs.c.id.in_(run_ids), *conditions).order_by(runs.c.id)
    return connection.execute(query.with_for_update()).all()


def held_run(connection: Connection, lease: Lease) -> Row[Any]:
    """Lock the run of a lease, and return its row. Raises ``LeaseLost`` if its attempt has ended."""
    this = runs.c.attempt == lease.attempt, runs.c.worker_id == lease.worker_id
    is_held = runs.c.state == "running", *this
    for run in locked_runs(connection, [lease.run_id], *is_held):
        return run
    raise LeaseLost(f"attempt {lease.attempt} no longer holds {lease.run_id}")


def keep_claim(database: Database, lease: Lease) -> None:
    """Let a claim outlive a crash of the server from here on: locking the row flushes the log on Postgres
    (on SQLite every commit does). Raises ``LeaseLost``."""
    if database.dialect == "postgresql":
        database.write(lambda connection: held_run(connection, lease))


def store_change(
    connection: Connection, run: Row[Any], now: float, happened: Sequence[Event], **changes: Any
) -> None:
    """Write a locked run's changes and what happened to it, as one numbered event each."""
    state = changes.get("state", run.state)
    assert state == run.state or state in TRANSITIONS[run.state], (run.state, state)
    changes["event_count"] = run.event_count + len(happened)
    connection.execute(update(runs).where(runs.c.id == run.id).values(**changes))
    rows = event_rows(run.id, happened, now, after=run.event_count, attempt=run.attempt)
    connection.execute(insert(events), rows)


def signed_change(
    connection: Connection,
    run: Row[Any],
    now: float,
    kind: str,
    author: Author,
    changes: Mapping[str, Any],
    data: Mapping[str, Any] | None = None,
) -> None:
    """Write a locked run's changes and one event, which names the author."""
    store_change(connection, run, now, [change_event(kind, author, run, changes, data)], **changes)


def change_event(
    kind: str,
    author: Author,
    run: Row[Any],
    changes: Mapping[str, Any],
    data: Mapping[str, Any] | None = None,
) -> Event:
    """The event of a change to a run, with the values that change in its row, old and new."""
    names = [name for name in (*_SHOWN, *_SHOWN_LIMITS) if name in changes]
    new = {name: changes[name] for name in names if changes[name] != getattr(run, name)}
    return signed_event(kind, author, data, old={name: getattr(run, name) for name in new}, new=new)


def event_rows(
    run_id: str, happened: Iterable[Event], now: float, *, after: int = 0, attempt: int = 0
) -> list[dict[str, Any]]:
    """The rows of a run's events, numbered from the one behind ``after``."""
    named = {"run_id": run_id, "at": now, "attempt": attempt}
    return [
        {**named, "number": number, "type": event.type, "data": event.data}
        for number, event in enumerate(happened, after + 1)
    ]


def tell_of_job(
    connection: Connection,
    job_id: str,
    now: float,
    kind: str,
    author: Author,
    data: Mapping[str, Any] | None = None,
    **changed: Mapping[str, Any] | None,
) -> None:
    """Append an event to a job that is locked (``store.rules.lock_rules``) or is being submitted.
    ``changed`` is as in ``signed_event``."""
    newest = select(func.max(job_events.c.number)).where(job_events.c.job_id == job_id)
    number = (connection.execute(newest).scalar() or 0) + 1
    event = signed_event(kind, author, data, **changed)
    row = {"job_id": job_id, "number": number, "at": now, "type": kind, "data": event.data}
    connection.execute(insert(job_events).values(row))


def resumed_event(
    author: Author,
    waited_for: str,
    why: str | None = None,
    old: Mapping[str, Any] | None = None,
    new: Mapping[str, Any] | None = None,
) -> Event:
    """The event of a run that no longer waits. ``why`` is the cause, if it is not what the run waited for;
    ``old`` and ``new`` are further values that changed."""
    before = {"state": "waiting", "reason": waited_for, **(old or {})}
    after = {"state": "queued", "reason": "", **(new or {})}
    return signed_event("resumed", author, {"reason": why or waited_for}, old=before, new=after)


def resume(
    database: Database,
    run_ids: Sequence[str],
    waits: ColumnElement[bool],
    event: Event,
    now: float,
    columns: Callable[[Row[Any], float], Mapping[str, Any]] = queued_again,
) -> list[Change]:
    """Queue the runs that still meet the condition ``waits``. ``columns`` gives a run's changed columns."""

    def work(connection: Connection, lot: Sequence[str]) -> list[Change]:
        found = locked_runs(connection, lot, waits)
        for run in found:
            store_change(connection, run, now, [event], **columns(run, now))
        return [changed(run, "queued", "goes on") for run in found]

    return [each for lot in in_lots(run_ids) for each in database.write(partial(work, lot=lot))]


def changed(run: Row[Any], state: RunStatus, detail: str) -> Change:
    """A change that has been stored."""
    return Change(run.id, run.item_key, state, True, detail)


def unchanged(run: Row[Any], detail: str) -> Change:
    """A command that stored nothing; ``detail`` says why."""
    return Change(run.id, run.item_key, run.state, False, detail)


def refuse_child(run_id: str, what: str) -> None:
    """Raise ``UsageError`` for a sub-agent: it continues and ends with the run of its item."""
    root, *below = lineage(run_id)
    if below:
        raise UsageError(
            f"{run_id} is a sub-agent and cannot be {what}: name {root}, the run of its item"
        )


# --- Connections that were cut ---


@writes
def store_connections(
    connection: Connection,
    run_id: str,
    about: dict[str, Any],
    made: Iterable[HostConnection],
    now: float,
) -> bool:
    """Store the connections of a run that have no events yet; ``about`` says which call made them. Returns
    False, and stores nothing, while a worker works on the run, because its result may still contain
    them."""
    for run in locked_runs(connection, [run_id]):
        if run.state == "running":
            return False
        of_run = select(events.c.data).where(events.c.run_id == run_id, events.c.type == CONNECTION)
        stored = [data for (data,) in connection.execute(of_run) if isinstance(data, dict)]
        known = {data.get("at") for data in stored}
        new = [each for each in made if each.at not in known]
        if new:
            store_change(connection, run, now, list(connection_events(about, new)))
    return True


# --- Reads of transcripts ---


def record_read(database: Database, run_id: str, now: float, author: Author) -> None:
    """Append to a run that a person read its transcript, if its job wants that recorded."""
    from runner.core.spec import JobSpec  # late: lists need the rest of this module

    query = select(jobs.c.spec).join(runs, runs.c.job_id == jobs.c.id).where(runs.c.id == run_id)
    if not any(JobSpec.from_json(row.spec).record_reads for row in database.rows(query)):
        return

    def work(connection: Connection) -> None:
        for run in locked_runs(connection, [run_id]):
            signed_change(connection, run, now, "transcript_read", author, {})

    database.write(work)

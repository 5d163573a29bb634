"""Cancelling, pausing and resuming runs, and all that they have started, from outside their attempts.

Each takes runs in lots: a transaction locks them, looks at their states, and writes what changes with
its events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Row, insert, select, update

from runner.core.agents.agent import lineage
from runner.core.agents.place import is_within
from runner.core.author import UNKNOWN, Author
from runner.core.journal.events import Event, signed_event
from runner.core.run import ENDED, TRANSITIONS, RunStatus
from runner.errors import UsageError
from runner.store.connection.database import Database
from runner.store.job import warming
from runner.store.job.purse import charge_open_call
from runner.store.rows.progress import progress_from_row
from runner.store.tables import approvals, events, runs, tool_calls

_BATCH = 200


@dataclass(frozen=True, slots=True)
class Target:
    """A run, or all runs of a job."""

    kind: Literal["job", "run"]
    id: str


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one run: its state after it, whether anything changed, and a line that says it."""

    id: str
    item_key: str
    state: RunStatus
    changed: bool
    detail: str


def cancel(
    database: Database, target: Target, now: float, *, author: Author = UNKNOWN
) -> list[Change]:
    """End runs at once. An attempt that is running is fenced: it can append nothing more.

    Args:
        now: seconds since the epoch.
        author: who says so, for the record.
    """
    return _each(
        database, target, lambda connection, run: cancel_locked(connection, run, now, author)
    )


def pause(
    database: Database, target: Target, now: float, *, author: Author = UNKNOWN
) -> list[Change]:
    """Let runs wait until they are resumed: queued ones at once, running ones at their next step."""
    return _each(database, target, lambda connection, run: _pause(connection, run, now, author))


def resume(
    database: Database, target: Target, now: float, *, author: Author = UNKNOWN
) -> list[Change]:
    """Let paused runs go on."""
    return _each(database, target, lambda connection, run: _resume(connection, run, now, author))


def batches(
    database: Database, target: Target, *conditions: ColumnElement[bool]
) -> Iterator[Sequence[str]]:
    """The ids of the target's runs, in order, in lots that one transaction can change without
    holding up the workers' own for long; of a job, those that meet the conditions."""
    if target.kind == "run":
        yield [target.id]
        return
    query = select(runs.c.id).where(runs.c.job_id == target.id, *conditions).order_by(runs.c.id)
    found = database.read(lambda connection: connection.execute(query).scalars().all())
    for start in range(0, len(found), _BATCH):
        yield found[start : start + _BATCH]


def locked_runs(connection: Connection, run_ids: Sequence[str]) -> Sequence[Row[Any]]:
    """The rows of these runs, in order, locked until the transaction ends."""
    query = select(runs).where(runs.c.id.in_(run_ids)).order_by(runs.c.id).with_for_update()
    return connection.execute(query).all()


def store_change(
    connection: Connection, run: Row[Any], now: float, happened: Sequence[Event], **changes: Any
) -> None:
    """Write a locked run's changes and what happened to it, as one numbered event each."""
    state = changes.get("state", run.state)
    assert state == run.state or state in TRANSITIONS[run.state], (run.state, state)
    changes["event_count"] = run.event_count + len(happened)
    connection.execute(update(runs).where(runs.c.id == run.id).values(**changes))
    connection.execute(
        insert(events),
        [
            {
                "run_id": run.id,
                "number": number,
                "at": now,
                "attempt": run.attempt,
                "type": event.type,
                "data": event.data,
            }
            for number, event in enumerate(happened, run.event_count + 1)
        ],
    )


# What an event tells of a run's row when it changes.
_TOLD = (
    "state",
    "reason",
    "pause_requested",
    "queued_count",
    "max_turns",
    "token_ceiling",
    "cost_ceiling_usd",
    "working_time",
)


def change_event(
    kind: str,
    author: Author,
    run: Row[Any],
    changes: Mapping[str, Any],
    data: Mapping[str, Any] | None = None,
) -> Event:
    """The event of a change to a run, with the values that change in its row, old and new.

    Args:
        run: its row as it is.
        changes: what is written into it.
        data: what else the event tells.
    """
    new = {
        name: changes[name]
        for name in _TOLD
        if name in changes and changes[name] != getattr(run, name)
    }
    old = {name: getattr(run, name) for name in new}
    return signed_event(kind, author, data, old=old, new=new)


def changed(run: Row[Any], state: RunStatus, detail: str) -> Change:
    """A change that has been stored."""
    return Change(run.id, run.item_key, state, True, detail)


def unchanged(run: Row[Any], detail: str) -> Change:
    """Nothing was stored; ``detail`` says why."""
    return Change(run.id, run.item_key, run.state, False, detail)


def refuse_child(run_id: str, what: str) -> None:
    """Refuse what only the run of an item can be: its sub-agents go on and end with it.

    Raises:
        UsageError: the run is a sub-agent; which one to take instead.
    """
    root, *below = lineage(run_id)
    if below:
        raise UsageError(
            f"{run_id} is a sub-agent and cannot be {what}: take {root}, which it is of"
        )


def _each(
    database: Database, target: Target, act: Callable[[Connection, Row[Any]], Change]
) -> list[Change]:
    """Act on the target's runs and on all below them, until no more are found: who was not acted on yet
    may have started another. Of those below, the ones that changed are told."""

    def work(connection: Connection, run_ids: Sequence[str]) -> list[Change]:
        return [act(connection, run) for run in locked_runs(connection, run_ids)]

    changes: list[Change] = []
    seen: set[str] = set()
    while found := [each for each in _with_children(database, target) if each not in seen]:
        for start in range(0, len(found), _BATCH):
            lot = found[start : start + _BATCH]
            changes += database.write(partial(work, run_ids=lot))
        seen.update(found)
    return [one for one in changes if one.changed or one.id == target.id or "." not in one.id]


def _with_children(database: Database, target: Target) -> Sequence[str]:
    """The ids of the target's runs and of all below them, in order."""
    query = select(runs.c.id).order_by(runs.c.id)
    if target.kind == "job":
        query = query.where(runs.c.job_id == target.id)
        return database.read(lambda connection: connection.execute(query).scalars().all())
    query = query.where(runs.c.root_run == lineage(target.id)[0])
    tree = database.read(lambda connection: connection.execute(query).scalars().all())
    return [target.id, *(each for each in tree if is_within(each, target.id) and each != target.id)]


def cancel_locked(connection: Connection, run: Row[Any], now: float, author: Author) -> Change:
    """``cancel`` of one run whose row is locked, in the transaction that locked it."""
    if run.state in ENDED:
        return unchanged(run, f"had ended before: {run.state}")
    end = {"state": "cancelled", "reason": "cancelled", "detail": ""}
    happened = [change_event("cancelled", author, run, end)]
    why = "the run was cancelled before the reply was stored"
    changes, charged = charge_open_call(connection, run, "cancelled", why, now)
    happened += charged
    if run.state == "running":
        happened.append(Event("attempt_ended", {"why": "cancelled"}))
    happened.append(Event("done", {**end, "total": _total(run)}))
    store_change(
        connection,
        run,
        now,
        happened,
        **end,
        attempt=run.attempt + 1,
        worker_id=None,
        due_at=None,
        rung_at=None,
        ended_at=now,
        pause_requested=False,
        **changes,
    )
    connection.execute(
        update(tool_calls)
        .where(tool_calls.c.run_id == run.id, tool_calls.c.ended_at.is_(None))
        .values(interrupted=True)
    )
    connection.execute(
        update(approvals)
        .where(approvals.c.run_id == run.id, approvals.c.answer.is_(None))
        .values(
            answer="cancelled",
            answered_at=now,
            answered_by=author.name,
            answered_via="cancel",
            reason=author.why,
        )
    )
    if progress_from_row(run).warms:
        warming.let_siblings_start(connection, run.job_id, now)
    return changed(run, "cancelled", "cancelled")


def _total(run: Row[Any]) -> dict[str, int]:
    return {
        "input": run.input_tokens,
        "cache_read": run.cache_read_tokens,
        "cache_creation": run.cache_creation_tokens,
        "output": run.output_tokens,
    }


def _pause(connection: Connection, run: Row[Any], now: float, author: Author) -> Change:
    if run.state in ENDED:
        return unchanged(run, f"has ended: {run.state}")
    if run.pause_requested and run.state != "queued":
        return unchanged(run, "is being paused already")
    if run.state == "queued" or (run.state == "waiting" and run.reason in _NOTHING_IN_HAND):
        paused = {"state": "waiting", "reason": "paused", "detail": "", "due_at": None}
        event = change_event("paused", author, run, paused)
        store_change(connection, run, now, [event], **paused, pause_requested=False)
        return changed(run, "waiting", "paused")
    if run.reason == "paused" and run.state == "waiting":
        return unchanged(run, "is paused already")
    requested = {"pause_requested": True}
    event = change_event("pause_requested", author, run, requested)
    store_change(connection, run, now, [event], **requested)
    if run.state == "running":
        when = "at its next step"
    elif run.reason == "approval":
        when = "when its question is answered"
    else:
        when = "at its first step in its workspace"
    return changed(run, run.state, f"pauses {when}")


# What a run waits for that is paused at once: it has nothing in hand that it would lose.
_NOTHING_IN_HAND = ("budget", "children")


def _resume(connection: Connection, run: Row[Any], now: float, author: Author) -> Change:
    if run.state in ENDED:
        return unchanged(run, f"has ended: {run.state} (see `runner retry --help`)")
    goes_on: dict[str, Any] = {"pause_requested": False}
    if run.state == "waiting" and run.reason == "paused":
        goes_on |= {"state": "queued", "reason": "", "due_at": now, "rung_at": None}
        event = change_event("resumed", author, run, goes_on)
        store_change(connection, run, now, [event], **goes_on)
        return changed(run, "queued", "resumed")
    if run.pause_requested:
        event = change_event("resumed", author, run, goes_on)
        store_change(connection, run, now, [event], **goes_on)
        return changed(run, run.state, "no longer pauses")
    if run.state == "waiting" and run.reason == "approval":
        return unchanged(run, f"waits for an answer: see `runner approvals {run.id}`")
    if run.state == "waiting" and run.reason == "budget":
        return unchanged(
            run,
            f"waits for its job's budget: raise it with `runner budget {run.job_id}` and --usd N "
            "or --tokens N",
        )
    if run.state == "waiting" and run.reason == "children":
        return unchanged(run, "waits for its sub-agents")
    if run.state == "waiting":
        return unchanged(run, "waits for its workspace: start a worker that can see it")
    return unchanged(run, "is not paused")

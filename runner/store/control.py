"""Cancel, pause and resume runs with their sub-agents, from outside their attempts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, select, update

from runner.core.commands import Change, Target
from runner.core.events import Event, usage_of
from runner.core.pauses import BY_PILOT
from runner.core.run import ENDED, RUNNERS_NAME, UNKNOWN, Author
from runner.store.budgets import charge_open_call, let_siblings_start
from runner.store.changes import (
    FREED,
    change_event,
    changed,
    ended,
    locked_runs,
    queued_again,
    signed_change,
    store_change,
    unchanged,
)
from runner.store.conditions import in_tree, in_trees
from runner.store.database import Database, in_lots
from runner.store.run_state import progress_from_row
from runner.store.tables import approvals, runs, tool_calls

_Act = Callable[[Connection, Row[Any], float, Author], Change]

# What a run waits for that is paused at once: it has nothing in hand that it would lose.
_NOTHING_IN_HAND = ("budget", "children", "finish_by", "batch")
_NOT_PAUSED = {
    "approval": "waits for an answer: see `runner approvals {0.id}`",
    "batch": "waits for a batch of the API",
    "budget": "waits for its job's budget: raise it with `runner budget {0.job_id}` and --usd N or "
    "--tokens N",
    "children": "waits for its sub-agents",
    "finish_by": "waits since its job's finish_by: move it with `runner finish-by {0.job_id} TIME`",
    "workspace": "waits for its workspace: start a worker that can see it",
}


def cancel_locked(connection: Connection, run: Row[Any], now: float, author: Author) -> Change:
    """``cancel`` of one run whose row is locked, in the transaction that locked it."""
    if run.state in ENDED:
        return unchanged(run, f"had ended before: {run.state}")
    progress = progress_from_row(run)
    end = {"state": "cancelled", "reason": "cancelled", "detail": ""}
    why = "the run was cancelled before the reply was stored"
    charges, charged = charge_open_call(connection, run, "cancelled", why, now)
    happened = [change_event("cancelled", author, run, end), *charged]
    if run.state == "running":
        happened.append(Event("attempt_ended", {"why": "cancelled"}))
    happened.append(Event("done", {**end, "total": usage_of(progress.money.usage)}))
    changes = {**ended(**end, now=now), "attempt": run.attempt + 1, **charges}
    store_change(connection, run, now, happened, **changes)
    connection.execute(
        update(tool_calls)
        .where(tool_calls.c.run_id == run.id, tool_calls.c.ended_at.is_(None))
        .values(interrupted=True)
    )
    answer = {"answer": "cancelled", "answered_at": now, "answered_via": "cancel"}
    connection.execute(
        update(approvals)
        .where(approvals.c.run_id == run.id, approvals.c.answer.is_(None))
        .values(**answer, answered_by=author.name, reason=author.why)
    )
    if progress.model.warms_cache:
        let_siblings_start(connection, run.job_id, now)
    return changed(run, "cancelled", "cancelled")


def _pause(connection: Connection, run: Row[Any], now: float, author: Author) -> Change:
    if run.state in ENDED:
        return unchanged(run, f"has ended: {run.state}")
    if run.pause_requested and run.state != "queued":
        return unchanged(run, "is being paused already")
    waits_for = run.reason if run.state == "waiting" else None
    if run.state == "queued" or waits_for in _NOTHING_IN_HAND:
        detail = author.why if author.name == RUNNERS_NAME else ""
        paused = {**FREED, "state": "waiting", "reason": "paused", "detail": detail}
        signed_change(connection, run, now, "paused", author, {**paused, "pause_requested": False})
        return changed(run, "waiting", "paused")
    if waits_for == "paused":
        return unchanged(run, "is paused already")
    signed_change(connection, run, now, "pause_requested", author, {"pause_requested": True})
    if run.state == "running":
        return changed(run, run.state, "pauses at its next step")
    asked = run.reason == "approval"
    when = "when its question is answered" if asked else "at its first step in its workspace"
    return changed(run, run.state, f"pauses {when}")


def _resume(connection: Connection, run: Row[Any], now: float, author: Author) -> Change:
    if run.state in ENDED:
        return unchanged(run, f"has ended: {run.state} (see `runner retry --help`)")
    is_paused = run.state == "waiting" and run.reason == "paused"
    if is_paused or run.pause_requested:
        changes = {"pause_requested": False, **(queued_again(run, now) if is_paused else {})}
        signed_change(connection, run, now, "resumed", author, changes)
        if is_paused:
            return changed(run, "queued", "resumed")
        return changed(run, run.state, "no longer pauses")
    if run.state == "waiting":
        return unchanged(run, _NOT_PAUSED[run.reason].format(run))
    return unchanged(run, "is not paused")


def _is_held(run: Row[Any]) -> bool:
    return (run.state, run.reason, run.detail) == ("waiting", "paused", BY_PILOT)


def _resume_held(connection: Connection, run: Row[Any], now: float, author: Author) -> Change:
    if _is_held(run):
        return _resume(connection, run, now, author)
    return unchanged(run, "was not held by the pilot")


def _resume_others(connection: Connection, run: Row[Any], now: float, author: Author) -> Change:
    if _is_held(run):
        return unchanged(run, "waits until the pilot has ended")
    return _resume(connection, run, now, author)


def _each(
    act: _Act,
    database: Database,
    target: Target,
    now: float,
    *,
    author: Author = UNKNOWN,
    among: Sequence[str] | None = None,
) -> list[Change]:
    """Act on the target's runs and their sub-agents, of a job's runs only on those ``among``. Returns the
    changes; of sub-agents only if something changed."""
    if among is not None:
        conditions = [in_trees(lot) for lot in in_lots(among)]
    else:
        conditions = [runs.c.job_id == target.id if target.kind == "job" else in_tree(target.id)]
    found = [one for of in conditions for one in _all_of(act, database, of, now, author)]
    return [one for one in found if one.changed or one.id == target.id or "." not in one.id]


def _all_of(
    act: _Act, database: Database, of: ColumnElement[bool], now: float, author: Author
) -> list[Change]:
    """Act on the runs of a condition until no more are found, as runs may start others meanwhile."""

    def work(connection: Connection, run_ids: Sequence[str]) -> list[Change]:
        return [act(connection, run, now, author) for run in locked_runs(connection, run_ids)]

    query = select(runs.c.id).where(of).order_by(runs.c.id)
    changes: list[Change] = []
    seen: set[str] = set()
    while found := [run.id for run in database.rows(query) if run.id not in seen]:
        for lot in in_lots(found):
            changes += database.write(partial(work, run_ids=lot))
        seen.update(found)
    return changes


# End runs at once. An attempt that is running is fenced: it can append nothing more.
cancel = partial(_each, cancel_locked)
# Let runs wait until they are resumed: queued ones at once, running ones at their next step.
pause = partial(_each, _pause)
# Let paused runs go on.
resume = partial(_each, _resume)
# Let the items after a pilot go on, or only the other paused runs.
resume_held = partial(_each, _resume_held)
resume_others = partial(_each, _resume_others)

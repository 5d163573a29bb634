"""Job budgets, and the cache warm-up that lets the first run of a job pay for the common prefix.

A budget changes in the transaction in which a call of one of the job's runs begins or ends. At every
commit, what is reserved are the reservations of open calls, what is spent is what the runs were
charged, and both together are within the caps.

**The order of locks.** Who locks several rows takes workers first, then runs, then jobs and their
budgets, each kind by id. An attempt holds its run when it locks the budget; who cancels, answers or
takes runs from a dead worker holds all of its runs. Nobody who holds a job or a budget waits for a run.

**Cache warm-up.** The API keeps a prefix from when the reply to it begins
(https://docs.claude.com/en/docs/build-with-claude/prompt-caching). Of runs that start together each
would pay for writing it, so the siblings wait for the first run's first reply.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select, update

from runner.core.budget import JobBudget, Reservation, billionths
from runner.core.events import Event
from runner.core.spec import Submission
from runner.store.run_state import progress_from_row, progress_to_json
from runner.store.statements import execute
from runner.store.tables import model_calls, purses, runs

_SUMS = ("spent_tokens", "spent_cost", "reserved_tokens", "reserved_cost")
_PURSE = select(purses).where(purses.c.job_id == bindparam("job"))
_LOCKED_PURSE = _PURSE.with_for_update()


def look_into(connection: Connection, job_id: str) -> JobBudget | None:
    """A job's budget as it stands; None without a budget."""
    return _budget_of(execute(connection, _PURSE, {"job": job_id}))


def lock(connection: Connection, job_id: str) -> JobBudget | None:
    """A job's budget, locked until the transaction ends; None without a budget."""
    return _budget_of(execute(connection, _LOCKED_PURSE, {"job": job_id}))


def _budget_of(rows: list[Any]) -> JobBudget | None:
    if not rows:
        return None
    (row,) = rows
    return JobBudget(
        most_tokens=row.budget_tokens,
        most_cost=None if row.budget_usd is None else billionths(row.budget_usd),
        **{name: getattr(row, name) for name in _SUMS},
    )


def sums(job_budget: JobBudget) -> dict[str, int]:
    """What of a budget changes with its runs' calls, as columns."""
    return {name: getattr(job_budget, name) for name in _SUMS}


def charge_open_call(
    connection: Connection, run: Row[Any], kind: str, why: str, now: float
) -> tuple[dict[str, Any], list[Event]]:
    """End the model call of a run whose usage nobody will know: it is charged what it had reserved.

    Args:
        run: its row, locked. kind: a word for what ended the call. why: the same in a sentence.
        now: seconds since the epoch.

    Returns:
        What changes in the run's row, and the event; nothing when it has no call in hand.
    """
    progress = progress_from_row(run)
    call = progress.model.open_call
    if call is None:
        return {}, []
    charged, cost = call.reservation.worst_case, call.reservation.worst_cost
    connection.execute(
        update(model_calls)
        .where(model_calls.c.run_id == run.id, model_calls.c.number == call.number)
        .values(ended_at=now, charged_tokens=charged, error=f"{kind}: {why}")
    )
    _spend_reserved(connection, run.job_id, call.reservation)
    after = replace(
        progress,
        model=replace(progress.model, open_call=None),
        money=replace(progress.money, charged_cost=progress.money.charged_cost + cost),
    )
    changes = {"charged_tokens": run.charged_tokens + charged, "progress": progress_to_json(after)}
    data = {"call": call.number, "kind": kind, "message": why, "charged": charged}
    return changes, [Event("model_call_ended", {**data, "status": None, "request_id": None})]


def _spend_reserved(connection: Connection, job_id: str, call: Reservation) -> None:
    connection.execute(
        update(purses)
        .where(purses.c.job_id == job_id)
        .values(
            spent_tokens=purses.c.spent_tokens + call.worst_case,
            spent_cost=purses.c.spent_cost + call.worst_cost,
            reserved_tokens=purses.c.reserved_tokens - call.worst_case,
            reserved_cost=purses.c.reserved_cost - call.worst_cost,
        )
    )


WARMING = "warming"  # why a sibling is queued
MOST_SECONDS = 5.0  # that it waits

# Shorter prefixes are not cached by any model.
_LEAST_CACHED_TOKENS = 1_024


def is_worth_it(submission: Submission) -> bool:
    """Whether the job's runs share a prefix that is worth the wait."""
    spec = submission.spec
    if spec.provider != "anthropic" or len(submission.runs) < 2:
        return False
    return spec.shared_tokens >= _LEAST_CACHED_TOKENS


def let_siblings_start(connection: Connection, job_id: str, now: float) -> None:
    """The runs that still wait for the first one's reply are due.

    Their rows are locked out of the order of ids, while that of the first is held: those that someone
    else holds are left out, and are due soon anyway.
    """
    waiting = select(runs.c.id).where(
        runs.c.job_id == job_id,
        runs.c.state == "queued",
        runs.c.reason == WARMING,
        runs.c.due_at > now,
    )
    connection.execute(
        update(runs)
        .where(runs.c.id.in_(waiting.with_for_update(skip_locked=True)))
        .values(due_at=now, rung_at=None)
    )

"""Job budgets, and the cache warm-up that lets the first run of a job pay for the common prefix.

A budget changes in the transaction in which a call of one of the job's runs begins or ends. At every
commit, what is reserved are the reservations of open calls, what is spent is what the runs were
charged, and both together are within the caps.

**The order of locks.** A transaction that locks several rows takes workers first, then the limits of jobs
(``job_shares``), then runs, then jobs and their budgets, then the tree of a run, at last the cap of the
day (``store.caps``), for which all work waits; each kind by id. An
attempt holds its run when it locks the budget; a transaction that cancels, answers or takes runs from a
dead worker holds all of its runs. A claim holds the limits of its job when it takes the run. No
transaction that holds a job or a budget waits for a run, with one exception: ``runner prune``, whose runs
have ended. A transaction that takes rows in another order passes over the ones that are locked
(SKIP LOCKED), so it waits for nobody: choosing runs, forgetting queue messages, taking runs from dead
workers, waking siblings. If two still wait for each other, ``Database.write`` tries the one again that the
server rolled back.

**Cache warm-up.** The API keeps a prefix from when the reply to it begins
(https://docs.claude.com/en/docs/build-with-claude/prompt-caching). Of runs that start together each
would pay for writing it, so the siblings wait for the first run's first reply.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select, update

from runner.core.budget import NOTICE_SECONDS, Charged, JobBudget, billionths, in_usd, written_in
from runner.core.commands import Change
from runner.core.events import Event
from runner.core.run import RUNNER, Author
from runner.core.spec import LEAST_CACHED_TOKENS, JobSpec, Submission
from runner.errors import UsageError
from runner.store import caps
from runner.store.changes import queued, resume, resumed_event, tell_of_job
from runner.store.conditions import IS_ITEM_RUN
from runner.store.database import Database, reads
from runner.store.notices import arm_again
from runner.store.rules import lock_rules
from runner.store.run_state import progress_from_row, progress_to_json
from runner.store.specs import JobCache
from runner.store.statements import execute
from runner.store.tables import batch_calls, job_budgets, model_calls, runs

_SUMS = ("spent_tokens", "spent_cost", "reserved_tokens", "reserved_cost")
_BUDGET = select(job_budgets).where(job_budgets.c.job_id == bindparam("job"))
_LOCKED_BUDGET = _BUDGET.with_for_update()
_WAITS = (runs.c.state == "waiting") & (runs.c.reason == "budget")


def look_into(connection: Connection, job_id: str, *, lock: bool = False) -> JobBudget | None:
    """Return a job's budget or None; with ``lock``, lock it until the transaction ends."""
    for row in execute(connection, _LOCKED_BUDGET if lock else _BUDGET, {"job": job_id}):
        most_cost = None if row.budget_usd is None else billionths(row.budget_usd)
        return JobBudget(row.budget_tokens, most_cost, *(getattr(row, name) for name in _SUMS))
    return None


budget_of = reads(look_into)


def lock_all(connection: Connection, job_ids: Collection[str]) -> None:
    """Lock the budgets of jobs before calls are charged. The cap of the day is locked after them."""
    found = select(job_budgets.c.job_id).where(job_budgets.c.job_id.in_(job_ids))
    connection.execute(found.order_by(job_budgets.c.job_id).with_for_update()).all()


def sums(job_budget: JobBudget) -> dict[str, int]:
    """The columns of a budget that change with calls."""
    return {name: getattr(job_budget, name) for name in _SUMS}


def charge_open_call(
    connection: Connection, run: Row[Any], kind: str, why: str, now: float, *, died: bool = False
) -> tuple[dict[str, Any], list[Event]]:
    """End a model call of unknown usage, of a locked run, and charge its reservation: if its worker
    ``died``, no more of it than the API can have written until it noticed; nothing if the call waited
    for a batch that was not made. ``kind`` and ``why`` say what ended it. Returns the changed columns of
    the run, and the event; nothing without an open call."""
    progress = progress_from_row(run)
    call = progress.model.open_call
    if call is None:
        return {}, []
    of_call = (model_calls.c.run_id == run.id, model_calls.c.number == call.number)
    output = call.reservation.max_tokens
    if died:
        began = connection.execute(select(model_calls.c.started_at).where(*of_call)).scalar_one()
        # A clock that was set since the start says nothing.
        output = written_in(now - began + NOTICE_SECONDS) if began <= now else output
    charge = call.reservation.at_most(output)
    if call.reservation.batch and not end_batch_call(connection, run.id, call.number, now):
        charge = Charged(0)
    charged, cost = charge.tokens, charge.cost
    connection.execute(
        update(model_calls)
        .where(*of_call)
        .values(ended_at=now, charged_tokens=charged, error=f"{kind}: {why}")
    )
    if (budget := look_into(connection, run.job_id, lock=True)) is not None:
        spent = sums(budget.with_spent(call.reservation, charged, cost))
        connection.execute(
            update(job_budgets).where(job_budgets.c.job_id == run.job_id).values(spent)
        )
    caps.charge(connection, call.reservation, cost, now)
    after = replace(
        progress,
        model=replace(progress.model, open_call=None),
        money=replace(progress.money, charged_cost=progress.money.charged_cost + cost),
    )
    changes = {"charged_tokens": run.charged_tokens + charged, "progress": progress_to_json(after)}
    data = {
        "call": call.number,
        "kind": kind,
        "message": why,
        "charged": charged,
        "unknown_cost": cost,
    }
    return changes, [Event("model_call_ended", {**data, "status": None, "request_id": None})]


def end_batch_call(connection: Connection, run_id: str, number: int, now: float) -> bool:
    """End a call that is in a batch or waits for one: its result will only correct the charge. True if it
    is in a batch."""
    this = batch_calls.c.run_id == run_id, batch_calls.c.number == number
    ended = update(batch_calls).where(*this).values(ended_at=now)
    batch = connection.execute(ended.returning(batch_calls.c.batch_id)).scalar()
    return batch is not None


def set_budget(
    database: Database,
    job_id: str,
    now: float,
    *,
    author: Author,
    usd: float | None = None,
    tokens: int | None = None,
) -> list[Change]:
    """Change a job's budget, and queue the runs that wait for it.

    A budget may be less than what is spent and reserved, down to what is spent: calls that have begun
    keep what they reserved, and no other begins until there is room again. Setting a budget to what
    it is wakes the runs that wait, too.

    Args:
        usd, tokens: the new caps; None keeps a cap.

    Returns:
        The runs that are queued again. They wait once more if the budget still does not cover their
        next call.

    Raises:
        NotFoundError: there is no such job.
        UsageError: the job has no budget that could be changed, or it would be less than what is
            spent; what to do.
    """
    if usd is None and tokens is None:
        raise UsageError("give the new budget: --usd N, --tokens N or both")
    setting = partial(_set, job_id=job_id, usd=usd, tokens=tokens, author=author, now=now)
    old, new = database.write(setting)
    return wake_for_budget(database, job_id, author, now, old, new)


def wake_for_budget(
    database: Database,
    job_id: str,
    author: Author,
    now: float,
    old: Mapping[str, Any] | None = None,
    new: Mapping[str, Any] | None = None,
) -> list[Change]:
    """Queue the runs that wait for a job's budget, after it changed: ``old`` and ``new`` are its caps."""
    # An attempt that saw the old budget is waiting by now; a later one sees the new one. The runs are
    # locked afterwards: a transaction that holds a budget does not wait for a run.
    query = select(runs.c.id).where(runs.c.job_id == job_id, _WAITS).order_by(runs.c.id)
    waiting = [run.id for run in database.rows(query)]
    return wake(database, waiting, "budget", author, now, old, new)


def _set(
    connection: Connection,
    job_id: str,
    usd: float | None,
    tokens: int | None,
    author: Author,
    now: float,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the caps that change, as they were and as they are."""
    lock_rules(connection, job_id)
    budget = look_into(connection, job_id, lock=True)
    if budget is None:
        raise UsageError(
            f"{job_id} has no budget to change: give its file a budget_usd or "
            "budget_tokens under [limits] and submit it again"
        )
    if usd is not None and budget.most_cost is None:
        raise UsageError(
            f"{job_id} has a budget in tokens only: raise that with "
            f"`runner budget {job_id} --tokens N`, or submit it again with a budget_usd"
        )
    if usd is not None and billionths(usd) < budget.spent_cost:
        spent = in_usd(budget.spent_cost)
        raise UsageError(f"{job_id} has spent {spent}: its budget cannot be less")
    if tokens is not None and tokens < budget.spent_tokens:
        raise UsageError(
            f"{job_id} has used {budget.spent_tokens:,} tokens: its budget cannot be less"
        )
    of_job = job_budgets.c.job_id == job_id
    before = connection.execute(select(job_budgets).where(of_job)).mappings().one()
    given = {"budget_usd": usd, "budget_tokens": tokens}
    new = {name: cap for name, cap in given.items() if cap is not None and cap != before[name]}
    old = {name: before[name] for name in new}
    if new:
        connection.execute(update(job_budgets).where(of_job).values(new))
        arm_again(connection, job_id, now, raised=True)
    tell_of_job(connection, job_id, now, "budget_changed", author, old=old, new=new)
    return old, new


def wake(
    database: Database,
    run_ids: Sequence[str],
    why: str,
    author: Author,
    now: float,
    old: Mapping[str, Any] | None = None,
    new: Mapping[str, Any] | None = None,
) -> list[Change]:
    """Queue the runs that wait for their budget; ``old`` and ``new`` are its caps."""
    event = resumed_event(author, "budget", why, old, new)
    if why == "deadline":  # such a run only ends, so nothing holds it back
        return resume(database, run_ids, _WAITS, event, now, lambda run, now: queued(now))
    return resume(database, run_ids, _WAITS, event, now)


def wake_overdue(database: Database, jobs_read: JobCache, now: float) -> list[str]:
    """Queue waiting runs whose deadline has passed, so that they end, which costs nothing. A sub-agent has
    its own deadline. Returns their ids. Every dispatcher calls this in each pass, so it is cheap for jobs
    of any size."""
    waiting = select(runs.c.job_id).where(_WAITS).distinct()
    job_ids = [row.job_id for row in database.rows(waiting)]
    by_deadline: dict[float, list[str]] = {}
    for job_id, spec in jobs_read.specs(database, job_ids).items():
        if (deadline := spec.limits.deadline) is not None:
            by_deadline.setdefault(deadline, []).append(job_id)
    looks = [~IS_ITEM_RUN & (runs.c.created_at + runs.c.deadline <= now)] if job_ids else []
    looks += [
        IS_ITEM_RUN & runs.c.job_id.in_(of_jobs) & (runs.c.created_at + deadline <= now)
        for deadline, of_jobs in by_deadline.items()
    ]
    found = (database.rows(select(runs.c.id).where(_WAITS, look)) for look in looks)
    late = sorted(run.id for rows in found for run in rows)
    return [run.id for run in wake(database, late, "deadline", RUNNER, now)]


WARMING = "warming"  # why a sibling is queued
MOST_SECONDS = 5.0  # that it waits
MOST_BATCH_SECONDS = 600.0  # that it waits where the others go into a batch
_IS_SIBLING = (runs.c.state == "queued") & (runs.c.reason == WARMING)


def is_worth_it(submission: Submission) -> bool:
    """True if the job's runs share a prefix that is worth the wait."""
    spec = submission.spec
    if spec.lane != "realtime":  # the first reply proves the requests, too
        return True
    several = spec.provider != "scripted" and len(submission.runs) > 1
    return several and spec.shared_tokens >= LEAST_CACHED_TOKENS


def longest_wait(spec: JobSpec) -> float:
    """Return for how many seconds siblings wait at most."""
    return MOST_SECONDS if spec.lane == "realtime" else MOST_BATCH_SECONDS


def let_siblings_start(connection: Connection, job_id: str, now: float) -> None:
    """Make the runs that wait for the first run's reply due. Their rows are locked out of the order
    of ids: rows that someone else holds are left to ``wake_siblings``."""
    waiting = select(runs.c.id).where(runs.c.job_id == job_id, _IS_SIBLING, runs.c.due_at > now)
    connection.execute(
        update(runs)
        .where(runs.c.id.in_(waiting.with_for_update(skip_locked=True)))
        .values(due_at=now, rung_at=None)
    )


def wake_siblings(database: Database, now: float) -> None:
    """Make the runs due that someone held when the first run's reply came, if they would wait for long.
    Every dispatcher calls this in each pass."""
    left = select(runs.c.job_id).where(_IS_SIBLING, runs.c.due_at > now + MOST_SECONDS)
    for (job_id,) in database.rows(left.distinct()):
        others = runs.c.job_id == job_id, runs.c.ended_at.is_(None), ~_IS_SIBLING
        begun = database.rows(select(runs.c.progress).where(*others))
        if not any(progress["model"]["warms_cache"] for (progress,) in begun):
            database.write(partial(let_siblings_start, job_id=job_id, now=now))

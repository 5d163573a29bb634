"""Budgets of jobs: what they are, and changing them from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from sqlalchemy import Connection, not_, select, update

from runner.core.author import RUNNER, Author
from runner.core.journal.events import signed_event
from runner.core.money.budget import Budget, JobBudget, billionths, in_usd
from runner.errors import UsageError
from runner.store.connection.database import Database
from runner.store.job import purse as money
from runner.store.job.rules import lock_rules
from runner.store.steer.control import (
    Change,
    Target,
    batches,
    changed,
    locked_runs,
    store_change,
)
from runner.store.steer.job_events import add_job_events
from runner.store.tables import jobs, purses, runs

_BATCH = 200
_WAITS = (runs.c.state == "waiting") & (runs.c.reason == "budget")
_WAITING_JOBS = select(runs.c.job_id).where(_WAITS).distinct()


def budget_of(database: Database, job_id: str) -> JobBudget | None:
    """What the runs of a job may use together, have used and have reserved; None without a budget."""
    return database.read(lambda connection: money.look_into(connection, job_id))


def set_budget(
    database: Database,
    job_id: str,
    now: float,
    *,
    author: Author,
    usd: float | None = None,
    tokens: int | None = None,
) -> list[Change]:
    """Change what the runs of a job may use together, and wake those that wait for it.

    A budget may be less than what is spent and reserved, down to what is spent: calls that have begun
    keep what they reserved, and no other begins until there is room again. Setting a budget to what
    it is wakes the runs that wait, too.

    Args:
        now: seconds since the epoch.
        author: who says so, for the record.
        usd, tokens: the new caps; None leaves one as it is.

    Returns:
        The runs that are queued again. They wait once more if the budget still does not cover their
        next call.

    Raises:
        NotFoundError: there is no such job.
        UsageError: the job has no budget that could be changed, or it would be less than what is
            spent; what to do.
    """
    if usd is None and tokens is None:
        raise UsageError("say what the budget is to be: --usd N, --tokens N or both")
    setting = partial(_set, job_id=job_id, usd=usd, tokens=tokens, author=author, now=now)
    before, after = database.write(setting)
    # Whoever saw the old caps under the purse's lock is waiting by now, and whoever comes sees the new
    # ones. Runs are not locked before: who holds a purse does not wait for a run.
    woken = _Woken("budget", author, *_difference(before, after))
    return [
        change
        for run_ids in batches(database, Target("job", job_id), _WAITS)
        for change in database.write(partial(_wake, run_ids=run_ids, woken=woken, now=now))
    ]


class BudgetWaits:
    """The runs of a database that wait for their jobs' budgets, looked at again and again: whatever
    waits costs the database little, however large its job."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Of the jobs whose runs waited at the last look: specs, which can be large, never change.
        self._deadlines: dict[str, float | None] = {}

    def wake_overdue(self, now: float) -> list[str]:
        """Queue the runs again whose deadline has passed: all that is left for them is to end, which
        costs nothing. A sub-agent has a deadline of its own.

        Args:
            now: seconds since the epoch.

        Returns:
            Their ids.

        Raises:
            UnreachableError: the database does not answer.
        """
        woken = _Woken("deadline", RUNNER, {}, {})
        late = self._database.read(lambda connection: self._overdue(connection, now))
        return [
            change.id
            for start in range(0, len(late), _BATCH)
            for change in self._database.write(
                partial(_wake, run_ids=late[start : start + _BATCH], woken=woken, now=now)
            )
        ]

    def _overdue(self, connection: Connection, now: float) -> list[str]:
        """The runs that have waited for too long, in order."""
        job_ids = connection.execute(_WAITING_JOBS).scalars().all()
        self._look_up_deadlines(connection, job_ids)
        if not job_ids:
            return []
        jobs_by_deadline: dict[float, list[str]] = {}
        for job_id, deadline in self._deadlines.items():
            if deadline is not None:
                jobs_by_deadline.setdefault(deadline, []).append(job_id)
        children = runs.c.parent_run.is_not(None)
        looks = [children & (runs.c.created_at + runs.c.deadline <= now)]
        looks += [
            not_(children) & runs.c.job_id.in_(of_jobs) & (runs.c.created_at + deadline <= now)
            for deadline, of_jobs in jobs_by_deadline.items()
        ]
        late = [
            connection.execute(select(runs.c.id).where(_WAITS, each)).scalars() for each in looks
        ]
        return sorted(chain.from_iterable(late))

    def _look_up_deadlines(self, connection: Connection, job_ids: Sequence[str]) -> None:
        known = self._deadlines
        new = [job_id for job_id in job_ids if job_id not in known]
        # Read whole: Postgres can take nothing out of JSON that has a NUL anywhere.
        query = select(jobs.c.id, jobs.c.spec).where(jobs.c.id.in_(new))
        read = connection.execute(query).all() if new else ()
        known = known | {job.id: job.spec["limits"]["deadline"] for job in read}
        self._deadlines = {job_id: known[job_id] for job_id in job_ids}


def _set(
    connection: Connection,
    job_id: str,
    usd: float | None,
    tokens: int | None,
    author: Author,
    now: float,
) -> tuple[Budget, Budget]:
    lock_rules(connection, job_id)
    purse = money.lock(connection, job_id)
    if purse is None:
        raise UsageError(
            f"{job_id} has no budget that could be changed: give its file a budget_usd or "
            "budget_tokens under [limits] and submit it again"
        )
    query = select(purses.c.budget_usd, purses.c.budget_tokens).where(purses.c.job_id == job_id)
    before = Budget(*connection.execute(query).one())
    if usd is not None:
        _refuse_usd(job_id, purse, usd)
    if tokens is not None and tokens < purse.spent_tokens:
        raise UsageError(
            f"{job_id} has used {purse.spent_tokens:,} tokens: its budget cannot be less"
        )
    after = replace(
        before,
        usd=before.usd if usd is None else usd,
        tokens=before.tokens if tokens is None else tokens,
    )
    caps = {"budget_usd": after.usd, "budget_tokens": after.tokens}
    connection.execute(update(purses).where(purses.c.job_id == job_id).values(**caps))
    old, new = _difference(before, after)
    event = signed_event("budget_changed", author, old=old, new=new)
    add_job_events(connection, job_id, [event], now)
    return before, after


def _difference(before: Budget, after: Budget) -> tuple[dict[str, Any], dict[str, Any]]:
    """The caps that changed, as they were and as they are."""
    old = {"budget_usd": before.usd, "budget_tokens": before.tokens}
    new = {"budget_usd": after.usd, "budget_tokens": after.tokens}
    differ = [name for name in old if old[name] != new[name]]
    return {name: old[name] for name in differ}, {name: new[name] for name in differ}


def _refuse_usd(job_id: str, purse: JobBudget, usd: float) -> None:
    if purse.most_cost is None:
        raise UsageError(
            f"{job_id} has a budget in tokens only: raise that with "
            f"`runner budget {job_id} --tokens N`, or submit it again with a budget_usd"
        )
    if billionths(usd) < purse.spent_cost:
        spent = in_usd(purse.spent_cost)
        raise UsageError(f"{job_id} has spent {spent}: its budget cannot be less")


@dataclass(frozen=True, slots=True)
class _Woken:
    """Why runs are woken, by whom, and the caps of their job before and after."""

    reason: str
    author: Author
    old: Mapping[str, Any]
    new: Mapping[str, Any]


def _wake(
    connection: Connection, run_ids: Sequence[str], woken: _Woken, now: float
) -> list[Change]:
    queued: dict[str, Any] = {"state": "queued", "reason": "", "detail": "", "due_at": now}
    queued["rung_at"] = None
    old = {"state": "waiting", "reason": "budget", **woken.old}
    new = {"state": "queued", "reason": "", **woken.new}
    data = {"reason": woken.reason}
    event = signed_event("resumed", woken.author, data, old=old, new=new)
    changes = []
    for run in locked_runs(connection, run_ids):
        if run.state == "waiting" and run.reason == "budget":
            store_change(connection, run, now, [event], **queued)
            changes.append(changed(run, "queued", "goes on"))
    return changes

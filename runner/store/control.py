"""Cancel, pause and resume runs with their sub-agents, and change job budgets, from outside their
attempts.

Runs are changed in batches: a transaction locks them, checks their states, and writes changes with
their events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, insert, not_, select, update

from runner.core.agents import is_within, lineage
from runner.core.budget import Budget, JobBudget, billionths, in_usd
from runner.core.commands import Change, Target
from runner.core.events import Event, signed_event
from runner.core.run import ENDED, RUNNER, TRANSITIONS, UNKNOWN, Author, RunStatus
from runner.errors import UsageError
from runner.store import budgets
from runner.store import budgets as money
from runner.store.budgets import charge_open_call
from runner.store.database import Database
from runner.store.entries import add_job_events
from runner.store.rules import lock_rules
from runner.store.run_state import progress_from_row
from runner.store.tables import approvals, events, jobs, purses, runs, tool_calls

_BATCH = 200


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
    if progress_from_row(run).model.warms_cache:
        budgets.let_siblings_start(connection, run.job_id, now)
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
    # Whoever saw the old caps under the budget's lock is waiting by now, and whoever comes sees the new
    # ones. Runs are not locked before: who holds a budget does not wait for a run.
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
    job_budget = money.lock(connection, job_id)
    if job_budget is None:
        raise UsageError(
            f"{job_id} has no budget that could be changed: give its file a budget_usd or "
            "budget_tokens under [limits] and submit it again"
        )
    query = select(purses.c.budget_usd, purses.c.budget_tokens).where(purses.c.job_id == job_id)
    before = Budget(*connection.execute(query).one())
    if usd is not None:
        _refuse_usd(job_id, job_budget, usd)
    if tokens is not None and tokens < job_budget.spent_tokens:
        raise UsageError(
            f"{job_id} has used {job_budget.spent_tokens:,} tokens: its budget cannot be less"
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


def _refuse_usd(job_id: str, job_budget: JobBudget, usd: float) -> None:
    if job_budget.most_cost is None:
        raise UsageError(
            f"{job_id} has a budget in tokens only: raise that with "
            f"`runner budget {job_id} --tokens N`, or submit it again with a budget_usd"
        )
    if billionths(usd) < job_budget.spent_cost:
        spent = in_usd(job_budget.spent_cost)
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

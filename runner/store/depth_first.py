"""Depth first: reads what the items of a job have spent. ``core.depth_first`` says if others may begin.

What is read does not grow with the number of queued runs: the items in progress, a few finished ones,
and the sub-agents of both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from sqlalchemy import (
    Connection,
    Integer,
    Select,
    bindparam,
    func,
    literal_column,
    select,
    union_all,
)

from runner.core.budget import JobBudget
from runner.core.depth_first import LEARNED, Begun, covers, may_begin
from runner.core.events import Event
from runner.core.run import FRESH, RUNNER
from runner.core.shares import JobLoad
from runner.core.spec import JobSpec
from runner.core.times import Times
from runner.store.budgets import look_into, wake
from runner.store.caps import left_today
from runner.store.changes import FREED, locked_runs, store_change
from runner.store.conditions import IS_ITEM_RUN, ROOT_RUN
from runner.store.database import MOST_AT_ONCE, Database, reads, writes
from runner.store.specs import JobCache
from runner.store.statements import execute
from runner.store.tables import job_shares, jobs, runs

_LEARNED_FROM = literal_column("30", Integer)  # finished items of a state

_NAMES = ("state", "reason", "charged_tokens", "progress")
_below = runs.alias("below")
_RUN = ROOT_RUN.label("item"), *(runs.c[name] for name in _NAMES)
_BELOW = _below.c.root_run.label("item"), *(_below.c[name] for name in _NAMES)
# In the words of the partial index.
_IS_BEGUN = (
    (runs.c.job_id == bindparam("job")) & runs.c.started_at.is_not(None) & runs.c.ended_at.is_(None)
)
_OF_BEGUN = select(
    select(*_RUN)
    .where(_IS_BEGUN)
    .union_all(
        select(*_BELOW).join_from(runs, _below, _below.c.root_run == runs.c.id).where(_IS_BEGUN)
    )
    .subquery("of_begun")
)


def _some_in(state: str) -> Select[Any]:
    """Some items that ended in a state. Of several states at once SQLite would read all queued runs."""
    found = (
        select(runs.c.id)
        .where(
            runs.c.job_id == bindparam("job"),
            runs.c.state == literal_column(f"'{state}'"),
            IS_ITEM_RUN,
            runs.c.charged_tokens > literal_column("0", Integer),
        )
        .limit(_LEARNED_FROM)
    )
    return select(found.subquery(state).c.id)


_some = union_all(*map(_some_in, ("succeeded", "failed", "stopped"))).cte("some_ended")
_OF_FINISHED = select(
    select(*_RUN)
    .join_from(_some, runs, runs.c.id == _some.c.id)
    .union_all(select(*_BELOW).join_from(_some, _below, _below.c.root_run == _some.c.id))
    .subquery("of_finished")
)


@dataclass(slots=True)
class _Item:
    """The spending of an item's run and its sub-agents."""

    cost: int = 0  # in billionths of a USD
    tokens: int = 0
    worked: float = 0.0  # seconds of model calls and tools
    worst_cost: int = 0  # of the calls in hand, the most that one may use
    worst_tokens: int = 0
    goes_on: bool = False  # by itself: one of its runs is running, queued or in a batch


@dataclass(frozen=True, slots=True)
class ItemsOfJob:
    """The items of a job that have begun and not ended, and some that have ended."""

    begun: Sequence[_Item]
    finished: Sequence[_Item]

    @property
    def go_on(self) -> bool:
        """True if an item in progress has a run that is running, queued or in a batch."""
        return any(item.goes_on for item in self.begun)

    def may_begin(self, budget: JobBudget, concurrency: int | None, before: int = 0) -> bool:
        """True if the rest of the budget has room for one more item, after ``before`` others have
        begun."""
        return all(
            most is None or self._covered(name, most - spent, concurrency, before)
            for name, most, spent in (
                ("cost", budget.most_cost, budget.spent_cost),
                ("tokens", budget.most_tokens, budget.spent_tokens),
            )
        )

    def may_begin_today(self, left: int, before: int = 0) -> bool:
        """True if the rest of the day's cap has room for one more item, after ``before`` others have
        begun. True too while few items have finished: runs that no longer fit continue the next day."""
        return len(self.finished) < LEARNED or self._covered("cost", left, None, before)

    def _covered(self, name: str, left: int, concurrency: int | None, before: int) -> bool:
        # A call begins only while its whole reservation fits: the last one leaves so much over.
        left -= max((getattr(item, f"worst_{name}") for item in self.begun), default=0)
        begun = [Begun(getattr(item, name), item.goes_on) for item in self.begun]
        finished = [getattr(item, name) for item in self.finished]
        return may_begin(left, finished, [*begun, *[Begun(0)] * before], concurrency)

    def have_time(self, left: float) -> bool:
        """True if an item that begins now should end within ``left`` seconds, or too few have finished to
        tell: time passes even if no item begins."""
        finished = [item.worked for item in self.finished]
        return len(finished) < LEARNED or covers(left, finished, [0.0])


def items_of(connection: Connection, job_id: str) -> ItemsOfJob:
    begun = execute(connection, _OF_BEGUN, {"job": job_id})
    finished = execute(connection, _OF_FINISHED, {"job": job_id})
    return ItemsOfJob(_items(begun), _items(finished))


def _items(rows: Sequence[Any]) -> list[_Item]:
    items: defaultdict[str, _Item] = defaultdict(_Item)
    for row in rows:
        item, progress = items[row.item], row.progress
        item.cost += progress["money"]["charged_cost"]
        item.tokens += row.charged_tokens
        item.worked += progress["worked"]
        waits_for_batch = (row.state, row.reason) == ("waiting", "batch")
        item.goes_on |= row.state in ("running", "queued") or waits_for_batch
        if (call := progress["model"]["open_call"]) is not None:
            item.worst_cost = max(item.worst_cost, call["reservation"]["worst_cost"])
            item.worst_tokens = max(item.worst_tokens, call["reservation"]["worst_case"])
    return list(items.values())


def may_begin_now(connection: Connection, job_id: str, concurrency: int | None) -> bool:
    """True if the job's budget lets one more item begin."""
    budget = look_into(connection, job_id)
    return budget is None or items_of(connection, job_id).may_begin(budget, concurrency)


# --- Items that may not begin yet ---


HeldBy = Literal["budget", "cap", "finish_by", "window"]

MOST_TO_BEGIN = 64  # items of a job in one pass

_DETAIL = "it does not start: the rest of the budget is for started items"
_IS_HELD = (runs.c.state == "waiting") & (runs.c.reason == "budget") & runs.c.started_at.is_(None)
_IS_FRESH = (runs.c.state == "queued") & (runs.c.rank == FRESH)


def hold(
    database: Database, jobs_read: JobCache, loads: Sequence[JobLoad], now: float
) -> list[JobLoad]:
    """Return the loads without the items that may not begin."""
    specs = jobs_read.specs(database, [load.job_id for load in loads if load.fresh])
    is_new = any(load.fresh for load in loads)
    of_cap = left_today(database, now) if is_new else None
    return [_hold(database, load, now, specs.get(load.job_id), of_cap) for load in loads]


def _hold(
    database: Database, load: JobLoad, now: float, spec: JobSpec | None, of_cap: int | None
) -> JobLoad:
    if not load.fresh or spec is None or not _is_limited(spec, load.finish_by, of_cap):
        return load
    budget, items = _look_at(database, load.job_id)
    most = min(load.fresh, MOST_TO_BEGIN)
    room = _room(budget, items, spec.max_concurrency, most)
    if not room and not items.go_on:
        _let_wait(database, load.job_id, now)
    if room and _lacks_time(items, spec.times, load.finish_by, now):
        room = 0 if items.go_on else 1
    room = min(room, _room_today(of_cap, items, most))
    return replace(load, due=load.due - load.fresh + room, fresh=room)


@writes
def _let_wait(connection: Connection, job_id: str, now: float) -> None:
    """Make some of a job's items wait for its budget: no item in progress will free any of it."""
    due = _IS_FRESH & (runs.c.due_at <= now) & runs.c.rung_at.is_(None)
    first = select(runs.c.id).where(runs.c.job_id == job_id, due).limit(MOST_AT_ONCE)
    run_ids = connection.execute(first.order_by(runs.c.due_at, runs.c.id)).scalars().all()
    for run in locked_runs(connection, run_ids, due):
        changes = {**FREED, "state": "waiting", "reason": "budget", "detail": _DETAIL}
        event = Event("waiting", {"reason": "budget", "detail": _DETAIL})
        store_change(connection, run, now, [event], **changes)


def wake_held(database: Database, now: float) -> None:
    """Queue items again that wait for the budget of a job and may begin by now."""
    held = select(runs.c.job_id).where(_IS_HELD).distinct()
    for (job_id,) in database.rows(held):
        budget, items = _look_at(database, job_id)
        limit = select(job_shares.c.max_concurrency).where(job_shares.c.job_id == job_id)
        concurrency = next((row.max_concurrency for row in database.rows(limit)), None)
        if room := _room(budget, items, concurrency, MOST_TO_BEGIN):
            first = select(runs.c.id).where(_IS_HELD, runs.c.job_id == job_id)
            found = database.rows(first.order_by(runs.c.id).limit(room))
            wake(database, [run.id for run in found], "budget", RUNNER, now)


def _look(connection: Connection, job_id: str) -> tuple[JobBudget | None, ItemsOfJob]:
    return look_into(connection, job_id), items_of(connection, job_id)


_look_at = reads(_look)


def _is_limited(spec: JobSpec, finish_by: float | None, of_cap: int | None) -> bool:
    others = (spec.times.window, finish_by, of_cap)
    return spec.budget.is_set or any(limit is not None for limit in others)


def _room(budget: JobBudget | None, items: ItemsOfJob, concurrency: int | None, most: int) -> int:
    """Return how many items the budget lets begin, at most ``most``."""
    if budget is None:
        return most
    return _first_not(lambda before: items.may_begin(budget, concurrency, before), most)


def _room_today(of_cap: int | None, items: ItemsOfJob, most: int) -> int:
    """Return how many items the day's cap lets begin, at most ``most``."""
    return most if of_cap is None else _first_not(partial(items.may_begin_today, of_cap), most)


def _first_not(fits: Callable[[int], bool], most: int) -> int:
    return next((number for number in range(most) if not fits(number)), most)


def _lacks_time(
    items: ItemsOfJob, times: Times, finish_by: float | None, now: float
) -> HeldBy | None:
    """Return what leaves too little time for one more item, or None. An item that is too long for any
    window may begin in any."""
    if finish_by is not None and finish_by > now and not items.have_time(finish_by - now):
        return "finish_by"
    if times.window is None:
        return None
    opens, closes = times.window.around(now)
    is_short = opens <= now and not items.have_time(closes - now)
    return "window" if is_short and items.have_time(closes - opens) else None


def held_back(
    database: Database, job_ids: Collection[str], now: float
) -> dict[str, tuple[int, HeldBy]]:
    """Return, by job, how many due items may not begin and why; jobs without any are left out.
    ``queries.jobs.that_may_wait`` says which jobs to ask about."""
    of_cap = left_today(database, now)

    def of_job(connection: Connection, job_id: str, job: Any) -> tuple[int, HeldBy] | None:
        spec = JobSpec.from_json(job.spec)
        count = select(func.count()).where(runs.c.job_id == job_id)
        wait = connection.execute(count.where(_IS_HELD)).scalar_one()
        due = connection.execute(count.where(_IS_FRESH, runs.c.due_at <= now)).scalar_one()
        budget, items = _look(connection, job_id)
        if wait or (due and not _room(budget, items, spec.max_concurrency, 1)):
            return due + wait, "budget"
        if due and not _room_today(of_cap, items, 1):
            return due, "cap"
        why = _lacks_time(items, spec.times, job.finish_by, now) if due and items.go_on else None
        return None if why is None else (due, why)

    def work(connection: Connection) -> dict[str, tuple[int, HeldBy]]:
        query = select(jobs.c.id, jobs.c.spec, jobs.c.finish_by).where(jobs.c.id.in_(job_ids))
        rows = connection.execute(query).all()
        found = ((job.id, of_job(connection, job.id, job)) for job in rows)
        return {job_id: held for job_id, held in found if held is not None}

    return database.read(work)

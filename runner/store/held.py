"""Items that do not begin: what is left of the budget, the day's cap or the time covers those in progress.

While one of these goes on by itself, the others stay queued. When none does, items that the budget holds
back wait for it, as a run does whose next call does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from sqlalchemy import Connection, func, select

from runner.core.budget import JobBudget
from runner.core.events import Event
from runner.core.run import FRESH, RUNNER
from runner.core.shares import JobLoad
from runner.core.spec import JobSpec
from runner.core.times import Times
from runner.store.budgets import look_into, wake
from runner.store.caps import left_today
from runner.store.changes import FREED, MOST_AT_ONCE, locked_runs, store_change
from runner.store.database import Database
from runner.store.depth import ItemsOfJob, items_of
from runner.store.tables import job_shares, jobs, runs

HeldBy = Literal["budget", "cap", "finish_by", "window"]

MOST_TO_BEGIN = 64  # items of a job in one pass

_DETAIL = "it does not begin: what is left of the budget covers the items that have begun"
_IS_HELD = (runs.c.state == "waiting") & (runs.c.reason == "budget") & runs.c.started_at.is_(None)
_IS_FRESH = (runs.c.state == "queued") & (runs.c.rank == FRESH)


class HeldItems:
    """Holds items back, and lets them begin when others needed less than was expected. ``specs`` are of
    the jobs with due runs, by id; a job that is not there yet is held back a pass later."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def hold(
        self, loads: Sequence[JobLoad], now: float, specs: Mapping[str, JobSpec]
    ) -> list[JobLoad]:
        """Return the loads without the items that may not begin."""
        is_new = any(load.fresh for load in loads)
        of_cap = left_today(self._database, now) if is_new else None
        return [self._hold(load, now, specs.get(load.job_id), of_cap) for load in loads]

    def _hold(self, load: JobLoad, now: float, spec: JobSpec | None, of_cap: int | None) -> JobLoad:
        if not load.fresh or spec is None or not _is_limited(spec, load.finish_by, of_cap):
            return load
        budget, items = self._database.read(partial(_look, job_id=load.job_id))
        most = min(load.fresh, MOST_TO_BEGIN)
        room = _room(budget, items, spec.max_concurrency, most)
        if not room and not items.go_on:
            self._let_wait(load.job_id, now)
        if room and _lacks_time(items, spec.times, load.finish_by, now):
            room = 0 if items.go_on else 1
        room = min(room, _room_today(of_cap, items, most))
        return replace(load, due=load.due - load.fresh + room, fresh=room)

    def _let_wait(self, job_id: str, now: float) -> None:
        """Let some of a job's items wait for its budget: nothing in progress goes on to leave them more."""
        due = _IS_FRESH & (runs.c.due_at <= now) & runs.c.rung_at.is_(None)
        first = select(runs.c.id).where(runs.c.job_id == job_id, due).limit(MOST_AT_ONCE)

        def work(connection: Connection) -> None:
            run_ids = connection.execute(first.order_by(runs.c.due_at, runs.c.id)).scalars().all()
            for run in locked_runs(connection, run_ids, due):
                changes = {**FREED, "state": "waiting", "reason": "budget", "detail": _DETAIL}
                event = Event("waiting", {"reason": "budget", "detail": _DETAIL})
                store_change(connection, run, now, [event], **changes)

        self._database.write(work)

    def wake(self, now: float) -> None:
        """Queue items again that wait for the budget of a job and may begin by now."""
        held = select(runs.c.job_id).where(_IS_HELD).distinct()
        for (job_id,) in self._database.rows(held):
            budget, items = self._database.read(partial(_look, job_id=job_id))
            limit = select(job_shares.c.max_concurrency).where(job_shares.c.job_id == job_id)
            concurrency = next((row.max_concurrency for row in self._database.rows(limit)), None)
            if room := _room(budget, items, concurrency, MOST_TO_BEGIN):
                first = select(runs.c.id).where(_IS_HELD, runs.c.job_id == job_id)
                found = self._database.rows(first.order_by(runs.c.id).limit(room))
                wake(self._database, [run.id for run in found], "budget", RUNNER, now, {}, {})


def _look(connection: Connection, job_id: str) -> tuple[JobBudget | None, ItemsOfJob]:
    return look_into(connection, job_id), items_of(connection, job_id)


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
    """Return what leaves too little time for one more item. An item that no window is long enough for
    begins in any."""
    if finish_by is not None and finish_by > now and not items.have_time(finish_by - now):
        return "finish_by"
    if times.window is None:
        return None
    opens, closes = times.window.around(now)
    is_short = opens <= now and not items.have_time(closes - now)
    return "window" if is_short and items.have_time(closes - opens) else None


def held_back(database: Database, job_id: str, now: float) -> tuple[int, HeldBy] | None:
    """Return how many items of a job would be due and do not begin, and what holds them back."""

    of_cap = left_today(database, now)

    def work(connection: Connection) -> tuple[int, HeldBy] | None:
        of_job = select(jobs.c.spec, jobs.c.finish_by).where(jobs.c.id == job_id)
        job = connection.execute(of_job).one()
        spec = JobSpec.from_json(job.spec)
        if not _is_limited(spec, job.finish_by, of_cap):
            return None
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

    return database.read(work)

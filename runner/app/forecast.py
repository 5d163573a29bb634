"""Forecasts of jobs: expected cost, tokens and end, against their budgets and ``finish_by``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row

from runner.app.handle import App
from runner.app.humanize import dollars, moment, plural
from runner.core.run import ENDED
from runner.queries import jobs as queries
from runner.queries.workers import live_workers
from runner.store.tables import runs

if TYPE_CHECKING:
    from runner.core.forecast import Item, Range
    from runner.core.prices import Spending
    from runner.core.times import Window

# A cancelled item says nothing of what it would cost.
_FINISHED = ("succeeded", "failed", "stopped")


@dataclass(frozen=True, slots=True)
class JobForecast:
    """A job's expected totals. Each cap is beside what it limits; None: no cap."""

    finished: int  # the runs that it rests on
    usd: Range | None  # None: a model has no price, or no call costs anything
    tokens: Range
    ends_at: Range | None  # None: no worker is alive, or the work waits for people only
    budget_usd: float | None = None
    budget_tokens: int | None = None
    finish_by: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def line(self) -> str:
        """Return the forecast in words: ``about $12.40 ($9.80 to $17.10), … from 12 finished runs``."""
        # Whoever pays in USD caps in USD, too.
        tokens = self.tokens if self.usd is None or self.budget_tokens is not None else None
        told = [
            _told(self.usd, self.budget_usd, "", lambda usd: dollars(Decimal(usd)), "its budget"),
            _told(tokens, self.budget_tokens, "", _count, "its budget", " tokens"),
            _told(self.ends_at, self.finish_by, "ends ", moment, "its finish_by"),
            f"from {plural(self.finished, 'finished run')}",
        ]
        return "; ".join(filter(None, told))


def _told(
    found: Range | None,
    cap: float | None,
    verb: str,
    words: Callable[[float], str],
    of: str,
    unit: str = "",
) -> str:
    if found is None:
        return ""
    line = f"{verb}about {words(found.expected)}{unit} ({words(found.low)} to {words(found.high)})"
    if cap is None or found.high <= cap:
        return line if cap is None else f"{line}, within {of}"
    how = "likely" if found.expected > cap else "perhaps"
    return f"{line}, {how} over {of} of {words(cap)}{unit}"


def _count(tokens: float) -> str:
    return f"{round(tokens):,}"


def forecast_of(app: App, job_id: str) -> JobForecast | None:
    return forecasts(app, queries.list_jobs(app.database, among=[job_id])).get(job_id)


def forecasts(app: App, jobs: Iterable[Mapping[str, Any]]) -> dict[str, JobForecast]:
    """Return, by id, the forecasts of jobs (``queries.jobs.JobSummary``) that have one."""
    wanted = {
        job["id"]: job
        for job in jobs
        if any(state in _FINISHED for state in job["runs"]) and job["state"] not in ENDED
    }
    if not wanted:
        return {}
    from runner.queries.costs import costs_by  # late: few lists have a forecast

    database, by_job, ids = app.database, defaultdict[str, list[Row[Any]]](list), list(wanted)
    for row in queries.begun_trees(database, ids):
        by_job[row.job_id].append(row)
    costs = costs_by(database, app.prices(), "tree", conditions=(runs.c.job_id.in_(ids),))
    spent = {cost.key: cost.spending for cost in costs}
    afresh, times = queries.superseded(database, ids), queries.times_of(database, ids)
    is_worked, now = live_workers(database, app.now()) > 0, app.now()
    found: dict[str, JobForecast] = {}
    for id_, job in wanted.items():
        one = _forecast(job, by_job[id_], spent, afresh, times[id_], now, is_worked)
        found |= {} if one is None else {id_: one}
    return found


def _forecast(
    job: Mapping[str, Any],
    rows: Collection[Row[Any]],
    spent: Mapping[str, Spending],
    afresh: Collection[str],
    times: Row[Any],
    now: float,
    is_worked: bool,
) -> JobForecast | None:
    from runner.core import forecast as core  # late: they slow the start of other commands
    from runner.core.spec import JobSpec

    window = JobSpec.from_json(times.spec).times.window
    finished: list[Item] = []
    begun: list[Item] = []
    others: list[Item] = []
    for row in rows:
        if row.started_at is not None:  # else it was cancelled while it was queued
            is_other = row.id in afresh or row.state == "cancelled"
            kind = others if is_other else finished if row.state in _FINISHED else begun
            kind.append(_item(row, spent.get(row.id), window, now))
    unpriced = any(spent[row.id].unpriced for row in rows if row.id in spent)
    unbegun = sum(job["runs"].values()) - sum(row.id not in afresh for row in rows)
    found = core.forecast(job["id"], finished, begun, unbegun, others)
    if found is None:
        return None
    ends = any(item.in_hand for item in begun) or unbegun > 0
    end = (found.seconds.low, found.seconds.expected, found.seconds.high)
    ends_at = [window.after(now, each) if window else now + each for each in end]
    return JobForecast(
        found.finished,
        found.usd if found.usd.high and not unpriced else None,
        found.tokens,
        core.Range(*ends_at) if ends and is_worked else None,
        job["budget_usd"],
        job["budget_tokens"],
        times.finish_by,
    )


def _item(row: Row[Any], spending: Spending | None, window: Window | None, now: float) -> Item:
    from runner.core.forecast import Item  # late: it slows the start of other commands

    until = now if row.ended_at is None else row.ended_at
    seconds = max(0.0, until - row.started_at)
    return Item(
        # As a budget counts: a call of unknown usage with the most that it can have cost.
        usd=float(spending.usd + spending.at_most) if spending else 0.0,
        tokens=int(row.tokens),
        seconds=seconds if window is None else window.open_between(row.started_at, until),
        began=row.started_at,
        in_hand=row.state in ("running", "queued") or row.reason == "children",
    )

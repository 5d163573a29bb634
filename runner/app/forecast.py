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
from runner.core.prices import Spending
from runner.core.run import ENDED
from runner.queries import forecast as queries
from runner.queries.costs import costs_by
from runner.queries.jobs import list_jobs
from runner.queries.workers import live_workers
from runner.store.tables import runs

if TYPE_CHECKING:
    from runner.core.forecast import Item, Range

_FINISHED = (
    "succeeded",
    "failed",
    "stopped",
)  # a cancelled item says nothing of what it would cost


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
        told = [
            _told(self.usd, self.budget_usd, "", lambda usd: dollars(Decimal(usd)), "its budget"),
            _told(self.tokens, self.budget_tokens, "", _tokens, "its budget"),
            _told(self.ends_at, self.finish_by, "ends ", moment, "its finish_by"),
            f"from {plural(self.finished, 'finished run')}",
        ]
        return "; ".join(filter(None, told))


def _told(
    found: Range | None, cap: float | None, verb: str, words: Callable[[float], str], of: str
) -> str:
    if found is None:
        return ""
    line = f"{verb}about {words(found.expected)} ({words(found.low)} to {words(found.high)})"
    if cap is None or found.high <= cap:
        return line if cap is None else f"{line}, within {of}"
    how = "likely" if found.expected > cap else "perhaps"
    return f"{line}, {how} over {of} of {words(cap)}"


def _tokens(count: float) -> str:
    return f"{round(count):,} tokens"


def forecast_of(app: App, job_id: str) -> JobForecast | None:
    return forecasts(app, list_jobs(app.database, job_id=job_id)).get(job_id)


def forecasts(app: App, jobs: Iterable[Mapping[str, Any]]) -> dict[str, JobForecast]:
    """Return, by id, the forecasts of jobs (``queries.jobs.JobSummary``) that have one."""
    items = {
        job["id"]: sum(job["runs"].values())
        for job in jobs
        if any(state in _FINISHED for state in job["runs"]) and job["state"] not in ENDED
    }
    if not items:
        return {}
    database, by_job = app.database, defaultdict[str, list[Row[Any]]](list)
    for row in queries.begun_trees(database, list(items)):
        by_job[row.job_id].append(row)
    of_jobs = (runs.c.job_id.in_(items),)
    costs = costs_by(database, app.prices(), "tree", conditions=of_jobs)
    spent = {cost.key: cost.spending for cost in costs}
    afresh, caps = queries.superseded(database, list(items)), queries.caps_of(database, list(items))
    is_worked, now = live_workers(database, app.now()) > 0, app.now()
    found: dict[str, JobForecast] = {}
    for job_id, count in items.items():
        one = _forecast(job_id, by_job[job_id], count, spent, afresh, now, caps[job_id], is_worked)
        found |= {} if one is None else {job_id: one}
    return found


def _forecast(
    job_id: str,
    rows: Collection[Row[Any]],
    count: int,
    spent: Mapping[str, Spending],
    afresh: Collection[str],
    now: float,
    caps: Row[Any],
    is_worked: bool,
) -> JobForecast | None:
    from runner.core import forecast as core  # late: it slows the start of other commands

    unpriced = False
    finished: list[Item] = []
    begun: list[Item] = []
    others: list[Item] = []
    for row in rows:
        if row.started_at is None:  # cancelled while it was queued
            continue
        spending = spent.get(row.id, Spending())
        unpriced = unpriced or bool(spending.unpriced)
        item = core.Item(
            # As a budget counts: a call of unknown usage with the most that it can have cost.
            usd=float(spending.usd + spending.at_most),
            tokens=int(row.tokens),
            seconds=max(0.0, (now if row.ended_at is None else row.ended_at) - row.started_at),
            began=row.started_at,
            in_hand=row.state in ("running", "queued") or row.reason == "children",
        )
        is_other = row.id in afresh or row.state == "cancelled"
        kind = others if is_other else finished if row.state in _FINISHED else begun
        kind.append(item)
    counted = [row for row in rows if row.id not in afresh]
    found = core.forecast(job_id, finished, begun, count - len(counted), others)
    if found is None:
        return None
    ends = any(item.in_hand for item in begun) or count > len(counted)
    end = found.seconds
    return JobForecast(
        found.finished,
        found.usd if found.usd.high and not unpriced else None,
        found.tokens,
        core.Range(now + end.low, now + end.expected, now + end.high)
        if ends and is_worked
        else None,
        caps.budget_usd,
        caps.budget_tokens,
        caps.finish_by,
    )

"""Jobs as pages show them: how far each is, why its runs failed, and what they cost over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.app import forecast, lanes, listing
from runner.app.handle import App
from runner.app.report import FailureGroup, failure_groups
from runner.core.run import ENDED, UNKNOWN, by_life
from runner.errors import NotFoundError
from runner.queries import batches, decisions, jobs, outcomes
from runner.queries.run_table import ended_runs, failed_runs
from runner.store.jobs import is_of_sessions

JOBS = 30  # of a page
_MOST_FAILURES = 5_000  # the newest, that are grouped
_BUCKETS = 24


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job in a list."""

    job: Mapping[str, Any]  # as ``listing.list_jobs`` gives it
    waiting: int  # calls that wait for an answer
    why: str  # why it waits or is paused; empty otherwise
    forecast: forecast.JobForecast | None
    lane: str  # in a list its name; of a single job a sentence

    @property
    def shown_runs(self) -> list[tuple[str, int]]:
        """The number of runs by state, in the order of a run's life."""
        return by_life(self.job["shown_runs"])

    @property
    def total(self) -> int:
        return sum(self.job["shown_runs"].values())

    @property
    def ended(self) -> int:
        counts: dict[str, int] = self.job["shown_runs"]
        return sum(count for state, count in counts.items() if state in ENDED)

    @property
    def actions(self) -> list[str]:
        """The actions that could change some of its runs: none for sessions from Claude Code."""
        if is_of_sessions(self.job["name"], self.job["source"]):
            return []
        could = {
            "retry": self.ended > self.job["shown_runs"].get("succeeded", 0),
            **dict.fromkeys(("cancel", "pause", "resume"), self.ended < self.total),
            **dict.fromkeys(("approve", "deny"), self.waiting > 0),
        }
        return [action for action, is_possible in could.items() if is_possible]

    @property
    def budget_share(self) -> float | None:
        """The spent share of the budget (1.0: all of it); None without a budget."""
        return max(listing.spent_shares(self.job), default=None)


def jobs_page(app: App, before: str | None) -> tuple[list[JobLine], str | None]:
    """Return some jobs, the newest first, those ``before`` another one, and what the next page starts
    before; None on the last one."""
    ids = jobs.newest_jobs(app.database, before, JOBS + 1)
    lines = _lines(app, ids[:JOBS])
    return lines, ids[JOBS - 1] if len(ids) > JOBS else None


def job_line(app: App, job_id: str) -> JobLine:
    """Return a job by its whole id. Raises ``NotFoundError``."""
    if not (found := _lines(app, [job_id])):
        raise NotFoundError(f"no job is named {job_id[:60]!a}")
    return replace(found[0], lane=lanes.lane(app, job_id, None, UNKNOWN)[1])


def _lines(app: App, ids: Sequence[str]) -> list[JobLine]:
    found = listing.list_jobs(app, None, ids)[::-1]
    why = listing.what_jobs_wait_for(app, found)
    expected = forecast.forecasts(app, found)
    waiting = decisions.waiting_by_job(app.database)
    of_lanes = batches.lanes_of(app.database, ids)
    return [
        JobLine(
            job=job,
            waiting=waiting.get(id_, 0),
            why=why.get(id_, ""),
            forecast=expected.get(id_),
            lane=of_lanes.get(id_, "realtime"),
        )
        for job in found
        for id_ in [job["id"]]
    ]


def failures_of(app: App, job_id: str) -> list[FailureGroup]:
    """Return the failures of a job's runs in groups, the most frequent first."""
    found = failed_runs(app.database, job_id, _MOST_FAILURES)
    by_it = [run["id"] for run in found if run["reason"] == "verify"]
    verified = outcomes.last_verifications(app.database, job_id, by_it) if by_it else {}
    return failure_groups(
        (run, run, each["output"] if (each := verified.get(run["id"])) else None) for run in found
    )


@dataclass(frozen=True, slots=True)
class Charts:
    """The costs of a job's ended runs, over time and as a histogram."""

    times: Sequence[float]  # where each bucket begins, and where the last one ends
    usd: Sequence[float]  # spent by the runs that ended in each bucket
    turns: Sequence[int]
    bounds: Sequence[float]  # of the histogram, in USD: one more than there are bars
    counts: Sequence[int]
    total_usd: float


def charts_of(app: App, job_id: str) -> Charts | None:
    """Return the figures of a job's charts; None until a run has ended."""
    found = ended_runs(app.database, job_id)
    if not found:
        return None
    first, last = found[0][0], found[-1][0]
    width = max((last - first) / _BUCKETS, 1.0)
    count = min(_BUCKETS, int((last - first) / width) + 1)
    usd, turns = [0.0] * count, [0] * count
    for at, of_turns, cost in found:
        place = min(int((at - first) / width), count - 1)
        usd[place] += cost / 1e9
        turns[place] += of_turns
    costs = sorted(cost / 1e9 for *_, cost in found)
    # A few runs are much dearer than all others: the last bar has all beyond.
    high = costs[min(len(costs) - 1, int(len(costs) * 0.98))] or costs[-1]
    bars = min(_BUCKETS, len(set(costs)))
    bounds = [high * step / bars for step in range(bars + 1)]
    counts = [0] * bars
    for each in costs:
        counts[min(int(each / high * bars) if high else 0, bars - 1)] += 1
    times = [first + width * step for step in range(count + 1)]
    return Charts(times, usd, turns, bounds, counts, sum(costs))

"""The cap on what all calls of the database that begin on a day cost together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from runner.app import costs
from runner.app.handle import App
from runner.app.humanize import plural, usd_of
from runner.core.budget import BILLIONTHS, DayCap
from runner.core.commands import Change
from runner.core.run import Author
from runner.core.times import bounds_of, day_of
from runner.errors import UsageError
from runner.store import caps
from runner.store.tables import model_calls


@dataclass(frozen=True, slots=True)
class CapStatus:
    """The cap as it stands."""

    zone: str
    cap: DayCap
    waiting: int = 0  # runs that wait for the next day
    until: float | None = None  # when the first of them goes on
    changes: Sequence[Mapping[str, Any]] = ()  # by people, the newest last
    days: Sequence[Mapping[str, Any]] = ()  # before, the newest first
    woken: Sequence[Change] = ()  # runs that the change queued
    unworked_job: str | None = None  # a job with such runs, while no worker is alive

    @property
    def used(self) -> str:
        """Return the used and the reserved part of today's cap, in words."""
        budget = self.cap.budget
        most = "no cap" if budget.most_cost is None else usd_of(budget.most_cost)
        held = f", {usd_of(budget.reserved_cost)} reserved" if budget.reserved_cost else ""
        return f"{usd_of(budget.spent_cost)} of {most} used on {self.cap.day}{held}"

    @property
    def waits(self) -> str | None:
        """Return the number of runs that wait for it and the time when they go on, in words."""
        if self.until is None:
            return None
        local = datetime.fromtimestamp(self.until, ZoneInfo(self.zone))
        waiting = plural(self.waiting, "run waits", "runs wait")
        return f"{waiting} for the cap of the day, until {local:%Y-%m-%d %H:%M} {self.zone}"

    def as_json(self) -> dict[str, Any]:
        budget = self.cap.budget
        return {
            "cap_usd": None if budget.most_cost is None else budget.most_cost / BILLIONTHS,
            "per": "day",
            "zone": self.zone,
            "day": self.cap.day,
            "ends_at": self.cap.ends_at,
            "spent_usd": budget.spent_cost / BILLIONTHS,
            "reserved_usd": budget.reserved_cost / BILLIONTHS,
            "waiting_runs": self.waiting,
            "waiting_until": self.until,
            "changes": list(self.changes),
            "days": [
                {
                    "day": each["day"],
                    "cap_usd": each["usd"],
                    "spent_usd": each["spent_cost"] / BILLIONTHS,
                    "reserved_usd": each["reserved_cost"] / BILLIONTHS,
                }
                for each in self.days
            ],
            "woken": [asdict(change) for change in self.woken],
        }


def status(app: App, woken: Sequence[Change] = ()) -> CapStatus | None:
    """Return the cap as it stands; None if nobody ever set one."""
    row, now = caps.cap_row(app.database), app.now()
    if row is None:
        return None
    cap = caps.cap_at(row, now)
    waiting, until = caps.waiting_for_cap(app.database, now)
    days = caps.days_before(app.database, cap.day)
    unworked = app.job_without_worker(woken[0].id if woken else None)
    return CapStatus(row.zone, cap, waiting, until, row.changes, days, woken, unworked)


def waits(app: App) -> str | None:
    """Return ``CapStatus.waits``; None if there is no cap."""
    found = status(app)
    return None if found is None else found.waits


def set_cap(app: App, usd: float, zone: str | None, author: Author) -> CapStatus | None:
    """Set the cap of each day, in a time zone: by default that of the cap before, or this host's.
    Raises ``UsageError``."""
    from runner.jobfile.times import zone_named  # late: lists only tell the cap
    from runner.jobfile.values import BadValueError

    row = caps.cap_row(app.database)
    try:
        zone = row.zone if row is not None and zone is None else zone_named(zone)
    except BadValueError as error:
        raise UsageError(f"--tz {error}") from error
    began, _ = bounds_of(day_of(app.now(), zone))
    spent = costs.spending_of(app, conditions=(model_calls.c.started_at >= began,))
    so_far = int((spent.usd + spent.at_most) * BILLIONTHS)
    return _changed(app, usd, zone, so_far, author)


def remove(app: App, author: Author) -> CapStatus | None:
    """Remove the cap. Raises ``UsageError`` if none is set."""
    row = caps.cap_row(app.database)
    return _changed(app, None, row.zone if row is not None else "UTC", 0, author)


def _changed(
    app: App, usd: float | None, zone: str, spent: int, author: Author
) -> CapStatus | None:
    woken = app.change(lambda now: caps.set_cap(app.database, now, usd, zone, spent, author=author))
    return status(app, woken)

"""The times at which the model calls of a job may begin.

A time of day is local to a zone. Where clocks are set forward, a time that they skip is the moment at
which they are set; where they are set back, a time that comes twice is the first of the two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from runner.errors import UsageError

StartReason = Literal["not_before", "window"]

MOST_REAL = 1e11  # the year 5138; no time, duration or amount that is stored is larger
_DAY, _MINUTE = timedelta(days=1), timedelta(minutes=1)
_MOST_DAYS = 3_660  # that a window is followed


@dataclass(frozen=True, slots=True)
class Moment:
    """A time of day (the next one is meant), or a date with a time."""

    text: str  # ``22:00``, or the date and time as they were written
    zone: str  # a name such as ``Europe/Berlin``; empty if the text has an offset from UTC
    at: float | None = None  # seconds since the epoch; of a time of day once the job is submitted

    def after(self, start: float) -> Moment:
        """The moment with its instant, which for a time of day is the first one after ``start``."""
        if self.at is not None:
            return self
        days = (local_date(start, self.zone) + offset * _DAY for offset in range(3))
        instants = (instant(day, time.fromisoformat(self.text), self.zone) for day in days)
        return replace(self, at=next(at for at in instants if at > start))

    def __str__(self) -> str:
        return f"{self.text} {self.zone}".rstrip()


@dataclass(frozen=True, slots=True)
class Window:
    """A part of each day, from ``start`` to just before ``end``, which may be on the next day."""

    start: str  # ``22:00``
    end: str
    zone: str  # a name such as ``Europe/Berlin``

    def opens_at(self, now: float) -> float:
        """``now`` inside the window, else when it opens next, in seconds since the epoch."""
        return max(now, self.around(now)[0])

    def around(self, now: float) -> tuple[float, float]:
        """Return when the open window, or the next one, opens and closes, in seconds since the epoch."""
        first, last = time.fromisoformat(self.start), time.fromisoformat(self.end)
        today = local_date(now, self.zone)
        for offset in (-1, 0, 1, 2):  # a window of a few minutes may be skipped as clocks are set
            day = today + offset * _DAY
            opens = instant(day, first, self.zone)
            closes = instant(day if first < last else day + _DAY, last, self.zone)
            if now < closes and opens < closes:
                return opens, closes
        raise AssertionError(f"the window {self} never opens")

    def open_between(self, start: float, end: float) -> float:
        """Return for how many seconds it is open between two times."""
        seconds = 0.0
        while start < end:
            opens, closes = self.around(start)
            seconds += max(0.0, min(end, closes) - max(start, opens))
            start = closes
        return seconds

    def after(self, start: float, seconds: float) -> float:
        """Return when it has been open for so many seconds since ``start``."""
        for _ in range(_MOST_DAYS):
            opens, closes = self.around(start)
            start = max(start, opens)
            if start + seconds <= closes:
                break
            seconds, start = seconds - (closes - start), closes
        return start + seconds

    def __str__(self) -> str:
        return f"{self.start}-{self.end} {self.zone}"


@dataclass(frozen=True, slots=True)
class Times:
    """The times at which the model calls of a job may begin: always, where nothing is said."""

    not_before: Moment | None = None
    window: Window | None = None
    finish_by: Moment | None = None  # as submitted: people may move it, so the job's row has it

    def at_submission(self, now: float) -> Times:
        """The times with their instants, for a job submitted ``now``. ``finish_by`` is the first after
        the first call may begin. Raises ``UsageError`` if it is before that."""
        times = replace(self, not_before=self.not_before and self.not_before.after(now))
        begins, _ = times.next_start(now) or (now, "")
        finish_by = self.finish_by and self.finish_by.after(begins)
        if finish_by is not None and (finish_by.at or 0) <= begins:
            raise UsageError(
                f"finish_by: {finish_by} is before the first model call may begin "
                f"({datetime.fromtimestamp(begins, UTC):%Y-%m-%d %H:%M} UTC): give a later time"
            )
        return replace(times, finish_by=finish_by)

    def next_start(self, now: float) -> tuple[float, StartReason] | None:
        """The time at which the next model call may begin, and what it waits for; None: now."""
        begins = max(now, (self.not_before and self.not_before.at) or now)
        opens = self.window.opens_at(begins) if self.window else begins
        if opens <= now:
            return None
        return opens, "window" if opens > begins else "not_before"


def day_of(at: float, zone: str) -> str:
    """The day in a zone and the zone, ``2026-11-24 Europe/Berlin``; ``at`` in seconds since the epoch."""
    return f"{local_date(at, zone)} {zone}"


def bounds_of(day: str) -> tuple[float, float]:
    """Return when a day (of ``day_of``) begins and ends, in seconds since the epoch."""
    written, zone = day.split(" ", 1)
    first = date.fromisoformat(written)
    return instant(first, time(), zone), instant(first + _DAY, time(), zone)


def local_date(at: float, zone: str) -> date:
    """The date in a zone, ``at`` in seconds since the epoch."""
    return datetime.fromtimestamp(at, ZoneInfo(zone)).date()


def instant(day: date, clock: time, zone: str) -> float:
    """The first moment at which clocks in a zone show this time of a day or a later one, in seconds since
    the epoch."""
    local = datetime.combine(day, clock, ZoneInfo(zone))
    while _is_skipped(local):
        local += _MINUTE
    return local.timestamp()


def _is_skipped(local: datetime) -> bool:
    """True where clocks are set forward past this time (https://peps.python.org/pep-0495/)."""
    before, after = local.utcoffset(), local.replace(fold=1).utcoffset()
    return before is not None and after is not None and before < after

"""Decide that a job pauses: after its pilot, or when its runs fail alike (the circuit breaker)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from runner.core.budget import billionths, in_usd
from runner.core.text import failure_signature

FAILED = ("failed", "stopped")  # the ends that a breaker counts; a cancelled run says nothing


@dataclass(frozen=True, slots=True)
class Rate:
    """So many percent of the newest runs."""

    percent: float
    of: int

    def __str__(self) -> str:
        return f"{self.percent:g} % of {self.of}"


@dataclass(frozen=True, slots=True)
class Breaker:
    """The limits of failed and denied runs from which on their job pauses."""

    same_failure: int | None = None  # so many in a row, in the same way
    failure_rate: Rate | None = None
    denied_rate: Rate | None = None  # of runs with a denied call

    @property
    def window(self) -> int:
        """Return how many of the newest runs count at most."""
        rates = (self.failure_rate, self.denied_rate)
        return max(self.same_failure or 0, *(rate.of for rate in rates if rate), 0)


@dataclass(frozen=True, slots=True)
class EndedRun:
    id: str
    item_key: str
    state: str
    reason: str
    detail: str
    denials: int
    output: str | None = None  # of the verification that it failed

    @property
    def failure(self) -> str | None:
        """The way in which it failed, worded as in the report; None if it succeeded."""
        if self.state not in FAILED:
            return None
        said = failure_signature(self.detail, self.item_key, self.output)
        return f"{self.state} {self.reason}: {said}" if said else f"{self.state} {self.reason}"


def tripped(breaker: Breaker, newest: Sequence[EndedRun]) -> str | None:
    """Return why the job should pause, or None. ``newest`` are its last ended runs, the newest first."""
    most, failures = breaker.same_failure, [run.failure for run in newest]
    alike = most is not None and len(newest) >= most and len({*failures[:most]}) == 1
    if most is not None and alike and failures[0] is not None:
        return f"{most} runs in a row {failures[0]} (first: {_named(newest[most - 1])})"
    denied = ["had calls denied" if run.denials else None for run in newest]
    return _reached(breaker.failure_rate, newest, failures, "failed") or _reached(
        breaker.denied_rate, newest, denied, "had calls denied"
    )


def _reached(
    rate: Rate | None, newest: Sequence[EndedRun], faults: Sequence[str | None], did: str
) -> str | None:
    """Return why the newest runs reach the rate of faults; None if they do not."""
    if rate is None or len(newest) < rate.of:
        return None
    bad = [(run, fault) for run, fault in zip(newest[: rate.of], faults, strict=False) if fault]
    if not bad or 100 * len(bad) / rate.of < rate.percent:
        return None
    [(common, times)] = Counter(fault for _, fault in bad).most_common(1)
    often = f"; most often: {common}" if times > 1 and common != did else ""
    return f"{len(bad)} of the newest {rate.of} runs {did}{often} (first: {_named(bad[-1][0])})"


def _named(run: EndedRun) -> str:
    return f"{run.item_key}, {run.id}"


BY_PILOT = "by the pilot"  # the detail of a paused run whose item comes after the pilot


@dataclass(frozen=True, slots=True)
class PilotResult:
    ended: tuple[str, ...]  # the states of the pilot's runs
    held: int  # items that wait
    # Of all items by the forecast, in billionths of a USD; None: too few have finished for one.
    expected_cost: int | None

    @property
    def succeeded(self) -> int:
        return self.ended.count("succeeded")

    @property
    def share(self) -> float:
        """Return the share of the pilot's items that succeeded."""
        # Divided and not multiplied: the float 0.56 * 25 is more than 14.
        return self.succeeded / max(1, len(self.ended))

    def __str__(self) -> str:
        return f"{self.succeeded} of {len(self.ended)} items of the pilot succeeded"


@dataclass(frozen=True, slots=True)
class Pilot:
    """The items that are worked before the others, and when the others follow by themselves."""

    items: int
    success: float | None = None  # at least this share of them has succeeded
    forecast_usd: float | None = None  # at most this is expected for all items

    def chosen(self, count: int) -> frozenset[int]:
        """Return the places of the pilot's items among ``count``, spread evenly from the first to the
        last."""
        last = max(1, min(self.items, count) - 1)
        return frozenset(at * (count - 1) // last for at in range(min(self.items, count)))

    def why_wait(self, result: PilotResult) -> str | None:
        """Return why the other items wait for a person; None: they follow by themselves."""
        if self.success is None and self.forecast_usd is None:
            return str(result)
        if self.success is not None and result.share < self.success:
            return f"{result}; fewer than {100 * self.success:g} %"
        if self.forecast_usd is None:
            return None
        if result.expected_cost is None:
            return f"{result}; too few have finished for a forecast"
        if result.expected_cost > (most := billionths(self.forecast_usd)):
            expected = in_usd(result.expected_cost)
            return f"{result}; all items may cost {expected}, more than {in_usd(most)}"
        return None

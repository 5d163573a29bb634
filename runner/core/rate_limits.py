"""The rate limits that workers share: token buckets as the API reports them, and concurrency.

A pool holds the limits of one organization and group of models, or those that a job's file sets.
Workers hold permits, one for each call that is to begin, and report what they hold and how many calls
wait. The level of a bucket is what the API last said is left, plus what has flowed in since, less what
is held: so it is right however many calls the API has counted by then. All times are in seconds since
the epoch.
Sources: https://docs.claude.com/en/api/rate-limits, https://docs.claude.com/en/api/errors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

from runner.core.run import INTERRUPTED

Kind = Literal["requests", "input_tokens", "output_tokens"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Amounts: TypeAlias = Mapping[Kind, float]  # what calls take of each kind
NOTHING: Amounts = dict.fromkeys(KINDS, 0.0)

MINUTE = 60.0  # the API's limits are for a minute
SPARE = (
    0.02  # share of the API's limit that is left: what remains is rounded, and others may call too
)
BURST = 1 / 12  # share of a minute's limit of a job that may be used at once

CUT = 0.8  # of the concurrency, at an episode of refusals
COOLDOWN_SECONDS = 5.0  # between two cuts, and before the concurrency grows
GROWTH = 0.05  # of the concurrency, one at least, after a cooldown
BINDING = 0.8  # the share of the concurrency that is in use where it holds calls back
FORGET_SECONDS = 600.0  # after a cut the concurrency is free again

PREFETCH = -1.0  # the urgency of calls that do not wait yet
INTERRUPTED_FIRST = 1_000_000.0  # more than any priority

FAST = "-fast"  # ends the name of a group in fast mode


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits that a job sets for its own calls, over all workers. None: no limit."""

    max_requests_per_minute: int | None = None
    max_input_tokens_per_minute: int | None = None
    max_concurrent: int | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """The job and the urgency of a call."""

    job_id: str = ""
    urgency: float = 0.0  # the most urgent calls come first


def urgency(rank: int, priority: float) -> float:
    """Return the urgency of a run's calls: interrupted runs come first, then the jobs' priority counts."""
    return priority + (INTERRUPTED_FIRST if rank == INTERRUPTED else 0.0)


@dataclass(frozen=True, slots=True)
class PoolKey:
    """The owner of a pool's limits: the API's id of an organization and a group of models; on a platform,
    an account and a model; of a job's own pool, an empty id and the job's id."""

    organisation: str
    group: str


@dataclass(frozen=True, slots=True)
class Bucket:
    limit: float  # what flows in within a minute
    capacity: float
    remaining: float  # at the time ``at``
    at: float

    def level(self, now: float) -> float:
        flowed = self.limit / MINUTE * max(0.0, now - self.at)
        return min(self.capacity, self.remaining + flowed)


@dataclass(frozen=True, slots=True)
class Pool:
    buckets: Mapping[Kind, Bucket] = field(default_factory=dict)
    concurrency: float | None = None  # calls under way at once; None: any number
    cut_at: float = 0.0  # when it was last lowered; 0: never
    grown_at: float = 0.0
    refused: int = 0  # calls, in the episode for which it was lowered
    held_until: float = 0.0  # by ``retry-after``: no call begins before

    @property
    def is_limited(self) -> bool:
        """True if it can hold calls back."""
        return bool(self.buckets or self.concurrency is not None or self.held_until)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; ``from_json`` gives it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Pool:
        buckets = {kind: Bucket(**each) for kind, each in data["buckets"].items()}
        return cls(**{**data, "buckets": buckets})


@dataclass(frozen=True, slots=True)
class Demand:
    """Calls that want permits: those of one urgency at one worker."""

    urgency: float  # the most urgent come first
    calls: int
    amounts: Amounts  # of all of them


@dataclass(frozen=True, slots=True)
class Report:
    """A worker's holdings in a pool, and its demand."""

    held: Amounts = field(
        default_factory=lambda: NOTHING
    )  # not yet counted by the API, for all we know
    busy: int = 0  # permits, whether their calls have begun or not
    demands: tuple[Demand, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; ``from_json`` gives it back."""
        demands = [[each.urgency, each.calls, dict(each.amounts)] for each in self.demands]
        return {"held": dict(self.held), "busy": self.busy, "demands": demands}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        demands = tuple(Demand(*each) for each in data["demands"])
        return cls(data["held"], data["busy"], demands)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that the API refused because of a rate limit."""

    began_at: float
    at: float
    retry_after: float | None = None  # seconds


@dataclass(frozen=True, slots=True)
class Observation:
    """The limits in the headers of an answer, each with what remains of it."""

    at: float
    found: Mapping[Kind, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class News:
    """The news of a pool that a worker heard since its last report."""

    observation: Observation | None = None  # the newest
    refusals: tuple[Refusal, ...] = ()
    used: Amounts = field(default_factory=lambda: NOTHING)  # by calls that are no longer held

    def then(self, later: News) -> News:
        observation = later.observation or self.observation
        return News(observation, self.refusals + later.refusals, plus(self.used, later.used))


def plus(amounts: Amounts, others: Amounts, times: float = 1.0) -> Amounts:
    return {kind: amounts[kind] + times * others[kind] for kind in KINDS}


def pool_of(caps: Caps, now: float) -> Pool:
    """Return the full pool of a job's own limits. In no minute more is used than the limit: what may be
    used at once and what flows in make up the limit."""
    limits: dict[Kind, int | None] = {
        "requests": caps.max_requests_per_minute,
        "input_tokens": caps.max_input_tokens_per_minute,
    }
    buckets = {}
    for kind, limit in limits.items():
        if limit is not None:
            burst = max(1.0, BURST * limit)
            buckets[kind] = Bucket(max(limit - burst, limit / 2), burst, burst, now)
    return Pool(buckets, caps.max_concurrent)


def minute_limit(key: PoolKey, bucket: Bucket) -> float:
    """Return a limit per minute as people set it: a job's pool counts part of it as capacity, the rest
    as inflow."""
    return bucket.limit if key.organisation else bucket.limit + bucket.capacity


def is_account(organisation: str) -> bool:
    """True for an account on a platform (``JobSpec.account``), not an organization of the API."""
    return "/" in organisation


_VERSION = re.compile(r"claude-(?:([a-z]+)-(\d+)|(\d+)(?:-\d+)?-([a-z]+))(?![a-z])")


def group_of(model: str, fast: bool = False) -> str:
    """Return the group of models that share rate limits: family and main version (``sonnet-5``), or the
    model alone if its name has another form. Fast mode is a group of its own."""
    group = model
    if found := _VERSION.search(model):
        family, version, old_version, old_family = found.groups()
        group = f"{family or old_family}-{version or old_version}"
    return group + FAST if fast else group


ORGANISATION_HEADER = "anthropic-organization-id"


def observed(headers: Mapping[str, str], now: float, fast: bool = False) -> Observation | None:
    """Return the limits in an answer's headers; None if there are none that can be read."""
    found: dict[Kind, tuple[float, float]] = {}
    prefix = "anthropic-fast" if fast else "anthropic-ratelimit"
    for kind in KINDS:
        name = f"{prefix}-{kind.replace('_', '-')}"
        try:
            limit, left = float(headers[f"{name}-limit"]), float(headers[f"{name}-remaining"])
        except (KeyError, ValueError):
            continue
        if 0 < limit < math.inf and math.isfinite(left):
            found[kind] = limit, min(max(left, 0.0), limit)
    return Observation(now, found) if found else None


PoolEvent: TypeAlias = tuple[str, Mapping[str, Any]]  # its type and data


@dataclass(frozen=True, slots=True)
class Shared:
    """A pool as one worker shares it."""

    pool: Pool
    report: Report = Report()  # the worker's, with what it was granted
    granted: int = 0  # permits
    workers: int = 1  # that use the pool, this one included
    events: tuple[PoolEvent, ...] = ()  # what happened to the pool


def share(pool: Pool, mine: Report, others: Sequence[Report], news: News, now: float) -> Shared:
    """Take a worker's news into the pool, and grant it permits for what it demands: to the most urgent
    calls of all workers first, and among equals by the number of their calls."""
    before, pool = pool, _heard(pool, news, now)
    in_use = mine.busy + sum(other.busy for other in others)
    pool = _with_concurrency(pool, news.refusals, in_use, now)
    granted = 0
    if not pool.is_limited:
        granted = sum(demand.calls for demand in mine.demands)
    elif now >= pool.held_until:
        granted = _granted(pool, mine, others, now)
    users = sum(bool(other.busy or other.demands) for other in others)
    events = tuple(changes(before, pool, now))
    return Shared(pool, _served(mine, granted), granted, 1 + users, events)


def _served(report: Report, calls: int) -> Report:
    """The report once so many of its calls have permits, the most urgent first."""
    demands = []
    for demand in sorted(report.demands, key=lambda each: -each.urgency):
        served = min(calls, demand.calls)
        calls -= served
        if served:
            each = {kind: demand.amounts[kind] / demand.calls for kind in KINDS}
            held = plus(report.held, each, served)
            report = replace(report, held=held, busy=report.busy + served)
            demand = replace(
                demand, calls=demand.calls - served, amounts=plus(demand.amounts, each, -served)
            )
        demands += [demand] if demand.calls else []
    return replace(report, demands=tuple(demands))


def _heard(pool: Pool, news: News, now: float) -> Pool:
    buckets = dict(pool.buckets)
    found = news.observation.found if news.observation is not None else {}
    for kind, bucket in pool.buckets.items():
        if kind not in found and news.used[kind]:
            left = bucket.level(now) - news.used[kind]
            buckets[kind] = replace(bucket, remaining=left, at=now)
    for kind, (limit, left) in found.items():
        at = news.observation.at if news.observation is not None else now
        if kind not in buckets or buckets[kind].at <= at:
            buckets[kind] = Bucket(limit, (1 - SPARE) * limit, left - SPARE * limit, at)
    held_until = pool.held_until if pool.held_until > now else 0.0
    for refusal in news.refusals:
        held_until = max(held_until, refusal.at + (refusal.retry_after or 0.0))
    return replace(pool, buckets=buckets, held_until=held_until)


def _with_concurrency(pool: Pool, refusals: Sequence[Refusal], in_use: int, now: float) -> Pool:
    """Lower the concurrency once for an episode of refusals: all those of calls that had begun before it
    was lowered. Raise it slowly while it holds calls back. Failures of the API itself change nothing."""
    since = now - pool.cut_at
    is_new = any(refusal.began_at > pool.cut_at for refusal in refusals)
    if refusals and since < COOLDOWN_SECONDS and not is_new and pool.concurrency is not None:
        # Other workers report how many calls were under way when it was lowered.
        refused = pool.refused + len(refusals)
        found = max(pool.concurrency, CUT * (in_use + refused))
        return replace(pool, concurrency=found, refused=refused)
    if is_new and since >= COOLDOWN_SECONDS:
        used = min(pool.concurrency or math.inf, in_use + len(refusals))
        lowered = max(1.0, CUT * used)
        return replace(pool, concurrency=lowered, cut_at=now, grown_at=now, refused=len(refusals))
    if pool.concurrency is None or not pool.cut_at:
        return pool
    if since >= FORGET_SECONDS:
        return replace(pool, concurrency=None, cut_at=0.0)
    if now - pool.grown_at >= COOLDOWN_SECONDS and in_use >= BINDING * math.floor(pool.concurrency):
        more = max(1.0, GROWTH * pool.concurrency)
        return replace(pool, concurrency=pool.concurrency + more, grown_at=now)
    return pool


def _granted(pool: Pool, mine: Report, others: Sequence[Report], now: float) -> int:
    left = {
        kind: bucket.level(now) - sum(report.held[kind] for report in (mine, *others))
        for kind, bucket in pool.buckets.items()
    }
    slots = math.inf
    if pool.concurrency is not None:
        slots = math.floor(pool.concurrency) - mine.busy - sum(other.busy for other in others)
    granted = 0
    demands = [demand for report in (mine, *others) for demand in report.demands if demand.calls]
    for urgency in sorted({demand.urgency for demand in demands}, reverse=True):
        alike = [demand for demand in demands if demand.urgency == urgency]
        calls = sum(demand.calls for demand in alike)
        each = {
            kind: min(bucket.capacity, sum(demand.amounts[kind] for demand in alike) / calls)
            for kind, bucket in pool.buckets.items()
        }
        most = min([slots, *(left[kind] / each[kind] for kind in each if each[kind] > 0)])
        if most < 1:
            break
        own = sum(demand.calls for demand in mine.demands if demand.urgency == urgency)
        # Rounded up: where little flows in, it goes to whoever asks first, and not to nobody.
        granted += math.ceil(own * min(1.0, math.floor(most) / calls))
        slots -= calls
        left = {
            kind: left[kind] - calls * each[kind] if kind in each else left[kind] for kind in left
        }
    return granted


def changes(before: Pool, after: Pool, now: float) -> list[PoolEvent]:
    """Return what happened to a pool, as events for people: their types and data."""
    found: list[PoolEvent] = []
    for kind, bucket in after.buckets.items():
        old = before.buckets.get(kind)
        if old is None or old.limit != bucket.limit:
            data = {"kind": kind, "old": old and old.limit, "new": bucket.limit}
            found.append(("limit_changed", data))
    if before.concurrency != after.concurrency:
        is_cut = after.cut_at > before.cut_at or after.refused > before.refused
        data = {"old": before.concurrency, "new": after.concurrency}
        found.append(("concurrency_lowered" if is_cut else "concurrency_raised", data))
    if after.held_until > now >= before.held_until:
        found.append(("held_back", {"until": after.held_until}))
    return found

"""A worker's side of the rate limits: permits for model calls, drawn from the database in blocks.

A call takes a permit from memory. A thread exchanges blocks of permits and news of the limits with the
database, about twice a second where calls wait and once a second where they do not; where no limit is
known, never. What a dead worker held comes back with its lease. While the database does not answer, a
worker goes on with a part of its share of the last known limits.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from runner.core.conversation import Usage
from runner.core.rate_limits import (
    FAST,
    KINDS,
    MINUTE,
    NOTHING,
    ORGANISATION_HEADER,
    PREFETCH,
    Amounts,
    Caps,
    Demand,
    Kind,
    News,
    Pool,
    PoolKey,
    Refusal,
    Report,
    group_of,
    is_account,
    observed,
    plus,
    pool_of,
)
from runner.core.state import RunState
from runner.errors import UnreachableError
from runner.logs import log_event
from runner.ports import Clock, Interrupt, Observer, RateLimits

logger = logging.getLogger(__name__)

BUSY_SECONDS = 0.25  # between two exchanges while calls wait
CALM_SECONDS = 1.0  # … while none does
UNLIMITED_SECONDS = 5.0  # … while no limit is known
LEAST_SECONDS = 0.05  # … at news that concern everyone
WORKERS_AT_ONCE = 20  # with more workers each exchanges less often
AHEAD = 1.5  # permits are held for the calls of so many intervals
LOST_SHARE = 0.5  # of a worker's share of the limits, used while the database does not answer
LEARNING = 0.2  # weight of the newest call in the mean of what calls take
LEAST_WAIT, LONGEST_WAIT = 0.05, 60.0
LONGEST_HOLD = 3600.0  # that one ``retry-after`` holds an organization's calls back
CHARACTERS_PER_TOKEN = 4  # for estimates of what is new in a prompt


@dataclass(eq=False, slots=True)
class _Call:
    """A call that wants a permit, has one, or is under way with it."""

    urgency: float
    number: int  # in the order in which they asked
    organisation: str  # empty: only the API's replies name it
    model_group: str
    amounts: Amounts  # estimated
    shares: list[_Share]
    granted: threading.Event = field(default_factory=threading.Event)
    began_at: float = 0.0
    answered: bool = False  # the API has counted it
    used: dict[Kind, float] = field(default_factory=dict)  # by the API's count, where that is known


@dataclass(eq=False, slots=True)
class _Share:
    """This worker's share of one pool."""

    key: PoolKey
    pool: Pool
    unused: int = 0  # permits
    workers: int = 1
    mean: Amounts = field(default_factory=lambda: {**NOTHING, "requests": 1.0})  # of a call
    mean_seconds: float = 1.0  # of a call
    begun: int = 0  # calls since the last exchange
    rate: float = 0.0  # calls a second, lately
    news: News = field(default_factory=News)
    is_urgent: bool = True  # there are news that concern everyone
    is_reported: bool = False  # the database has a report with permits or demands
    exchanged_at: float = -math.inf  # by the monotonic clock

    @property
    def is_of_job(self) -> bool:
        """True if the limits come from a job: then Runner counts their use itself, instead of the API."""
        return not self.key.organisation

    def may_begin(self, now: float) -> bool:
        if not self.pool.is_limited:
            return True
        return self.unused > 0 and now >= self.pool.held_until

    def use(self, amounts: Amounts, times: float = 1.0) -> None:
        if self.is_of_job:
            self.news = replace(self.news, used=plus(self.news.used, amounts, times))

    def held(self, call: _Call, now: float) -> Amounts:
        """The part of a running call that the API has not counted yet; it counts output as it comes."""
        if self.is_of_job:
            return NOTHING
        left = max(0.0, 1.0 - (now - call.began_at) / max(self.mean_seconds, LEAST_SECONDS))
        held = dict(NOTHING if call.answered else call.amounts)
        held["output_tokens"] = left * call.amounts["output_tokens"]
        return held

    def learn(self, call: _Call, now: float) -> None:
        self.mean_seconds += LEARNING * (now - call.began_at - self.mean_seconds)
        if call.used:
            off = {kind: call.used.get(kind, self.mean[kind]) - self.mean[kind] for kind in KINDS}
            self.mean = plus(self.mean, off, LEARNING)

    def calls_a_second(self) -> float:
        """Return how many calls of this worker may begin in a second, by an equal share."""
        rates = [
            bucket.limit / MINUTE / self.mean[kind]
            for kind, bucket in self.pool.buckets.items()
            if self.mean[kind] > 0
        ]
        if self.pool.concurrency is not None:
            rates.append(self.pool.concurrency / max(self.mean_seconds, LEAST_SECONDS))
        return min(rates, default=math.inf) / self.workers

    def wait_of(self, calls: int, now: float) -> float:
        """Return about how many seconds pass until so many calls of this worker have begun."""
        waits = [LEAST_WAIT]
        for kind, bucket in self.pool.buckets.items():
            if self.mean[kind] > 0:
                more = self.workers * calls * self.mean[kind] - bucket.level(now)
                waits.append(more * MINUTE / bucket.limit)
        if self.pool.concurrency is not None:
            more = self.workers * calls - self.pool.concurrency
            waits.append(more * self.mean_seconds / self.pool.concurrency)
        return max(self.pool.held_until - now, min(LONGEST_WAIT, max(waits)))

    def interval(self, is_waited_for: bool) -> float:
        """Return the seconds from one exchange to the next."""
        if self.is_urgent:
            return LEAST_SECONDS
        if not self.pool.is_limited:
            return UNLIMITED_SECONDS
        seconds = BUSY_SECONDS if is_waited_for else CALM_SECONDS
        return seconds * max(1.0, self.workers / WORKERS_AT_ONCE)


class Governor:
    """The ``Permits`` and ``Answers`` of a worker (``runner.ports``).

    Args:
        limits: the database's side.
        observer: is told of each exchange.
        jitter: random numbers from 0 to 1.
    """

    def __init__(
        self,
        limits: RateLimits,
        clock: Clock,
        observer: Observer | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._observer = observer or Observer()
        self._jitter = jitter
        self._lock = threading.Lock()
        self._poked = threading.Event()
        self._stopped = threading.Event()
        self._organisation: str | None = None
        self._shares: dict[PoolKey, _Share] = {}
        self._waiting: dict[str, _Call] = {}
        self._begun: dict[str, _Call] = {}  # with a permit
        self.asked = 0  # calls that asked for a permit so far

    # --- What attempts ask for ---

    def draw(self, state: RunState) -> float | None:
        now, run_id = self._clock.now(), state.run_id
        with self._lock:
            if run_id in self._begun:
                return None
            call = self._waiting.get(run_id)
            if call is None:
                call = self._waiting[run_id] = self._call_of(state, now)
            self._serve(now)
            if run_id in self._begun:
                return None
            self._poked.set()
            return now + self._wait_of(call, now)

    def wait(self, run_id: str, seconds: float, interrupt: Interrupt) -> bool:
        with self._lock:
            call = self._waiting.get(run_id)
        if call is None:
            return True
        with interrupt.cut_by(call.granted.set):
            is_granted = call.granted.wait(seconds)
        interrupt.check()
        return is_granted

    def end(self, run_id: str) -> None:
        now = self._clock.now()
        with self._lock:
            if (call := self._begun.pop(run_id, None)) is None:
                return
            for share in call.shares:
                share.learn(call, now)
                share.use({**call.amounts, **call.used})
                share.use(call.amounts, -1.0)
            self._serve(now)

    def leave(self, run_id: str) -> None:
        now = self._clock.now()
        with self._lock:
            self._waiting.pop(run_id, None)
            if (call := self._begun.pop(run_id, None)) is not None:
                for share in call.shares:
                    share.unused += 1
                    share.begun -= 1
                    share.use(call.amounts, -1.0)
                self._serve(now)

    # --- What the API says ---

    def answered(self, run_id: str, host: str, headers: Mapping[str, str]) -> None:
        now = self._clock.now()
        with self._lock:
            if (call := self._begun.get(run_id)) is None:
                return
            organisation = call.organisation
            if not organisation:
                organisation = self._organisation = headers.get(ORGANISATION_HEADER) or host
            call.answered = True
            share = self._share(PoolKey(organisation, call.model_group), Pool())
            if share not in call.shares:
                call.shares.append(share)
            if (found := observed(headers, now, call.model_group.endswith(FAST))) is not None:
                share.news = replace(share.news, observation=found)
                if not share.pool.buckets:
                    share.is_urgent = True
                    self._poked.set()

    def refused(self, run_id: str, retry_after: float | None) -> None:
        now = self._clock.now()
        if retry_after is not None:
            retry_after = min(LONGEST_HOLD, retry_after)
        with self._lock:
            call = self._begun.get(run_id)
            for share in call.shares if call is not None else ():
                if share.is_of_job or call is None:
                    continue
                refusal = Refusal(call.began_at, now, retry_after)
                share.news = replace(share.news, refusals=(*share.news.refusals, refusal))
                held_until = max(share.pool.held_until, now + (retry_after or 0.0))
                share.pool = replace(share.pool, held_until=held_until)
                share.is_urgent = True
                self._poked.set()

    def replied(self, run_id: str, usage: Usage) -> None:
        with self._lock:
            if (call := self._begun.get(run_id)) is not None:
                # Reads from the cache do not count.
                call.used["input_tokens"] = usage.input_tokens + usage.cache_creation_tokens
                call.used["output_tokens"] = usage.output_tokens

    # --- In memory, under the lock ---

    def _call_of(self, state: RunState, now: float) -> _Call:
        self.asked += 1
        spec, open_call = state.spec, state.model.open_call
        is_summary = open_call is not None and open_call.purpose == "summary"
        model = spec.summary_model if is_summary else spec.model
        group = spec.account and model  # platforms have quotas per model
        group = group or group_of(model, fast=spec.model_options.get("speed") == "fast")
        organisation = spec.account or (
            self._organisation if spec.provider == "anthropic" else None
        )
        shares = []
        if organisation:
            shares.append(self._share(PoolKey(organisation, group), Pool()))
        if spec.caps != Caps():
            key = PoolKey("", state.caller.job_id)
            shares.append(self._share(key, pool_of(spec.caps, now)))
        new = state.context.appended_bytes / CHARACTERS_PER_TOKEN
        if is_summary and open_call is not None:
            call = open_call.reservation
            new = (call.worst_case - call.max_tokens) / CHARACTERS_PER_TOKEN
        mean = shares[0].mean if shares else NOTHING
        amounts: dict[Kind, float] = {
            "requests": 1.0,
            "input_tokens": max(new, mean["input_tokens"]),
            "output_tokens": mean["output_tokens"],
        }
        return _Call(state.caller.urgency, self.asked, spec.account, group, amounts, shares)

    def _share(self, key: PoolKey, pool: Pool) -> _Share:
        if key not in self._shares:
            self._shares[key] = _Share(key, pool)
            self._poked.set()
        return self._shares[key]

    def _serve(self, now: float) -> None:
        """Give permits to the calls that wait, the most urgent first."""
        order = sorted(self._waiting.items(), key=lambda each: (-each[1].urgency, each[1].number))
        for run_id, call in order:
            if all(share.may_begin(now) for share in call.shares):
                for share in call.shares:
                    share.unused = max(0, share.unused - 1)
                    share.begun += 1
                    share.use(call.amounts)
                call.began_at = now
                self._begun[run_id] = self._waiting.pop(run_id)
                call.granted.set()

    def _wait_of(self, call: _Call, now: float) -> float:
        """Return about how many seconds a call still waits."""
        before = sum(
            other.urgency > call.urgency
            or (other.urgency == call.urgency and other.number <= call.number)
            for other in self._waiting.values()
        )
        return max(share.wait_of(before, now) for share in call.shares)

    # --- Exchanges with the database, in a thread ---

    def run(self, worker_id: str) -> None:
        """Exchange permits and news for a registered worker until ``stop``. Its permits come back when its
        lease ends."""
        self._load_pools()
        while not self._stopped.wait(LEAST_SECONDS / 2):
            now = self._clock.monotonic()
            for share in tuple(self._shares.values()):
                if self._due_at(share) <= now:
                    self._exchange(share, worker_id)
            due = min(map(self._due_at, tuple(self._shares.values())), default=math.inf)
            self._poked.wait(min(max(due - self._clock.monotonic(), 0.0), CALM_SECONDS))
            self._poked.clear()

    def stop(self) -> None:
        self._stopped.set()
        self._poked.set()

    def _load_pools(self) -> None:
        """Load the stored pools of accounts and, if there is only one, of the organization, until a
        reply names it. Otherwise each new worker would begin without limits."""
        try:
            known = self._limits.known(self._clock.now())
        except UnreachableError:
            return
        organisations = {key.organisation for key in known if not is_account(key.organisation)}
        with self._lock:
            if self._organisation is None and len(organisations) == 1:
                self._organisation = organisations.pop()
            for key, pool in known.items():
                if is_account(key.organisation) or key.organisation == self._organisation:
                    self._shares.setdefault(key, _Share(key, pool))

    def _due_at(self, share: _Share) -> float:
        """Return when to exchange next, by the monotonic clock."""
        waits = any(share in call.shares for call in tuple(self._waiting.values()))
        if not (waits or share.begun or share.is_reported or share.news != News()):
            return math.inf
        spread = 0.8 + 0.4 * self._jitter()
        return share.exchanged_at + spread * share.interval(waits)

    def _exchange(self, share: _Share, worker_id: str) -> None:
        now, at = self._clock.now(), self._clock.monotonic()
        with self._lock:
            waiting = sum(share in call.shares for call in self._waiting.values())
            passed, share.exchanged_at = at - share.exchanged_at, at
            report = self._report(share, min(passed, LONGEST_WAIT), now)
            news, share.news, share.is_urgent = share.news, News(), False
        try:
            shared = self._limits.exchange(worker_id, share.key, report, news, share.pool, now)
        except UnreachableError:
            with self._lock:
                share.news = news.then(share.news)
                share.unused += self._without_database(share, min(passed, CALM_SECONDS))
                self._serve(now)
            return
        with self._lock:
            held_until = max(shared.pool.held_until, share.pool.held_until)
            share.pool = replace(shared.pool, held_until=held_until if held_until > now else 0.0)
            share.unused += shared.granted if share.pool.is_limited else 0
            share.workers = shared.workers
            share.is_reported = bool(shared.report.busy or shared.report.demands)
            self._serve(self._clock.now())
        self._observer.governed(share.key, shared, waiting)
        about = {"organization": share.key.organisation, "group": share.key.group}
        for kind, data in shared.events:
            log_event(logger, kind.replace("_", " "), **about, **data)

    def _report(self, share: _Share, passed: float, now: float) -> Report:
        """Return the worker's report on a share after ``passed`` seconds, without the permits that it does
        not need: these are given back."""
        share.rate += (share.begun / max(passed, LEAST_SECONDS) - share.rate) / 2
        share.begun = 0
        waiting = [call for call in self._waiting.values() if share in call.shares]
        ahead = math.ceil(AHEAD * share.rate * share.interval(bool(waiting)) - 0.1)
        share.unused = min(share.unused, max(ahead, len(waiting)))
        begun = [call for call in self._begun.values() if share in call.shares]
        held = plus(NOTHING, share.mean, share.unused)
        for call in begun:
            held = plus(held, share.held(call, now))
        demands = _demands(waiting, share.unused)
        if (more := ahead - share.unused) > 0:
            demands.append(Demand(PREFETCH, more, plus(NOTHING, share.mean, more)))
        return Report(held, len(begun) + share.unused, tuple(demands))

    def _without_database(self, share: _Share, seconds: float) -> int:
        """Return the permits for ``seconds`` in which the database does not answer."""
        rate = share.calls_a_second()
        if not share.pool.is_limited or math.isinf(rate):
            return 0
        expected = LOST_SHARE * rate * seconds
        return math.floor(expected + self._jitter())


def _demands(waiting: Iterable[_Call], unused: int) -> list[Demand]:
    """The demand of the calls that wait, without those that have permits of this share."""
    found: dict[float, list[_Call]] = {}
    for call in sorted(waiting, key=lambda each: (-each.urgency, each.number))[unused:]:
        found.setdefault(call.urgency, []).append(call)
    return [
        Demand(
            urgency, len(calls), {kind: sum(call.amounts[kind] for call in calls) for kind in KINDS}
        )
        for urgency, calls in found.items()
    ]

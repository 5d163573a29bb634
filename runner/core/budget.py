"""Limits of a run and of its job, what is left of them, and what the next call could cost at the worst.

Tokens are counted as the API counts them; costs are whole billionths of a USD, rounded up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from runner.core.conversation import Usage
from runner.core.prices import FREE, Tariff

FIRST_CALL_ALLOWANCE = 2_000  # tokens that the API adds around the first prompt
LEAST_OUTPUT_TOKENS = 1_024  # with less room than this a call is not worth making
BILLIONTHS = 1_000_000_000  # of a USD

# A bound of what any model writes: models write some 40 to 80 tokens a second, in fast mode 2.5 times as
# many (https://docs.claude.com/en/build-with-claude/fast-mode), and this is five times more again.
TOKENS_PER_SECOND = 1_000
NOTICE_SECONDS = 60.0  # within which the API notices that nobody reads a reply any more

NEAR = 0.8  # the share of a limit from which on people are told that it is near
EVERY_CALL = "all"  # the unknown charges of all ended calls of a job, to be written off

Ceiling = Literal["token_ceiling", "cost_ceiling"]


@dataclass(frozen=True, slots=True)
class Limits:
    max_turns: int = 50
    token_ceiling: int = 20_000_000
    max_output_tokens: int = 32_000  # of one reply
    tool_timeout: float = 120.0  # seconds, of a call that asks for no time itself
    deadline: float | None = None  # seconds from the run's submission
    working_time: float | None = None  # seconds of model calls and tools; waiting is not counted
    cost_ceiling_usd: float | None = None
    max_agent_depth: int = 3  # a run this deep starts no sub-agents; an item's is at depth 0
    max_agents_at_once: int = 8  # of one run, that have not ended
    max_agents: int = 50  # below the run of an item, ever

    @property
    def cost_ceiling(self) -> int | None:
        """The most that the run may cost, in billionths of a USD."""
        return None if self.cost_ceiling_usd is None else billionths(self.cost_ceiling_usd)


@dataclass(frozen=True, slots=True)
class Budget:
    """The caps on all runs of a job together; None: no cap."""

    usd: float | None = None
    tokens: int | None = None

    @property
    def is_set(self) -> bool:
        return self.usd is not None or self.tokens is not None


@dataclass(frozen=True, slots=True)
class Reservation:
    """The most that a model call may use."""

    max_tokens: int  # of its output
    worst_case: int  # tokens
    lowered: bool  # ``max_tokens`` is less than the job asks for
    lowered_by: Ceiling = "token_ceiling"
    worst_cost: int = 0  # billionths of a USD
    hour_cache: bool = False  # what it writes to the cache lives for an hour
    prompt_cost: int | None = (
        None  # of ``worst_cost``, for the prompt; older versions do not store it
    )
    day: str = ""  # of the cap that it counts for (``DayCap.day``)
    batch: bool = False  # the call goes into a Message Batch, at its prices

    def at_most(self, output: int) -> Charged:
        """The most that the call can have used if its reply had at most ``output`` tokens."""
        if self.prompt_cost is None or output >= self.max_tokens:
            return Charged(self.worst_case, self.worst_cost)
        # Costs bend upwards where prices do, so those in between are below the line.
        rest = -(-(self.worst_cost - self.prompt_cost) * output // self.max_tokens)
        return Charged(self.worst_case - self.max_tokens + output, self.prompt_cost + rest)


@dataclass(frozen=True, slots=True)
class JobBudget:
    """The caps of a job, and what its runs have used and reserved. None: no cap."""

    most_tokens: int | None = None
    most_cost: int | None = None  # costs in billionths of a USD
    spent_tokens: int = 0
    spent_cost: int = 0
    reserved_tokens: int = 0  # for calls in flight
    reserved_cost: int = 0

    def verdict(self, call: Reservation) -> Literal["fits", "later", "never"]:
        """Return if a call may begin now, after others release reservations, or never."""
        tokens, cost = self.spent_tokens + call.worst_case, self.spent_cost + call.worst_cost
        if not self._holds(tokens, cost):
            return "never"
        fits = self._holds(tokens + self.reserved_tokens, cost + self.reserved_cost)
        return "fits" if fits else "later"

    def _holds(self, tokens: int, cost: int) -> bool:
        return (self.most_tokens is None or tokens <= self.most_tokens) and (
            self.most_cost is None or cost <= self.most_cost
        )

    def with_reserved(self, call: Reservation) -> JobBudget:
        return replace(
            self,
            reserved_tokens=self.reserved_tokens + call.worst_case,
            reserved_cost=self.reserved_cost + call.worst_cost,
        )

    def with_spent(self, call: Reservation, tokens: int, cost: int) -> JobBudget:
        """Return the budget after a call: its usage is spent, and its reservation released."""
        return replace(
            self,
            spent_tokens=self.spent_tokens + tokens,
            spent_cost=self.spent_cost + cost,
            reserved_tokens=self.reserved_tokens - call.worst_case,
            reserved_cost=self.reserved_cost - call.worst_cost,
        )


@dataclass(frozen=True, slots=True)
class DayCap:
    """The cap on all calls of the database that begin on a day, and what these have cost."""

    day: str  # ``2026-11-24 Europe/Berlin``
    ends_at: float  # its midnight, in seconds since the epoch
    budget: JobBudget  # in USD only; without a cap once a person removed it
    # The day of a call that began before this one, what it had reserved, and what it cost.
    late: tuple[str, int, int] | None = None

    @property
    def is_set(self) -> bool:
        return self.budget.most_cost is not None

    def verdict(self, call: Reservation) -> Literal["fits", "later", "never"]:
        """Return if a call may begin now, after others release reservations, or not on this day."""
        return self.budget.verdict(call) if call.worst_cost else "fits"

    def with_reserved(self, call: Reservation) -> DayCap:
        return replace(self, budget=self.budget.with_reserved(call)) if call.day else self

    def with_spent(self, call: Reservation, cost: int) -> DayCap:
        """Return the cap after a call, which is charged to the day on which it began."""
        if call.day == self.day:
            return replace(self, budget=self.budget.with_spent(call, call.worst_case, cost))
        return replace(self, late=(call.day, call.worst_cost, cost)) if call.day else self


@dataclass(frozen=True, slots=True)
class Charged:
    """The charges of a run so far: real usage, or the worst case where usage is unknown."""

    tokens: int
    cost: int = 0

    def __add__(self, other: Charged) -> Charged:
        return Charged(self.tokens + other.tokens, self.cost + other.cost)


def written_in(seconds: float, rate: int = TOKENS_PER_SECOND) -> int:
    """Return the most tokens that a model can write in that time."""
    return math.ceil(max(0.0, seconds) * rate)


def charge_of(
    call: Reservation, counted: Usage | None, most_output: int | None, tariff: Tariff
) -> Charged:
    """Return the charge for a call without a whole reply: the tokens that the API has counted, and the
    most that it can have written. None: it has not counted the prompt; nothing bounds the reply."""
    output = call.max_tokens if most_output is None else min(most_output, call.max_tokens)
    if counted is None:
        return call.at_most(output)
    used = replace(counted, output_tokens=max(counted.output_tokens, output))
    tariff = tariff.in_lane(batch=call.batch)
    return Charged(used.total, tariff.cost(used, hour_cache=call.hour_cache))


def is_near(used: float, most: float | None) -> bool:
    """True if a limit is used so far that people are told."""
    return most is not None and used >= NEAR * most


def billionths(usd: float) -> int:
    """Return an amount from a file or an option in whole billionths of a USD."""
    return round(usd * BILLIONTHS)


def in_usd(amount: int) -> str:
    """Return billionths of a USD as exact text with at least four decimal places."""
    whole, rest = divmod(amount, BILLIONTHS)
    return f"${whole:,}.{f'{rest:09}'.rstrip('0'):0<4}"


def prompt_bound(last_prompt_tokens: int | None, appended_bytes: int) -> int:
    """Return an upper bound of the next prompt's tokens: the real input of the last call with known
    usage plus the UTF-8 bytes appended since; before the first call (None), the request's bytes."""
    if last_prompt_tokens is None:
        return appended_bytes + FIRST_CALL_ALLOWANCE
    return last_prompt_tokens + appended_bytes


def reserve(
    limits: Limits,
    charged: Charged,
    prompt: int,
    *,
    most_output: int,
    thinking_tokens: int = 0,
    tariff: Tariff = FREE,
    hour_cache: bool = False,
    batch: bool = False,
) -> Reservation | Ceiling:
    """Return the reservation of the next call within all ceilings, or the ceiling that leaves no
    room. ``prompt`` comes from ``prompt_bound``; ``max_tokens`` must exceed ``thinking_tokens``."""
    tariff = tariff.in_lane(batch=batch)
    room = limits.token_ceiling - charged.tokens - prompt
    lowered_by: Ceiling = "token_ceiling"
    if limits.cost_ceiling is not None:
        left = limits.cost_ceiling - charged.cost
        affordable = tariff.output_for(left, prompt, hour_cache=hour_cache, most=most_output)
        if affordable < min(room, most_output):
            room, lowered_by = affordable, "cost_ceiling"
    if room < LEAST_OUTPUT_TOKENS + thinking_tokens and room < most_output:
        return lowered_by
    max_tokens = min(most_output, room)
    return Reservation(
        max_tokens,
        prompt + max_tokens,
        max_tokens < most_output,
        lowered_by,
        tariff.cost_at_most(prompt, max_tokens, hour_cache=hour_cache),
        hour_cache,
        tariff.cost_at_most(prompt, 0, hour_cache=hour_cache),
        batch=batch,
    )

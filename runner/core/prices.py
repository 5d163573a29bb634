"""Prices of model calls, and exact sums of their costs.

Source: https://docs.claude.com/en/docs/about-claude/pricing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from datetime import date
from decimal import ROUND_CEILING, Decimal
from functools import partial
from typing import Any, Literal, get_args

from runner.core.conversation import Usage

By = Literal["job", "run", "tree", "model", "day", "purpose"]  # what costs are summed by
BY: tuple[By, ...] = get_args(By)

_NO_USD = Decimal(0)
_RELEASE = re.compile(r"-(?:\d{8}|latest)$", re.ASCII)
PLATFORM_MARKS = frozenset("./@")  # characters that only platforms' model ids have
# A model as Bedrock names it ("eu.anthropic.claude-opus-4-6-v1", or an ARN that ends so), and as
# ``JobSpec.billed_as`` names one on Vertex AI ("europe-west1/claude-opus-4-5@20251101").
_PLATFORMS = re.compile(
    r"(?:arn:[^/]*/)?(?:([a-z0-9-]+)\.)?anthropic\.(claude-[a-z0-9-]+?)(?:-v\d+(?::\w+)*)?"
    r"|(?:([a-z0-9-]+)/)?(claude-[a-z0-9-]+?)(?:(?:-v\d+)?@(?:\d{8}|default|latest))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Rates:
    """USD for a million tokens of each kind. Cache writes live for 5 minutes or for an hour."""

    input: Decimal
    cache_write_5m: Decimal
    cache_write_1h: Decimal
    cache_read: Decimal
    output: Decimal

    def cost(self, usage: Usage, *, hour_cache: bool) -> Decimal:
        """USD of tokens that were used. ``hour_cache``: cache writes live for an hour."""
        return (
            self.input * usage.input_tokens
            + self._write(hour_cache) * usage.cache_creation_tokens
            + self.cache_read * usage.cache_read_tokens
            + self.output * usage.output_tokens
        ).scaleb(-6)

    def cost_at_most(self, prompt: int, output: int, *, hour_cache: bool) -> Decimal:
        """USD that a call can have cost, given bounds of its tokens."""
        dearest = max(self.input, self._write(hour_cache), self.cache_read)
        return (dearest * prompt + self.output * output).scaleb(-6)

    def output_for(self, left: int, prompt: int, *, hour_cache: bool, most: int) -> int:
        room = left - _rounded_up(self.cost_at_most(prompt, 0, hour_cache=hour_cache))
        if room < 0:
            return -1
        if not self.output:
            return most
        return min(most, int(Decimal(room).scaleb(-3) / self.output))

    def times(self, factor: Decimal) -> Rates:
        return Rates(*(rate * factor for rate in astuple(self)))

    def _write(self, hour_cache: bool) -> Decimal:
        return self.cache_write_1h if hour_cache else self.cache_write_5m


@dataclass(frozen=True, slots=True)
class Tariff:
    """The billing of one model's calls in a job, in whole billionths of a USD, rounded up."""

    standard: Rates
    long: Rates | None = None  # of calls with a longer prompt than ``long_above``, if they differ
    long_above: int = 0  # tokens
    batch: Decimal = Decimal(1)  # factor for calls in a Message Batch

    def in_lane(self, *, batch: bool) -> Tariff:
        """Return the tariff of calls in a Message Batch, or of calls one by one."""
        if not batch:
            return self
        long = self.long and self.long.times(self.batch)
        return replace(self, standard=self.standard.times(self.batch), long=long)

    def cost(self, usage: Usage, *, hour_cache: bool) -> int:
        rates = self._possible(usage.prompt_tokens)[-1]
        return _rounded_up(rates.cost(usage, hour_cache=hour_cache))

    def cost_at_most(self, prompt: int, output: int, *, hour_cache: bool) -> int:
        """Return the most that a call can cost, given bounds of its tokens."""
        return max(
            _rounded_up(rates.cost_at_most(prompt, output, hour_cache=hour_cache))
            for rates in self._possible(prompt)
        )

    def output_for(self, left: int, prompt: int, *, hour_cache: bool, most: int) -> int:
        """Return the output tokens, at most ``most``, that a call can have within ``left``;
        negative if its prompt alone may cost more."""
        return min(
            rates.output_for(left, prompt, hour_cache=hour_cache, most=most)
            for rates in self._possible(prompt)
        )

    def _possible(self, prompt: int) -> tuple[Rates, ...]:
        if self.long is None or prompt <= self.long_above:
            return (self.standard,)
        return (self.standard, self.long)


def _rounded_up(usd: Decimal) -> int:
    return int(usd.scaleb(9).to_integral_value(ROUND_CEILING))


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a model. None: the list has no such rates."""

    standard: Rates
    fast: Rates | None = None  # in fast mode
    long: Rates | None = None  # of calls with a longer prompt than ``long_above``
    long_above: int = 0  # tokens: input, cache reads and cache writes
    window: int | None = None  # tokens; None: the list does not say
    regional: Decimal | None = None  # replaces the factor of ``PriceList``, if given

    def times(self, factor: Decimal) -> Price:
        fast, long = (rates and rates.times(factor) for rates in (self.fast, self.long))
        return replace(self, standard=self.standard.times(factor), fast=fast, long=long)


@dataclass(frozen=True, slots=True)
class Terms:
    """The billing terms in a job's model options; a script costs nothing."""

    scripted: bool = False
    fast: bool = False
    us_only: bool = False
    hour_cache: bool = False
    batch: bool = False  # in a Message Batch

    @classmethod
    def of(cls, provider: str, options: Mapping[str, Any], *, own_model: bool = True) -> Terms:
        """The terms of a job with these model options, for its own model or another one."""
        given = {**options, **(options.get("extra_body") or {})}
        return cls(
            scripted=provider == "scripted",
            fast=own_model and given.get("speed") == "fast",
            us_only=given.get("inference_geo") == "us",
            hour_cache=(given.get("cache_control") or {}).get("ttl") == "1h",
        )

    def of_call(self, hour_cache: Any, batch: Any) -> Terms:
        """The terms of a call, given the columns of its row that say more."""
        # Older versions do not store whether what it wrote to the cache lives for an hour.
        of_cache = self.hour_cache if hour_cache is None else bool(hour_cache)
        return replace(self, hour_cache=of_cache, batch=bool(batch))


FREE = Tariff(Rates(*(Decimal(0),) * 5))
USUAL_RATES = Rates(*map(Decimal, ("1", "1.25", "2", "0.1", "5")))  # in prices of input


@dataclass(frozen=True, slots=True)
class PriceList:
    """Prices by model id as of a day."""

    date: date
    source: str  # where the prices are from
    models: Mapping[str, Price]
    us_inference: Decimal = Decimal(1)  # factor for calls that may only be worked in the US
    batch: Decimal = Decimal(1)  # factor for calls in a Message Batch
    regional: Decimal = Decimal(1)  # factor for calls bound to a region of Bedrock or Vertex AI

    def price(self, model: str) -> Price | None:
        """A model's price, or None. A model that has none goes by its id without a date or ``-latest``
        at the end, and without what Bedrock and Vertex AI add; never by the beginning of its id: a
        newer model of the family may cost more."""
        if (listed := self._listed(model)) is not None:
            return listed
        is_regional, name = _on_platform(model)
        if (price := self._listed(name)) is None or not is_regional:
            return price
        return price.times(self.regional if price.regional is None else price.regional)

    def _listed(self, model: str) -> Price | None:
        return self.models.get(model) or self.models.get(_RELEASE.sub("", model))

    def window(self, model: str) -> int | None:
        price = self.price(model)
        return None if price is None else price.window

    def rates(self, model: str, terms: Terms, above: int) -> Rates | None:
        """Return the rates of a call, or None if the list has none. ``above``: the largest of
        ``thresholds`` that its prompt exceeds, 0 for none."""
        price = self.price(model)
        if price is None:
            return None
        is_long = price.long is not None and above >= price.long_above
        rates = price.fast if terms.fast else price.long if is_long else price.standard
        if rates and terms.us_only:
            rates = rates.times(self.us_inference)
        return rates.times(self.batch) if rates and terms.batch else rates

    def tariff(self, model: str, terms: Terms) -> Tariff | None:
        if terms.scripted:
            return FREE
        standard, price = self.rates(model, terms, 0), self.price(model)
        if standard is None or price is None:
            return None
        if price.long is None or terms.fast:
            return Tariff(standard, batch=self.batch)
        long = self.rates(model, terms, price.long_above)
        return Tariff(standard, long, price.long_above, self.batch)

    @property
    def thresholds(self) -> tuple[int, ...]:
        """The lengths of prompts, in tokens, from which on some model has other prices; ascending."""
        return tuple(sorted({p.long_above for p in self.models.values() if p.long is not None}))


def _on_platform(model: str) -> tuple[bool, str]:
    """Return whether a model id binds calls to a region, and the API's id of the same model."""
    found = _PLATFORMS.fullmatch(model)
    if found is None:
        return False, model
    geography, on_bedrock, region, name = found.groups()
    return (geography if on_bedrock else region or "global") != "global", on_bedrock or name


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of one model that are billed alike, in sums."""

    model: str
    terms: Terms
    above: int  # as in ``PriceList.rates``
    count: int  # of all of them; refused ones used nothing
    usage: Usage  # of those whose usage is known
    unknown: int = 0  # calls that were charged more than the API is known to have counted
    unknown_prompt: int = 0  # tokens that it did not count, and that were charged
    unknown_output: int = 0
    written_off: int = 0  # calls whose unknown charge a person wrote off
    off_prompt: int = 0  # its tokens
    off_output: int = 0


@dataclass(frozen=True, slots=True)
class Spending:
    """The usage and cost of calls."""

    calls: int = 0
    scripted: int = 0
    usage: Usage = field(default_factory=Usage)
    usd: Decimal = _NO_USD  # of the calls whose usage is known and whose model has a price
    unknown: int = 0  # calls of unknown usage; ``usage`` and ``usd`` have only what the API counted
    unknown_tokens: int = 0  # bound of the rest, which is charged
    at_most: Decimal = _NO_USD  # bound of what it cost
    written_off: int = 0  # calls whose rest a person wrote off
    written_off_tokens: int = 0
    written_off_usd: Decimal = _NO_USD
    unpriced: frozenset[str] = frozenset()  # models without a price: in neither sum

    def __add__(self, other: Spending) -> Spending:
        *summed, _ = Spending.__slots__
        sums = {name: getattr(self, name) + getattr(other, name) for name in summed}
        return Spending(**sums, unpriced=self.unpriced | other.unpriced)

    @property
    def cache_share(self) -> float | None:
        """Return the share of prompt tokens read from the cache; None without prompts."""
        prompt = self.usage.prompt_tokens
        return self.usage.cache_read_tokens / prompt if prompt else None


def spending(prices: PriceList, calls: Calls) -> Spending:
    """Return the cost of calls by a price list. A model without a price is named, never free."""
    if calls.terms.scripted:
        return Spending(calls.count, calls.count, calls.usage)
    spent = Spending(
        calls.count,
        usage=calls.usage,
        unknown=calls.unknown,
        unknown_tokens=calls.unknown_prompt + calls.unknown_output,
        written_off=calls.written_off,
        written_off_tokens=calls.off_prompt + calls.off_output,
    )
    if not (calls.usage.total or calls.unknown or calls.written_off):
        return spent
    rates = prices.rates(calls.model, calls.terms, calls.above)
    if rates is None:
        known = prices.price(calls.model) is not None
        name = f"{calls.model} in fast mode" if known else calls.model
        return spent + Spending(unpriced=frozenset({name}))
    hour_cache = calls.terms.hour_cache
    bound = partial(rates.cost_at_most, hour_cache=hour_cache)
    return spent + Spending(
        usd=rates.cost(calls.usage, hour_cache=hour_cache),
        at_most=bound(calls.unknown_prompt, calls.unknown_output),
        written_off_usd=bound(calls.off_prompt, calls.off_output),
    )

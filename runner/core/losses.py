"""The money that a job's calls cost for nothing, and the changes that would have made them cheaper.

Everything is computed from stored calls, by list price. An amount is a lower bound where a call's usage or
price is not known; a saving "at most" is an upper bound.

Sources: https://docs.claude.com/en/docs/build-with-claude/prompt-caching (how long a cache lives) and
https://docs.claude.com/en/docs/build-with-claude/batch-processing (half the price, within 24 hours).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import groupby

from runner.core.conversation import Purpose, Usage
from runner.core.prices import PLATFORM_MARKS, PriceList, Rates, Spending, Terms

_NO_USD = Decimal(0)
_CACHE_SECONDS, _HOUR_CACHE_SECONDS = 300.0, 3600.0
_BATCH_SHARE = Decimal("0.5")  # of the price: the most that batches save


@dataclass(frozen=True, slots=True)
class PricedCall:
    """A model call that has ended."""

    run_id: str
    turn: int
    purpose: Purpose
    model: str
    started_at: float
    ended_at: float
    replied: bool
    failed: bool  # the run of its item did
    compacted: bool  # it is the first that was sent some compaction
    spending: Spending
    terms: Terms
    rates: Rates | None  # None: it cost nothing, or nobody knows its price

    @property
    def usage(self) -> Usage:
        return self.spending.usage


@dataclass(frozen=True, slots=True)
class Loss:
    calls: int = 0
    usd: Decimal = _NO_USD
    at_most: Decimal = _NO_USD  # more, for calls of unknown usage

    def __add__(self, other: Loss) -> Loss:
        calls, at_most = self.calls + other.calls, self.at_most + other.at_most
        return Loss(calls, self.usd + other.usd, at_most)


@dataclass(frozen=True, slots=True)
class CheaperWay:
    """A change to the job file, and what it would have saved."""

    change: str
    usd: Decimal
    at_most: bool = False  # the saving is an upper bound


@dataclass(frozen=True, slots=True)
class Losses:
    """The losses of a job, each call in one of three kinds, and cheaper ways, the best first."""

    expired: Loss = field(default_factory=Loss)  # the cache had ended when a turn came
    repeated: Loss = field(default_factory=Loss)  # calls without a reply that were made again
    failed: Loss = field(default_factory=Loss)  # all calls for items that failed
    cheaper: Sequence[CheaperWay] = ()
    unpriced: bool = False  # there are calls without a price, which are in no sum


def losses(calls: Iterable[PricedCall], prices: PriceList) -> Losses:
    """Return the losses among calls, which are ordered by run and number."""
    expired, repeated, failed, by_run = Loss(), Loss(), Loss(), list[list[PricedCall]]()
    hour = rewritten = one_by_one = _NO_USD
    for _, of_run in groupby(calls, key=lambda call: call.run_id):
        by_run.append(run := list(of_run))
        again = {(call.turn, call.purpose): at for at, call in enumerate(run)}
        before: PricedCall | None = None  # the last reply to a turn
        compactions = 0
        for at, call in enumerate(run):
            loss = _rewritten(call, before)
            hour -= _hour_extra(call, loss, before)
            waited = _gap(call, before) > _lifetime(before)
            is_expired = loss > 0 and waited and not call.compacted
            if is_expired and _gap(call, before) <= _HOUR_CACHE_SECONDS:
                hour += loss
            compactions += call.compacted
            rewritten += loss if call.compacted and compactions > 1 else 0
            one_by_one += 0 if call.terms.batch else call.spending.usd
            cost = Loss(1, call.spending.usd, call.spending.at_most)
            if call.failed:
                failed += cost
            elif not call.replied and at < again[call.turn, call.purpose]:
                repeated += cost
            elif is_expired:
                expired += Loss(1, loss)
            if call.replied and call.purpose == "turn":
                before = call
    ways = [
        CheaperWay(
            'cache_control = { type = "ephemeral", ttl = "1h" } under [model_options]', hour
        ),
        CheaperWay("a smaller keep_messages under [context]", rewritten, at_most=True),
        CheaperWay('lane = "batch"', one_by_one * _BATCH_SHARE, at_most=True),
        *_summarised(by_run, prices),
    ]
    cheaper = sorted((way for way in ways if way.usd > 0), key=lambda way: -way.usd)
    unpriced = any(call.spending.unpriced for run in by_run for call in run)
    return Losses(expired, repeated, failed, cheaper, unpriced)


def _gap(call: PricedCall, before: PricedCall | None) -> float:
    """Return the seconds between a call and the last use of the cache before it."""
    return 0.0 if before is None else call.started_at - before.ended_at


def _lifetime(before: PricedCall | None) -> float:
    return _HOUR_CACHE_SECONDS if before and before.terms.hour_cache else _CACHE_SECONDS


def _missed(call: PricedCall, before: PricedCall | None) -> tuple[int, int]:
    """Return how many tokens of the cached prefix were not read, and how many of them were written."""
    if before is None or call.purpose != "turn" or call.model != before.model:
        return 0, 0
    cached = before.usage.cache_read_tokens + before.usage.cache_creation_tokens
    missed = max(0, min(cached, call.usage.prompt_tokens) - call.usage.cache_read_tokens)
    return missed, min(missed, call.usage.cache_creation_tokens)


def _rewritten(call: PricedCall, before: PricedCall | None) -> Decimal:
    """Return the extra price of tokens that were cached before and that a call did not read from there."""
    if (rates := call.rates) is None:
        return _NO_USD
    missed, written = _missed(call, before)
    write = rates.cache_write_1h if call.terms.hour_cache else rates.cache_write_5m
    paid = write * written + rates.input * (missed - written)
    return (paid - rates.cache_read * missed).scaleb(-6)


def _hour_extra(call: PricedCall, loss: Decimal, before: PricedCall | None) -> Decimal:
    """Return what more a call's cache writes cost if they live for an hour."""
    if call.rates is None or call.terms.hour_cache:
        return _NO_USD
    needed = call.usage.cache_creation_tokens
    if loss and not call.compacted and _gap(call, before) > _CACHE_SECONDS:
        needed -= _missed(call, before)[1]  # these would have been read
    return ((call.rates.cache_write_1h - call.rates.cache_write_5m) * needed).scaleb(-6)


def _summarised(by_run: Iterable[Sequence[PricedCall]], prices: PriceList) -> Iterable[CheaperWay]:
    """Yield the model that would have written the summaries cheapest, its own cache empty."""
    made = [call for run in by_run for call in run if call.purpose == "summary" and call.rates]
    if not made or any(set(call.model) & PLATFORM_MARKS for call in made):
        return  # the price list has no platforms' ids to compare with
    longest = max(call.usage.prompt_tokens for call in made)
    now, found = sum((call.spending.usd for call in made), _NO_USD), dict[str, Decimal]()
    for model in prices.models:
        window = prices.window(model)
        if window is None or window > longest:
            found[model] = sum((_alone(call, model, prices) for call in made), _NO_USD)
    if found:
        model = min(found, key=lambda name: (found[name], name))
        yield CheaperWay(f'summary_model = "{model}" under [context]', now - found[model])


def _alone(call: PricedCall, model: str, prices: PriceList) -> Decimal:
    prompt = call.usage.prompt_tokens
    above = max((each for each in prices.thresholds if prompt > each), default=0)
    terms = Terms(us_only=call.terms.us_only)
    rates = prices.rates(model, terms, above)
    assert rates is not None, model  # standard rates of a listed model
    usage = Usage(input_tokens=prompt, output_tokens=call.usage.output_tokens)
    return rates.cost(usage, hour_cache=False)


def as_json(found: Losses) -> Mapping[str, object]:
    """Return losses for JSON. Amounts are lower bounds if ``at_least``."""
    kinds = {"expired_caches": found.expired, "repeated_calls": found.repeated}
    return {
        **{
            name: {
                "calls": loss.calls,
                "usd": float(round(loss.usd, 9)),
                "unknown_at_most_usd": float(round(loss.at_most, 9)),
            }
            for name, loss in (kinds | {"failed_runs": found.failed}).items()
        },
        "at_least": found.unpriced,
        "cheaper": [
            {"change": way.change, "saves_usd": float(round(way.usd, 9)), "at_most": way.at_most}
            for way in found.cheaper
        ],
    }

"""A job's expected total cost, tokens and end, each as a range that holds in 9 of 10 cases.

The finished items are a small sample, and a plain bootstrap of it is too narrow: it never draws an item
dearer than the dearest so far. And they are no fair sample: cheap items end first, so the items in hand are
dearer than they are. Two steps answer this:

- A log-normal model with unknown mean and variance is fitted to the finished items and to those in hand,
  which count as "at least what they have used so far" (Gibbs sampling of censored data; Gelman et al.,
  Bayesian Data Analysis, 3rd ed., sections 2.8, 3.2 and 8.7). Each draw has another mean and variance, so
  the range knows how little the sample says.
- The items to come are drawn by Bayesian bootstrap (Rubin, The Bayesian Bootstrap, 1981) from the finished
  items, those in hand and that model, which weighs as much as ``MODEL_ITEMS`` items (the prior of a
  Dirichlet process, Ferguson, 1973): with few items the model leads, with many the items do. So with the
  ends of those in hand, where the model weighs more, because few finished items are as long.

Items are taken to come in no order of size. A rare kind of item that none has shown yet is in no forecast.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter
from statistics import NormalDist

LEAST_FINISHED = 3
MOST_FINISHED = 50  # that a forecast rests on
MODEL_ITEMS = 5.0
_MODEL_ITEMS_IN_HAND = 30.0

_DRAWS, _WARM_UP = 200, 20
_PSEUDO_ITEMS = 4  # of the model, in each draw
# The spread of the logarithms before any item is seen, and how many items that counts as.
_PRIOR_SPREAD, _PRIOR_ITEMS = 0.7, 3
_MOST_SINGLE = 30  # items drawn one by one; sums of more are normal
# A little outside 5 and 95 %: slots, and kinds of items, are not as simple as the model.
_SHARES = (0.035, 0.5, 0.965)
_NORMAL = NormalDist()
_ORDER = attrgetter("began", "usd", "tokens", "seconds")


@dataclass(frozen=True, slots=True)
class Item:
    """The work on one item, sub-agents included: all of it, or so far."""

    usd: float
    tokens: float
    seconds: float  # since it began
    began: float  # seconds since the epoch
    in_hand: bool = False  # it is in progress and waits for no person


@dataclass(frozen=True, slots=True)
class Range:
    low: float  # less in 1 of 20 cases
    expected: float  # less in half of the cases
    high: float  # more in 1 of 20 cases


@dataclass(frozen=True, slots=True)
class Forecast:
    finished: int  # the items that it rests on
    usd: Range
    tokens: Range
    seconds: Range  # until the last item ends, at the present speed, without items that wait for a person


def forecast(
    seed: str,
    finished: Sequence[Item],
    begun: Sequence[Item],
    unbegun: int,
    other: Sequence[Item] = (),
) -> Forecast | None:
    """Return the forecast of a job, the same for the same ``seed`` and items; None before
    ``LEAST_FINISHED`` items are finished, and once all are.

    Args:
        begun: items that have begun and not ended.
        unbegun: how many items have not begun.
        other: work that was spent, and says nothing of the items to come.
    """
    if len(finished) < LEAST_FINISHED or not (begun or unbegun):
        return None
    # By when they began: among those that ended last, or first, some length would be too frequent.
    sample, begun = sorted(finished, key=_ORDER)[-MOST_FINISHED:], sorted(begun, key=_ORDER)

    def total(of: Callable[[Item], float], name: str) -> Range:
        draws = _Draws(random.Random(f"{seed}/{name}"), of, sample, begun)
        fixed = sum(map(of, finished)) + sum(map(of, other))
        return _range(fixed + sum(totals) + draws.sum_of(unbegun) for totals in draws)

    draws = _Draws(random.Random(f"{seed}/seconds"), lambda item: item.seconds, sample, begun)
    return Forecast(
        len(sample),
        total(lambda item: item.usd, "usd"),
        total(lambda item: item.tokens, "tokens"),
        _until_end(draws, begun, unbegun),
    )


def _until_end(draws: _Draws, begun: Sequence[Item], unbegun: int) -> Range:
    """Play the work to its end with as many slots as are in use."""

    def play(totals: Sequence[float]) -> float:
        pairs = zip(totals, begun, strict=True)
        slots = [total - item.seconds for total, item in pairs if item.in_hand] or [0.0]
        single = min(unbegun, _MOST_SINGLE)
        ahead = draws.sum_of(unbegun - single) / len(slots)
        slots = [busy + ahead for busy in slots]
        heapq.heapify(slots)
        for seconds in draws.some(single):
            heapq.heapreplace(slots, slots[0] + seconds)
        return max(slots)

    return _range(map(play, draws))


def _range(totals: Iterator[float]) -> Range:
    found = sorted(totals)
    return Range(*(found[int(share * len(found))] for share in _SHARES))


class _Draws:
    """Draws of what the items may be like. Iterating yields the totals of the begun items, once for each
    draw; ``some`` and ``sum_of`` are of items to come in the same draw."""

    def __init__(
        self,
        rng: random.Random,
        of: Callable[[Item], float],
        finished: Sequence[Item],
        begun: Sequence[Item],
    ) -> None:
        self._rng = rng
        self._finished, self._so_far = list(map(of, finished)), list(map(of, begun))
        first = finished[0].began
        self._teaches = [item.began >= first for item in begun]
        self._items: Sequence[float] = self._finished
        self._weights: Sequence[float] = [1.0] * len(finished)

    def __iter__(self) -> Iterator[Sequence[float]]:
        if not any(self._finished):  # a script's cost
            yield self._so_far
            return
        rng = self._rng
        # Nothing has no logarithm: an item that failed at once counts as a thousandth.
        least = sum(self._finished) / len(self._finished) / 1000
        known = sorted(math.log(max(value, least)) for value in self._finished)
        floors = [math.log(max(value, least)) for value in self._so_far]
        mean, spread = sum(known) / len(known), _PRIOR_SPREAD
        for number in range(-_WARM_UP, _DRAWS):
            begun = [_above(rng, floor, known, mean, spread) for floor in floors]
            taught = list(compress(begun, self._teaches))
            mean, spread = _fitted(rng, [*known, *taught])
            if number < 0:
                continue
            model = [math.exp(rng.gauss(mean, spread)) for _ in range(_PSEUDO_ITEMS)]
            self._items = [*self._finished, *map(math.exp, taught), *model]
            ones = [rng.expovariate(1) for _ in self._items[:-_PSEUDO_ITEMS]]
            share = MODEL_ITEMS / _PSEUDO_ITEMS
            self._weights = [*ones, *(rng.gammavariate(share, 1) for _ in model)]
            yield list(map(math.exp, begun))

    def some(self, count: int) -> list[float]:
        return self._rng.choices(self._items, self._weights, k=count)

    def sum_of(self, count: int) -> float:
        if count <= _MOST_SINGLE:
            return sum(self.some(count))
        whole, pairs = sum(self._weights), list(zip(self._items, self._weights, strict=True))
        mean = sum(item * weight for item, weight in pairs) / whole
        variance = sum((item - mean) ** 2 * weight for item, weight in pairs) / whole
        return max(0.0, self._rng.gauss(count * mean, math.sqrt(count * variance)))


def _above(
    rng: random.Random, floor: float, known: Sequence[float], mean: float, spread: float
) -> float:
    """Draw one of the ``known`` values above ``floor``, or from the normal distribution above it."""
    below, first = _NORMAL.cdf((floor - mean) / spread), bisect(known, floor)
    above = len(known) - first
    if rng.random() * (above + _MODEL_ITEMS_IN_HAND * (1 - below)) < above:
        return known[rng.randrange(first, len(known))]
    share = below + (1 - below) * rng.random()
    if share > 1 - 1e-9:  # far above all others
        return floor + 0.1 * spread * rng.expovariate(1)
    return max(floor, mean + spread * _NORMAL.inv_cdf(max(share, 1e-12)))


def _fitted(rng: random.Random, values: Sequence[float]) -> tuple[float, float]:
    """Draw the mean and spread of the normal distribution that values come from."""
    count, mean = len(values), sum(values) / len(values)
    squares = sum((value - mean) ** 2 for value in values) + _PRIOR_ITEMS * _PRIOR_SPREAD**2
    freedom = count - 1 + _PRIOR_ITEMS
    spread = math.sqrt(squares / (2 * rng.gammavariate(freedom / 2, 1)))
    return rng.gauss(mean, spread / math.sqrt(count)), spread

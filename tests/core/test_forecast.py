"""``core.forecast``: ranges that hold as often as they say."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random

import pytest

from runner.core.forecast import LEAST_FINISHED, Forecast, Item, Range, forecast

SHAPES: Mapping[str, Callable[[Random], float]] = {
    "narrow": lambda rng: rng.lognormvariate(0, 0.5),
    "wide": lambda rng: rng.lognormvariate(0, 1),
    "exponential": lambda rng: rng.expovariate(1) + 0.01,
    "gamma": lambda rng: rng.gammavariate(3, 1),
    "two kinds": lambda rng: rng.lognormvariate(0, 0.3) * (3 if rng.random() < 0.4 else 1),
    "even": lambda rng: rng.uniform(0.5, 1.5),
}

# None of these shaped the forecast, nor did their jobs' numbers of items and slots.
HELD_OUT: Mapping[str, Callable[[Random], float]] = {
    "weibull": lambda rng: rng.weibullvariate(1, 1.5),
    "triangular": lambda rng: rng.triangular(0.1, 3, 0.4),
    "long tail": lambda rng: rng.paretovariate(3),
    "beta": lambda rng: 0.05 + rng.betavariate(2, 5),
    "lognormal": lambda rng: rng.lognormvariate(0, 0.8),
    "thirds": lambda rng: rng.choice((1, 2, 4)) * rng.uniform(0.8, 1.2),
}


def played(rng: Random, shape: str, items: int, slots: int, at: int) -> tuple[bool, bool]:
    """Work a job of items to its end in slots; return if the ranges of its cost and of its end held,
    as they were after the first items had finished."""
    costs = [(SHAPES | HELD_OUT)[shape](rng) for _ in range(items)]
    times = [cost * rng.lognormvariate(0, 0.3) for cost in costs]
    ends, begun, finished, now = list[tuple[float, int]](), dict[int, float](), list[Item](), 0.0
    found: Forecast | None = None
    seen_at = 0.0
    while len(finished) < items:
        while len(begun) < items and len(ends) < slots:
            heapq.heappush(ends, (now + times[len(begun)], len(begun)))
            begun[len(begun)] = now
        if len(finished) == at:
            shares = {i: (now - begun[i]) / times[i] for _, i in ends}
            so_far = [
                Item(costs[i] * s, 0, times[i] * s, begun[i], True) for i, s in shares.items()
            ]
            found = forecast(str(rng.random()), finished, so_far, items - len(begun))
            seen_at = now
        now, i = heapq.heappop(ends)
        finished.append(Item(costs[i], 0, times[i], begun[i]))
    assert found is not None
    return _holds(found.usd, sum(costs)), _holds(found.seconds, now - seen_at)


def _holds(found: Range, real: float) -> bool:
    return found.low <= real <= found.high


def held(shape: str, at: int, jobs: int, items: int = 40, slots: int = 4) -> tuple[float, float]:
    """Play so many jobs. Return the share whose cost, and the share whose end, lies in its range."""
    rng = Random(f"{shape} {at} {items}")
    played_jobs = [played(rng, shape, items, slots, at) for _ in range(jobs)]
    counts = [Counter(each) for each in zip(*played_jobs, strict=True)]
    return counts[0][True] / jobs, counts[1][True] / jobs


@pytest.mark.slow
def test_ranges_of_nine_in_ten_hold_about_as_often() -> None:
    cost, end = held("gamma", 10, 40)
    assert 0.75 <= cost <= 1
    assert 0.75 <= end <= 1


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("at", "items", "slots"), [(5, 40, 4), (10, 40, 4), (25, 40, 4), (20, 200, 16), (60, 200, 16)]
)
def test_ranges_hold_85_to_95_percent_of_the_time_over_shapes_of_costs(
    at: int, items: int, slots: int
) -> None:
    by_shape = {shape: held(shape, at, 60, items, slots) for shape in SHAPES}
    for which in (0, 1):
        rates = [rates[which] for rates in by_shape.values()]
        assert 0.85 <= sum(rates) / len(rates) <= 0.95, by_shape
        assert min(rates) >= 0.7, by_shape


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("at", "items", "slots"), [(5, 25, 2), (8, 60, 8), (15, 120, 6)])
def test_ranges_hold_85_to_95_percent_of_the_time_over_shapes_that_did_not_shape_them(
    at: int, items: int, slots: int
) -> None:
    by_shape = {shape: held(shape, at, 60, items, slots) for shape in HELD_OUT}
    for which in (0, 1):
        rates = [rates[which] for rates in by_shape.values()]
        print(f"{('cost', 'end')[which]} after {at} of {items}: {sum(rates) / len(rates):.3f}")
        assert 0.85 <= sum(rates) / len(rates) <= 0.95, by_shape
        assert min(rates) >= 0.7, by_shape


def some(*usd: float, **options: bool) -> list[Item]:
    return [Item(each, each * 1000, each * 10, 0, **options) for each in usd]


def test_no_forecast_before_three_items_are_finished_nor_once_all_are() -> None:
    few = some(*range(1, LEAST_FINISHED))
    assert LEAST_FINISHED == 3
    assert forecast("job", few, [], 5) is None
    assert forecast("job", [*few, *some(2)], [], 5) is not None
    assert forecast("job", [*few, *some(2)], [], 0) is None


def test_forecast_is_the_same_each_time_and_its_order_is_that_of_a_range() -> None:
    first = forecast("job", some(1, 2, 3), some(1, 2, in_hand=True), 9)
    assert first == forecast("job", some(3, 1, 2), some(2, 1, in_hand=True), 9)
    assert first is not None
    for each in (first.usd, first.tokens, first.seconds):
        assert each.low < each.expected < each.high


def test_items_in_hand_count_with_at_least_what_they_have_used() -> None:
    found = forecast("job", some(1, 1, 1), some(50, in_hand=True), 0)
    assert found is not None
    assert found.usd.low >= 53


def test_what_was_spent_beside_the_items_is_in_the_total() -> None:
    plain = forecast("job", some(1, 2, 3), [], 4)
    more = forecast("job", some(1, 2, 3), [], 4, [Item(7, 0, 0, 0)])
    assert plain is not None
    assert more is not None
    assert more.usd.low == pytest.approx(plain.usd.low + 7)


def test_more_slots_end_sooner() -> None:
    one, four = (
        forecast("job", some(*[1, 1.1, 1.2] * 5), some(*[0.1] * slots, in_hand=True), 40 - slots)
        for slots in (1, 4)
    )
    assert one is not None
    assert four is not None
    assert four.seconds.high < one.seconds.low


def test_script_that_costs_nothing_is_expected_to_cost_nothing() -> None:
    found = forecast("job", [Item(0, 5, 1, 0)] * 3, [], 4)
    assert found is not None
    assert found.usd == Range(0, 0, 0)
    assert found.tokens.low > 0


def test_forecast_rests_on_a_bounded_sample() -> None:
    found = forecast("job", some(*[1.0] * 500), [], 400)
    assert found is not None
    assert found.finished == 50
    assert 850 < found.usd.low < found.usd.high < 1000

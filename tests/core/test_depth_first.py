"""Depth first: the money ends with finished items."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from runner.core.depth_first import Begun, covers, may_begin

ITEMS = 200
MOST_OF_ITEM = 0.01  # of the budget, which is 1
CALLS = 12

SHAPES: dict[str, Callable[[random.Random], float]] = {
    "same": lambda dice: 0.9,
    "even": lambda dice: dice.uniform(0.05, 1),
    "skewed": lambda dice: min(1.0, 0.15 * dice.lognormvariate(0, 0.9)),
    "two kinds": lambda dice: dice.choice([0.1, 0.1, 0.1, 1.0]),
}


def test_an_item_begins_where_none_is_in_progress_whatever_is_left() -> None:
    assert may_begin(0, [5.0] * 9, [])
    assert not may_begin(0, [5.0] * 9, [Begun(1.0)])


def test_until_three_have_finished_as_many_begin_as_may_run_but_at_most_four() -> None:
    for concurrency, most in ((None, 4), (2, 2), (16, 4)):
        assert may_begin(9, [1.0, 1.0], [Begun(0)] * (most - 1), concurrency)
        assert not may_begin(9, [1.0, 1.0], [Begun(0)] * most, concurrency)
    waits_for_a_person = Begun(0, goes_on=False)
    assert may_begin(9, [], [waits_for_a_person] * 5)


def test_what_is_left_has_to_cover_what_the_begun_items_and_the_new_one_need() -> None:
    begun = [Begun(0.5), Begun(1.0, goes_on=False)]
    assert may_begin(4.5, [2.0] * 3, begun)  # 1.5 + 1.0 + 2.0
    assert not may_begin(4.4, [2.0] * 3, begun)


def test_an_item_that_has_spent_more_than_any_other_is_expected_to_need_as_much_as_one() -> None:
    assert covers(2.0, [2.0] * 3, [50.0])
    assert not covers(1.9, [2.0] * 3, [50.0])


def test_needs_that_differ_are_covered_with_a_margin() -> None:
    assert not covers(2.5, [1.0, 2.0, 3.0], [0.0])
    assert covers(2.0 + 2 * (2 / 3) ** 0.5, [1.0, 2.0, 3.0], [0.0])


@dataclass
class Night:
    """Plays a job by the rules of a budget: a call begins only while its reservation fits."""

    shape: str
    slots: int
    reserved_for: int  # a call reserves so many times what it uses
    dice: random.Random
    is_gated: bool = True
    spent: float = 0.0
    begun: dict[int, list[float]] = field(default_factory=dict)  # what calls are to cost, by item
    used: dict[int, float] = field(default_factory=dict)
    finished: list[float] = field(default_factory=list)
    in_hand: list[tuple[float, int, float]] = field(default_factory=list)  # when they end
    stuck: int = 0

    def play(self) -> Night:
        ready: list[int] = []
        items, now = iter(range(ITEMS)), 0.0
        item = next(items, None)
        while True:
            while item is not None and self._may_begin():
                self.begun[item], self.used[item] = self._calls(), 0.0
                ready.append(item)
                item = next(items, None)
                ready = self._start(ready, now)
            ready = self._start(ready, now)
            if not self.in_hand:
                return self
            now, ended, cost = heapq.heappop(self.in_hand)
            self.spent += cost
            self.used[ended] += cost
            if self.begun[ended]:
                ready.append(ended)
            else:
                self.finished.append(self.used.pop(ended))
                del self.begun[ended]

    def _may_begin(self) -> bool:
        if len(self.begun) - self.stuck >= self.slots:
            return False
        worst = max((cost for _, _, cost in self.in_hand), default=0.0) * self.reserved_for
        begun = [Begun(used) for used in self.used.values()]
        return not self.is_gated or may_begin(1 - self.spent - worst, self.finished[:30], begun)

    def _calls(self) -> list[float]:
        cost = MOST_OF_ITEM * SHAPES[self.shape](self.dice)
        parts = [0.2 + self.dice.random() for _ in range(self.dice.randint(CALLS // 2, CALLS))]
        return [cost * part / sum(parts) for part in parts]

    def _start(self, ready: list[int], now: float) -> list[int]:
        """Begin the calls that fit, and return the items that wait for others' reservations."""
        later = []
        for item in ready:
            worst = self.begun[item][-1] * self.reserved_for
            reserved = sum(cost for _, _, cost in self.in_hand) * self.reserved_for
            if self.spent + worst > 1:
                self.stuck += 1
            elif self.spent + reserved + worst > 1:
                later.append(item)
            else:
                ends_at = now + self.dice.uniform(0.5, 1.5)
                heapq.heappush(self.in_hand, (ends_at, item, self.begun[item].pop()))
        return later

    @property
    def unfinished(self) -> float:
        """Return the cost of the items that did not finish."""
        return sum(self.used.values())


@pytest.mark.parametrize(
    "slots", [4, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 16, 32))]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_three_percent_of_a_budget_at_most_is_spent_on_items_that_do_not_finish(
    shape: str, slots: int
) -> None:
    for seed in range(2):
        for reserved_for in (1, 3):
            night = Night(shape, slots, reserved_for, random.Random(seed)).play()
            assert night.unfinished <= 0.03, (seed, reserved_for)
            assert night.spent > 0.95 or len(night.finished) == ITEMS


def test_without_the_rule_more_is_spent_on_items_that_do_not_finish() -> None:
    night = Night("same", 16, 1, random.Random(1), is_gated=False).play()
    assert night.unfinished > 0.05

"""Which calls go into a batch and when, which of the API's batches is ours, and the lane of ``auto``."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from runner.core.batches import (
    ListedBatch,
    Sendable,
    StoredBatch,
    WaitingCall,
    candidates,
    choose_lane,
    custom_id,
    due_waves,
    is_worth_warming,
    usage_in,
)
from runner.core.conversation import Usage
from runner.core.prices import Rates, Tariff
from runner.core.state import Rounds
from runner.core.times import Times, Window
from runner.llm.prices import load_prices

NOW = 1_700_000_000.0
HOUR = 3_600.0
INTENT = StoredBatch("bat_1", "", 3, NOW, None, None, NOW, False, (), False)
LINGERS = {"job_a": 60.0, "job_b": 9.0}


def call(run: str, job: str = "job_a", waited: float = 0.0) -> WaitingCall:
    return WaitingCall(run, 1, job, NOW - waited)


def waves(*calls: WaitingCall, busy: tuple[str, ...] = ("job_a", "job_b"), **kinds: str) -> Any:
    jobs = {job: Sendable(kinds.get(job, ""), {}, wait, 0) for job, wait in LINGERS.items()}
    found = due_waves(calls, jobs, busy, NOW)
    return [[each.run_id for each in wave] for wave in found.values()]


def test_calls_wait_for_others_until_one_has_lingered() -> None:
    assert waves(call("r1"), call("r2", waited=59)) == []
    assert waves(call("r1"), call("r2", waited=60)) == [["r1", "r2"]]
    assert waves(call("r1"), call("r2", "job_b", waited=9)) == [["r1", "r2"]]


def test_calls_go_at_once_when_nothing_else_of_their_job_is_under_way() -> None:
    assert waves(call("r1"), call("r2", "job_b"), busy=("job_b",)) == [["r1", "r2"]]


def test_calls_with_other_headers_share_no_batch() -> None:
    found = waves(call("r1", waited=60), call("r2", "job_b"), job_b="beta")
    assert found == [["r1"]]


@pytest.mark.parametrize("run_id", ["run_01abc", "run_01abc.3.12", "run_" + "x" * 80])
def test_a_custom_id_is_what_the_api_takes_and_names_the_call(run_id: str) -> None:
    ids = {custom_id(run_id, number) for number in range(20)}
    assert len(ids) == 20
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each) for each in ids)
    assert custom_id("run_1.2", 3) != custom_id("run_1", 23)


def listed(id: str, count: int = 3, at: float = NOW) -> ListedBatch:
    return ListedBatch(id, count, at, at + 24 * HOUR)


def test_a_batch_that_may_be_ours_is_new_and_as_large() -> None:
    found = [
        listed("ours"),
        listed("other count", 4),
        listed("before", at=NOW - 120),
        listed("known"),
        listed("clocks differ", at=NOW - 30),
    ]
    assert candidates(INTENT, found, {"known"}) == ["ours", "clocks differ"]
    others = replace(INTENT, not_ours=("ours",))
    assert candidates(others, found, {"known"}) == ["clocks differ"]


def test_a_batch_is_asked_about_less_often_the_older_it_is() -> None:
    young = replace(INTENT, created_at=NOW, checked_at=NOW)
    assert young.next_check(NOW) == NOW + 1
    assert young.next_check(NOW + 200) == NOW + 10
    assert young.next_check(NOW + 24 * HOUR) == NOW + 60


def test_auto_takes_a_batch_while_there_is_time_for_the_turns_left() -> None:
    rounds = Rounds(HOUR, 6.0)
    assert choose_lane(Times(), None, rounds, NOW, most_turns=50).batch
    assert choose_lane(Times(), NOW + 8 * HOUR, rounds, NOW, most_turns=50).batch
    assert not choose_lane(Times(), NOW + 7 * HOUR, rounds, NOW, most_turns=50).batch
    assert choose_lane(Times(), NOW + 7 * HOUR, rounds, NOW, turns=1, most_turns=50).batch


def test_auto_lets_the_last_turns_of_a_long_run_go_alone() -> None:
    rounds = Rounds(HOUR, 6.0)
    late = {"turns": 9, "most_turns": 50}  # it has made more than was expected
    assert choose_lane(Times(), NOW + 2 * HOUR, rounds, NOW, **late).batch
    assert not choose_lane(Times(), NOW + HOUR, rounds, NOW, **late).batch


def test_auto_expects_many_turns_until_an_item_has_succeeded() -> None:
    rounds = Rounds(HOUR)
    assert not choose_lane(Times(), NOW + 12 * HOUR, rounds, NOW, most_turns=50).batch
    assert choose_lane(Times(), NOW + 13 * HOUR, rounds, NOW, most_turns=50).batch
    assert choose_lane(Times(), NOW + 3 * HOUR, rounds, NOW, most_turns=2).batch


def test_auto_looks_at_the_next_of_all_ends_and_says_which() -> None:
    times = Times(window=Window("00:00", "23:59", "UTC"))
    rounds = Rounds(10 * HOUR, 3.0)
    by_window = choose_lane(times, NOW + 900 * HOUR, rounds, NOW, most_turns=50)
    assert by_window.why == "3 more rounds would not end before the end of the window"
    soon = choose_lane(times, None, rounds, NOW, most_turns=50, deadline=NOW + 60)
    assert soon.why == "3 more rounds would not end before the deadline"


def test_a_call_in_a_batch_costs_half_of_each_price() -> None:
    prices = load_prices()
    assert str(prices.batch) == "0.5"
    one = Rates(*[prices.us_inference] * 5)
    tariff = Tariff(one, one, 10, prices.batch)
    assert tariff.in_lane(batch=False) == tariff
    half = tariff.in_lane(batch=True)
    assert half.standard == half.long == one.times(prices.batch)


@pytest.mark.parametrize(
    ("result", "usage"),
    [
        ({"type": "errored", "error": {}}, Usage()),
        ({"type": "canceled"}, Usage()),
        ({"type": "lost"}, None),
        ({"type": "something new"}, None),
        ({"type": "succeeded", "message": {}}, None),
        ({"type": "succeeded", "message": {"usage": {"input_tokens": "3"}}}, None),
        (
            {
                "type": "succeeded",
                "message": {"usage": {"input_tokens": 3, "output_tokens": 4, "new": {}}},
            },
            Usage(input_tokens=3, output_tokens=4),
        ),
    ],
)
def test_a_result_says_what_its_call_cost_or_nothing(result: Any, usage: Usage | None) -> None:
    assert usage_in(result) == usage


def test_a_call_goes_alone_before_others_where_they_save_more_than_it_costs() -> None:
    assert is_worth_warming(2_000, 10_000, 5)
    assert not is_worth_warming(2_000, 10_001, 5)
    assert not is_worth_warming(1_000, 100, 500)  # no model caches so little

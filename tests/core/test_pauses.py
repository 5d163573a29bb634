"""When a job pauses by itself."""

from __future__ import annotations

import pytest

from runner.core.pauses import Breaker, EndedRun, Pilot, PilotResult, Rate, tripped


def run(number: int, how: str = "", *, state: str = "failed", denials: int = 0) -> EndedRun:
    """A run that failed with these words; without, one that succeeded."""
    id_, state = f"run_{number}", state if how else "succeeded"
    return EndedRun(id_, f"item {number}", state, "bug" if how else "end_turn", how, denials)


def newest(*hows: str) -> list[EndedRun]:
    """Runs that ended so, the newest last."""
    return [run(number, how) for number, how in enumerate(hows)][::-1]


ALIKE = Breaker(same_failure=3)
HALF = Breaker(failure_rate=Rate(50, 4))


@pytest.mark.parametrize(
    ("breaker", "hows", "why"),
    [
        (ALIKE, ("E 1", "E 2"), None),
        (ALIKE, ("E 1", "E 2", "E 3"), "3 runs in a row failed bug: E <n> (first: item 0, run_0)"),
        (ALIKE, ("E 1", "", "E 2", "E 3"), None),
        (ALIKE, ("E 1", "other", "E 3"), None),
        (ALIKE, ("", "", ""), None),
        (
            ALIKE,
            ("x", "E 2", "E 3", "E 4"),
            "3 runs in a row failed bug: E <n> (first: item 1, run_1)",
        ),
        (HALF, ("E 1", "E 2", "E 3"), None),
        (HALF, ("E 1", "", "", ""), None),
        (
            HALF,
            ("E 1", "", "E 2", ""),
            "2 of the newest 4 runs failed; most often: failed bug: E <n> (first: item 0, run_0)",
        ),
        (HALF, ("E", "", "other", ""), "2 of the newest 4 runs failed (first: item 0, run_0)"),
        (HALF, ("E 1", "E 2", "", "", ""), None),  # the first does not count any more
        (Breaker(), ("E", "E"), None),
        (ALIKE, (), None),
    ],
)
def test_a_breaker_trips_by_the_newest_runs(
    breaker: Breaker, hows: tuple[str, ...], why: str | None
) -> None:
    assert tripped(breaker, newest(*hows)) == why


def test_a_breaker_trips_by_denied_calls() -> None:
    breaker = Breaker(denied_rate=Rate(60, 3))
    runs = [run(2, denials=1), run(1), run(0, denials=4)]
    assert (
        tripped(breaker, runs) == "2 of the newest 3 runs had calls denied (first: item 0, run_0)"
    )
    assert tripped(breaker, [run(3), *runs]) is None


def test_a_limit_is_a_failure_like_others_and_not_the_same_as_an_error() -> None:
    alike = [run(1, "E", state="stopped"), run(0, "E", state="stopped")]
    assert tripped(Breaker(same_failure=2), alike) is not None
    assert tripped(Breaker(same_failure=2), [run(1, "E"), alike[1]]) is None


def test_a_breaker_looks_at_so_many_runs() -> None:
    assert Breaker(5, Rate(50, 20), Rate(10, 7)).window == 20
    assert Breaker().window == 0


@pytest.mark.parametrize(
    ("items", "count", "chosen"),
    [
        (5, 30, {0, 7, 14, 21, 29}),
        (3, 12, {0, 5, 11}),
        (1, 9, {0}),
        (2, 9, {0, 8}),
        (9, 4, {0, 1, 2, 3}),
        (4, 4, {0, 1, 2, 3}),
        (3, 1, {0}),
    ],
)
def test_a_pilot_is_spread_over_the_items(items: int, count: int, chosen: set[int]) -> None:
    assert Pilot(items).chosen(count) == chosen


@pytest.mark.parametrize("count", range(1, 40))
def test_a_pilot_has_as_many_items_as_it_asks_for(count: int) -> None:
    for items in range(1, 45):
        assert len(Pilot(items).chosen(count)) == min(items, count)


GOOD = PilotResult(("succeeded",) * 4 + ("failed",), held=5, expected_cost=2_000_000_000)
ENDED = "4 of 5 items of the pilot succeeded"


@pytest.mark.parametrize(
    ("pilot", "why"),
    [
        (Pilot(5), ENDED),
        (Pilot(5, success=0.8), None),
        (Pilot(5, success=0.9), f"{ENDED}; fewer than 90 %"),
        (Pilot(5, forecast_usd=2), None),
        (Pilot(5, forecast_usd=1.9), f"{ENDED}; all items may cost $2.0000, more than $1.9000"),
        (Pilot(5, success=0.8, forecast_usd=2), None),
        (Pilot(5, success=0.9, forecast_usd=2), f"{ENDED}; fewer than 90 %"),
    ],
)
def test_the_others_follow_when_the_pilot_kept_what_was_asked(
    pilot: Pilot, why: str | None
) -> None:
    assert pilot.why_wait(GOOD) == why


def test_shares_that_are_reached_exactly_count_although_floats_round() -> None:
    states = ("succeeded",) * 14 + ("failed",) * 11
    assert Pilot(25, success=0.56).why_wait(PilotResult(states, held=5, expected_cost=0)) is None
    runs = [run(number, denials=number < 161) for number in range(1000)]
    assert tripped(Breaker(denied_rate=Rate(16.1, 1000)), runs) is not None

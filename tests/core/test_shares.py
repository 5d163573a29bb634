"""Sharing slots among jobs: the choice of the next runs, and of the runs that yield."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from runner.core.shares import PATIENCE_SECONDS, PRIORITIES, JobLoad, Pick, Shares, fair_shares

BIG = JobLoad("big", due=64)
SMALL = JobLoad("small", due=10)


def turns(shares: Shares, *loads: JobLoad, count: int) -> list[str]:
    """The jobs of so many runs, one after the other, on a single slot that is free each time."""
    return [shares.choose(loads, 1)[0].job_id for _ in range(count)]


def names(picks: list[Pick]) -> list[str]:
    return [pick.job_id for pick in picks]


def test_free_slots_go_to_the_job_that_has_fewest_for_its_weight() -> None:
    busy = replace(BIG, running=12)
    assert names(Shares().choose([busy, SMALL], 4)) == ["small"] * 4
    picks = Shares().choose([BIG, SMALL], 8)
    assert Counter(names(picks)) == {"big": 4, "small": 4}
    assert names(picks[:2]) == ["big", "small"], "in turns: the first messages are taken first"


def test_runs_that_workers_were_notified_of_count_as_slots() -> None:
    assert names(Shares().choose([BIG, replace(SMALL, notified=2)], 2)) == ["big", "big"]


def test_a_job_gets_no_more_than_is_due_or_has_room() -> None:
    few, limited = replace(SMALL, due=1), JobLoad("limited", due=9, room=2)
    assert Counter(names(Shares().choose([BIG, few, limited], 9))) == {
        "big": 6,
        "small": 1,
        "limited": 2,
    }
    assert Shares().choose([JobLoad("full", interrupted=1, due=9, room=0)], 9) == []


def test_interrupted_runs_of_all_jobs_come_first_shared_among_their_jobs() -> None:
    busy, other = JobLoad("busy", running=9, interrupted=2, due=9), JobLoad("other", interrupted=1)
    picks = Shares().choose([SMALL, busy, other], 5)
    assert picks[:3] == [Pick("other", True), Pick("busy", True), Pick("busy", True)]
    assert names(picks[3:]) == ["small", "small"]


def test_a_single_slot_goes_round_by_weight() -> None:
    loads = [JobLoad(name, weight, due=99) for name, weight in PRIORITIES.items()]
    assert Counter(turns(Shares(), *loads, count=210)) == {"low": 10, "normal": 40, "high": 160}
    assert turns(Shares(), BIG, SMALL, count=6) == ["big", "small"] * 3


def test_a_job_saves_up_no_turns_while_it_has_no_work() -> None:
    shares = Shares()
    turns(shares, BIG, count=500)
    assert Counter(turns(shares, BIG, SMALL, count=10)) == {"big": 5, "small": 5}


def test_nothing_starves_behind_interrupted_runs_without_end() -> None:
    shares, crowd = Shares(), replace(BIG, running=4, interrupted=64, due=0)
    assert turns(shares, crowd, SMALL, count=3) == ["big"] * 3
    for second in range(int(PATIENCE_SECONDS) + 1):
        shares.surplus([crowd, SMALL], second)
    assert Counter(turns(shares, crowd, SMALL, count=6)) == {"big": 3, "small": 3}


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ([replace(BIG, running=16), SMALL], {"big": 8, "small": 8}),
        ([replace(BIG, running=16), replace(SMALL, due=2)], {"big": 14, "small": 2}),
        ([replace(BIG, running=16), replace(SMALL, room=1)], {"big": 15, "small": 1}),
        ([replace(BIG, running=10, weight=16.0), SMALL], {"big": 8, "small": 2}),
        ([JobLoad("idle", running=1), replace(BIG, running=3), SMALL], {"idle": 1, "big": 1.5}),
        ([], {}),
    ],
)
def test_shares_go_by_weight_and_what_a_job_cannot_use_goes_to_others(
    loads: list[JobLoad], expected: dict[str, float]
) -> None:
    assert fair_shares(loads).items() >= expected.items()


def late_at(*loads: JobLoad) -> tuple[int, dict[str, int]]:
    """The second in which others are to yield first, and how many runs of each."""
    shares = Shares()
    for second in range(1000):
        if found := shares.surplus(loads, second):
            return second, found
    raise AssertionError("nobody ever yields")


def test_others_yield_once_a_job_has_waited_ten_seconds_below_its_share() -> None:
    assert late_at(replace(BIG, running=16), SMALL) == (10, {"big": 8})
    assert late_at(replace(BIG, running=1), SMALL) == (10, {"big": 1})
    assert late_at(replace(BIG, running=16), replace(SMALL, due=0, interrupted=1)) == (
        10,
        {"big": 1},
    )
    high = replace(BIG, running=16, weight=16.0)
    assert late_at(high, replace(SMALL, weight=1.0)) == (10, {"big": 1})
    many = [JobLoad(f"job_{number}", due=9) for number in range(9)]
    assert late_at(replace(BIG, running=2), *many) == (10, {"big": 2})


def test_a_slot_that_jobs_take_turns_on_is_theirs_for_a_time_that_fits_their_weights() -> None:
    low, high = JobLoad("low", 1.0, due=9), JobLoad("high", 16.0, due=9)
    assert late_at(replace(high, running=1), low)[0] == pytest.approx(160, abs=1)
    assert late_at(high, replace(low, running=1))[0] == 10


def test_nobody_yields_to_a_job_that_has_its_share_or_no_work() -> None:
    shares = Shares()
    for second in range(100):
        assert not shares.surplus([replace(BIG, running=8), replace(SMALL, running=8)], second)
        assert not shares.surplus([replace(BIG, running=16), JobLoad("done")], second)


def test_the_wait_begins_anew_when_a_job_has_had_its_share() -> None:
    shares, big = Shares(), replace(BIG, running=2)
    served = [replace(BIG, running=1), replace(SMALL, running=1)]
    assert [bool(shares.surplus([big, SMALL], second)) for second in range(9)] == [False] * 9
    assert not shares.surplus(served, 9)
    assert [bool(shares.surplus([big, SMALL], second)) for second in range(10, 21)] == [
        *[False] * 10,
        True,
    ]

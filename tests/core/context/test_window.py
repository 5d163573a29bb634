"""Estimates that real counts correct, and how much of a window is free."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.context import Context, Pace, corrected, estimate, estimate_text


@pytest.mark.parametrize(
    ("window", "most_output", "reserve"),
    [
        (200_000, 32_000, 34_000),  # what the longest reply takes
        (200_000, 8_000, 32_000),  # a quarter, at most 32,000
        (100_000, 8_000, 25_000),
        (1_000_000, 64_000, 100_000),  # a tenth
        (20_000, 1_000, 5_000),
    ],
)
def test_the_reserve_is_the_published_one(window, most_output, reserve):
    assert Context().reserve_in(window, most_output) == reserve
    assert Context(reserve=7).reserve_in(window, most_output) == 7


def test_tokens_are_characters_and_not_bytes():
    assert estimate_text("a" * 8, 4.0) == estimate_text("漢" * 8, 4.0) == 2
    assert estimate_text("a" * 9, 4.0) == 3
    assert estimate({"type": "text", "text": "é"}, 1.0) == len('{"type": "text", "text": "é"}')


@given(st.floats(0.25, 4.0), st.integers(1_000, 100_000))
def test_the_correction_comes_to_what_is_measured(ratio, estimated):
    average = 1.0
    for _ in range(30):
        average = corrected(average, round(ratio * estimated), estimated)
    assert abs(average - ratio) < 0.02 * ratio + 0.01


def test_a_reply_moves_the_correction_by_a_quarter():
    assert corrected(1.0, 2_000, 1_000) == 1.25


@pytest.mark.parametrize(("real", "estimated"), [(0, 100), (19, 100), (501, 100), (100, 0)])
def test_outliers_are_ignored(real, estimated):
    assert corrected(1.3, real, estimated) == 1.3


def test_only_gaps_that_an_hour_bridges_count_as_slow():
    for gap, slow in ((1.0, 0.0), (299.0, 0.0), (301.0, 0.25), (3_599.0, 0.25), (3_601.0, 0.0)):
        assert Pace(1_000.0, 0.0).after(1_000.0 + gap) == Pace(1_000.0 + gap, slow)
    assert Pace().after(5.0) == Pace(5.0, 0.0)


def test_one_slow_gap_in_fifteen_is_worth_an_hour():
    assert Pace(slow=1 / 14).is_worth_an_hour
    assert not Pace(slow=1 / 15).is_worth_an_hour

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core import budget
from runner.core.budget import (
    FIRST_CALL_ALLOWANCE,
    LEAST_OUTPUT_TOKENS,
    Charged,
    Limits,
    Reservation,
    in_usd,
    prompt_bound,
)

TOKENS = st.integers(0, 200_000)


def reserve(limits, charged_tokens, prompt, **more):
    """The reservation, or None without room."""
    call = budget.reserve(
        limits, Charged(charged_tokens), prompt, most_output=limits.max_output_tokens, **more
    )
    return call if isinstance(call, Reservation) else None


def limits(ceiling, most=32_000):
    return Limits(token_ceiling=ceiling, max_output_tokens=most)


def test_defaults_are_the_published_ones():
    assert Limits() == Limits(
        max_turns=50, token_ceiling=20_000_000, tool_timeout=120.0, deadline=None
    )


def test_first_prompt_is_bounded_by_all_bytes_and_an_allowance():
    assert FIRST_CALL_ALLOWANCE == 2_000
    assert prompt_bound(None, 700) == 2_700


def test_later_prompts_are_bounded_by_the_last_real_one_and_the_bytes_since():
    assert prompt_bound(5_000, 700) == 5_700
    assert prompt_bound(0, 700) == 700


def test_with_room_a_call_gets_the_whole_limit():
    reservation = reserve(limits(100_000), charged_tokens=10_000, prompt=5_000)
    assert reservation is not None
    assert (reservation.max_tokens, reservation.worst_case) == (32_000, 37_000)
    assert not reservation.lowered


def test_max_tokens_is_lowered_to_what_is_left():
    reservation = reserve(limits(20_000), charged_tokens=10_000, prompt=5_000)
    assert reservation is not None
    assert (reservation.max_tokens, reservation.worst_case) == (5_000, 10_000)
    assert reservation.lowered


@pytest.mark.parametrize(("room", "fits"), [(1_023, False), (1_024, True), (0, False)])
def test_a_call_needs_room_for_1024_tokens(room, fits):
    assert (reserve(limits(15_000 + room), 10_000, 5_000) is not None) == fits


@pytest.mark.parametrize(("room", "fits"), [(499, False), (500, True), (900, True)])
def test_a_job_of_short_replies_needs_room_for_only_one_of_them(room, fits):
    reservation = reserve(limits(15_000 + room, most=500), 10_000, 5_000)
    assert (reservation is not None) == fits
    assert reservation is None or not reservation.lowered


@pytest.mark.slow
@given(ceiling=TOKENS, most=st.integers(1, 64_000), charged=TOKENS, prompt=TOKENS)
def test_worst_case_never_crosses_the_ceiling(ceiling, most, charged, prompt):
    reservation = reserve(limits(ceiling, most), charged, prompt)
    if reservation is None:
        assert ceiling - charged - prompt < min(LEAST_OUTPUT_TOKENS, most)
        return
    assert charged + reservation.worst_case <= ceiling
    assert reservation.worst_case == prompt + reservation.max_tokens
    assert min(LEAST_OUTPUT_TOKENS, most) <= reservation.max_tokens <= most
    assert reservation.lowered == (reservation.max_tokens < most)


@pytest.mark.slow
@given(ceiling=TOKENS, raised=TOKENS, charged=TOKENS, prompt=TOKENS)
def test_a_raised_ceiling_never_leaves_less_room(ceiling, raised, charged, prompt):
    before = reserve(limits(ceiling), charged, prompt)
    after = reserve(limits(ceiling + raised), charged, prompt)
    assert before is None or (after is not None and after.max_tokens >= before.max_tokens)


def test_thinking_is_left_room_besides_the_answer():
    limits = Limits(token_ceiling=10_000, max_output_tokens=8_000)
    assert reserve(limits, 4_000, 1_000, thinking_tokens=4_000) is None
    assert reserve(limits, 3_000, 1_000, thinking_tokens=4_000).max_tokens == 6_000


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (0, "$0.0000"),
        (50_000, "$0.00005"),
        (1, "$0.000000001"),
        (50_000_000, "$0.0500"),
        (1_234_567_891_000, "$1,234.567891"),
    ],
)
def test_a_sum_of_money_is_said_exactly(amount, words):
    assert in_usd(amount) == words

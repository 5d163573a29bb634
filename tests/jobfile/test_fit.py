"""Limits and windows, held against what is known of a job's models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.budget import Budget, Limits
from runner.core.context import DEFAULT_WINDOW, Context
from runner.jobfile.check import window_problems

from .conftest import PRICES, Load, Problems

LEAST = 'model = "{model}"\nprompt = "Do it."\n'
SCRIPTED = 'provider = "scripted"\nscript = "s.toml"\n'
UNPRICED = (
    "'m' has no price, so its cost cannot be limited: name one in the file of RUNNER_PRICES, or "
    "limit tokens instead (token_ceiling, budget_tokens)"
)


def job(model: str, *lines: str) -> str:
    return LEAST.format(model=model) + "\n".join(lines)


@pytest.mark.parametrize("key", ["cost_ceiling_usd", "budget_usd"])
def test_a_cost_limit_on_a_model_without_a_price_is_refused_with_its_line(
    problems_of: Problems, key: str
) -> None:
    assert problems_of(job("m", "[limits]", f"{key} = 4")) == [f"line 4: limits.{key}: {UNPRICED}"]


def test_token_limits_work_without_a_price(load_text: Load) -> None:
    spec = load_text(job("m", "[limits]", "budget_tokens = 4")).spec
    assert spec.budget == Budget(None, 4)


def test_a_cost_can_be_limited_where_there_is_a_price(load_text: Load) -> None:
    text = job("priced-20261122", "[limits]", "cost_ceiling_usd = 1.5", "budget_usd = 40")
    spec = load_text(text).spec
    assert spec.limits == Limits(cost_ceiling_usd=1.5)
    assert spec.budget == Budget(40.0)


def test_a_script_costs_nothing_so_its_cost_can_be_limited(load_text: Load) -> None:
    with pytest.raises(Exception, match=r"s\.toml") as refused:
        load_text(SCRIPTED + job("m", "[limits]", "budget_usd = 4"))
    assert "price" not in str(refused.value)


def test_a_mode_without_a_price_is_refused_too(problems_of: Problems) -> None:
    text = job("priced", 'model_options = { speed = "fast" }', "[limits]", "budget_usd = 4")
    (problem,) = problems_of(text)
    assert problem.startswith("line 5: limits.budget_usd: 'priced' in fast mode has no price")


def test_fast_mode_is_asked_of_the_jobs_own_model_alone(problems_of: Problems) -> None:
    fast = 'model_options = { speed = "fast" }'
    summaries = 'summary_model = "small"'
    (problem,) = problems_of(
        job("priced", fast, "[limits]", "budget_usd = 4", "[context]", summaries)
    )
    assert "'priced' in fast mode has no price" in problem


def test_the_model_of_summaries_needs_a_price_too_where_there_are_summaries(
    problems_of: Problems, load_text: Load
) -> None:
    text = job("priced", "[limits]", "budget_usd = 4", "[context]", 'summary_model = "m"')
    assert problems_of(text) == [f"line 4: limits.budget_usd: {UNPRICED}"]
    load_text(text + '\ncompaction = "off"')


def test_a_reserve_over_half_of_the_window_is_refused(
    problems_of: Problems, load_text: Load
) -> None:
    text = job("m", "[context]", "window = 100_000", "reserve = ")
    assert problems_of(text + "50_001") == [
        "line 5: context.reserve: must be at most half of the window of 100,000 tokens, not 50,001"
    ]
    assert load_text(text + "50_000").spec.context == Context(window=100_000, reserve=50_000)


def test_a_reply_that_takes_half_of_the_window_is_refused(problems_of: Problems) -> None:
    assert problems_of(job("m", "[context]", "window = 60_000")) == [
        "line 4: context.window: a reply of 32,000 tokens and 2,000 more take over half of the "
        "window of 60,000 tokens: lower limits.max_output_tokens, or give context.window or "
        "context.reserve"
    ]
    (problem,) = problems_of(job("m", "[limits]", "max_output_tokens = 99_000"))
    assert problem.startswith("line 4: limits.max_output_tokens: a reply of 99,000 tokens")
    assert "the window of 200,000 tokens assumed for 'm'" in problem


def test_the_window_of_a_known_model_is_the_one_of_the_price_list(
    problems_of: Problems, load_text: Load
) -> None:
    (problem,) = problems_of(job("small"))
    assert "the window of 50,000 tokens of 'small'" in problem
    assert load_text(job("small", "[context]", "window = 100_000")).spec.context.window == 100_000


def test_a_bad_limit_is_one_problem_and_not_two(problems_of: Problems) -> None:
    (problem,) = problems_of(job("small", "[limits]", "max_output_tokens = 0"))
    assert "must be at least 1" in problem
    (problem,) = problems_of(job("m", "[limits]", "budget_usd = 0"))
    assert "must be a number from" in problem


@pytest.mark.slow
@given(
    st.none() | st.integers(1, 300_000),
    st.none() | st.integers(1, 300_000),
    st.integers(1, 300_000),
)
def test_the_reserve_leaves_half_of_the_window_for_the_conversation(
    window: int | None, reserve: int | None, most_output: int
) -> None:
    limits, context = Limits(max_output_tokens=most_output), Context(window, reserve)
    problems = window_problems("m", limits, context, PRICES)
    whole = window or DEFAULT_WINDOW
    assert bool(problems) == (context.reserve_in(whole, most_output) > whole // 2)

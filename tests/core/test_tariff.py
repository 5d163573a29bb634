"""Costs in whole billionths: exact to a billionth, and never more than what was reserved for them."""

from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.budget import Charged, Limits, Reservation, billionths, charge_of, reserve
from runner.core.context import Context
from runner.core.conversation import Usage
from runner.core.model_calls import tariffs_of
from runner.core.prices import FREE, Price, PriceList, Rates, Tariff
from runner.core.spec import JobSpec

PRICE = st.decimals(0, 100, places=4)
TOKENS = st.integers(0, 2_000_000)


@st.composite
def tariffs(draw):
    standard = Rates(*(draw(PRICE) for _ in range(5)))
    if draw(st.booleans()):
        return Tariff(standard)
    return Tariff(
        standard, Rates(*(draw(PRICE) for _ in range(5))), draw(st.sampled_from([0, 9, 200_000]))
    )


@st.composite
def usages(draw, most_prompt, most_output):
    prompt = draw(st.integers(0, most_prompt))
    read = draw(st.integers(0, prompt))
    written = draw(st.integers(0, prompt - read))
    return Usage(prompt - read - written, read, written, draw(st.integers(0, most_output)))


def test_a_cost_is_in_billionths_of_a_usd():
    tariff = Tariff(Rates(*map(Decimal, ("4", "5", "8", "0.4", "20"))))
    usage = Usage(1_000, 10_000, 2_000, 100)
    assert tariff.cost(usage, hour_cache=False) == billionths(0.004 + 0.004 + 0.010 + 0.002)
    assert tariff.cost(usage, hour_cache=True) == billionths(0.004 + 0.004 + 0.016 + 0.002)


def test_what_is_less_than_a_billionth_is_rounded_up():
    tariff = Tariff(Rates(*[Decimal("0.0001")] * 5))
    assert tariff.cost(Usage(input_tokens=1), hour_cache=False) == 1


def test_a_script_costs_nothing():
    assert FREE.cost(Usage(10**9, 0, 0, 10**9), hour_cache=True) == 0


@pytest.mark.slow
@given(st.data(), tariffs(), TOKENS, st.integers(0, 64_000), st.booleans())
def test_no_call_costs_more_than_its_worst_case(data, tariff, prompt, output, hour_cache):
    usage = data.draw(usages(prompt, output))
    most = tariff.cost_at_most(prompt, output, hour_cache=hour_cache)
    assert tariff.cost(usage, hour_cache=hour_cache) <= most


@pytest.mark.slow
@given(tariffs(), st.integers(0, 10**12), TOKENS, st.booleans(), st.integers(1, 64_000))
def test_the_output_that_is_paid_for_is_the_most_that_there_is_money_for(
    tariff, left, prompt, hour_cache, most
):
    output = tariff.output_for(left, prompt, hour_cache=hour_cache, most=most)
    assert output <= most
    if output >= 0:
        assert tariff.cost_at_most(prompt, output, hour_cache=hour_cache) <= left
    if output < most:
        more = max(0, output + 1)
        assert tariff.cost_at_most(prompt, more, hour_cache=hour_cache) > left


@pytest.mark.slow
@given(st.data(), tariffs(), TOKENS, st.booleans(), st.none() | st.floats(0, 50), st.floats(0, 1))
def test_a_reservation_crosses_neither_ceiling(data, tariff, prompt, hour_cache, usd, share):
    limits = Limits(token_ceiling=3_000_000, max_output_tokens=8_000, cost_ceiling_usd=usd)
    charged = Charged(data.draw(TOKENS), int((limits.cost_ceiling or 0) * share))
    call = reserve(limits, charged, prompt, most_output=8_000, tariff=tariff, hour_cache=hour_cache)
    if not isinstance(call, Reservation):
        assert call in ("token_ceiling", "cost_ceiling")
        return
    assert charged.tokens + call.worst_case <= limits.token_ceiling
    if limits.cost_ceiling is not None:
        assert charged.cost + call.worst_cost <= limits.cost_ceiling
    assert call.worst_cost == tariff.cost_at_most(prompt, call.max_tokens, hour_cache=hour_cache)
    assert call.lowered == (call.max_tokens < 8_000)


def test_the_ceiling_that_leaves_least_room_is_the_one_that_is_named():
    tariff = Tariff(Rates(*[Decimal(10)] * 5))
    few_tokens = Limits(token_ceiling=5_000, max_output_tokens=8_000, cost_ceiling_usd=1_000)
    little_money = Limits(token_ceiling=500_000, max_output_tokens=8_000, cost_ceiling_usd=0.05)
    for limits, named in ((few_tokens, "token_ceiling"), (little_money, "cost_ceiling")):
        call = reserve(limits, Charged(0), 1_000, most_output=8_000, tariff=tariff)
        assert (call.lowered, call.lowered_by, call.max_tokens) == (True, named, 4_000)
        spent = Charged(4_000, billionths(0.04))
        assert reserve(limits, spent, 1_000, most_output=8_000, tariff=tariff) == named


@pytest.mark.parametrize("usd", [0.1, 19.99, 1e-9, 123_456.789])
def test_money_is_counted_in_whole_billionths(usd):
    assert billionths(usd) == int(Decimal(str(usd)) * 10**9)


def test_each_model_of_a_job_has_its_own_tariff_and_fast_mode_is_the_jobs_own():
    rates = Rates(*[Decimal(1)] * 5)
    fast, us = rates.times(Decimal(6)), Decimal(2)
    priced = Price(rates, fast=fast)
    prices = PriceList(date(2026, 11, 22), "here", {"a": priced, "b": priced}, us)
    options = {"speed": "fast", "inference_geo": "us"}
    job = JobSpec("a job", "a", model_options=options, context=Context(summary_model="b"))
    own, other = Tariff(fast.times(us)), Tariff(rates.times(us))
    assert tariffs_of(job, prices) == {"a": own, "b": other}
    assert tariffs_of(replace(job, context=Context()), prices) == {"a": own}
    assert tariffs_of(replace(job, model="c"), prices) == {"b": other}


@pytest.mark.slow
@given(st.data(), tariffs(), TOKENS, st.integers(1, 64_000), st.booleans())
def test_what_a_cut_call_is_charged_covers_all_that_it_can_have_cost(
    data, tariff, prompt, most_output, hour_cache
):
    call = reserve(
        Limits(token_ceiling=10**7),
        Charged(0),
        prompt,
        most_output=most_output,
        tariff=tariff,
        hour_cache=hour_cache,
    )
    assert isinstance(call, Reservation)
    output = data.draw(st.integers(0, 70_000))
    written = data.draw(st.integers(0, min(output, call.max_tokens)))
    usage = data.draw(usages(prompt, written))
    cost = tariff.cost(usage, hour_cache=hour_cache)
    unknown = charge_of(call, None, output, tariff)
    assert usage.total <= unknown.tokens <= call.worst_case
    assert cost <= unknown.cost <= call.worst_cost
    counted = charge_of(call, replace(usage, output_tokens=0), output, tariff)
    assert usage.total <= counted.tokens <= unknown.tokens
    assert cost <= counted.cost <= call.worst_cost
    assert charge_of(call, None, None, tariff) == Charged(call.worst_case, call.worst_cost)
    old = replace(call, prompt_cost=None)
    assert charge_of(old, None, output, tariff) == Charged(call.worst_case, call.worst_cost)

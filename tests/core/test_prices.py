"""What calls cost: exact sums, the right price for each, and nothing free that is only unknown."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.conversation import Usage
from runner.core.prices import Calls, Price, PriceList, Rates, Spending, Terms, spending


def rates(*numbers: str) -> Rates:
    return Rates(*map(Decimal, numbers))


STANDARD = rates("4", "5", "8", "0.20", "20")
FAST = rates("8", "10", "16", "0.40", "40")
SMALL = rates("0.10", "0.125", "0.20", "0.01", "0.50")
LONG = rates("0.50", "0.625", "1", "0.05", "2.50")
PRICES = PriceList(
    date(2026, 11, 10),
    "a page",
    {
        "claude-opus-5-5": Price(STANDARD, fast=FAST),
        "claude-haiku-5-5": Price(SMALL, long=LONG, long_above=100_000),
    },
    Decimal("1.1"),
)
USAGE = Usage(
    input_tokens=1_000_000,
    cache_read_tokens=10_000_000,
    cache_creation_tokens=2_000_000,
    output_tokens=100_000,
)


def calls(
    usage: Usage = USAGE, model: str = "claude-opus-5-5", terms: Terms | None = None, above: int = 0
) -> Calls:
    return Calls(model, terms or Terms(), above, 1, usage)


@pytest.mark.parametrize(
    ("terms", "usd"),
    [
        (Terms(), "18"),  # 4 + 2 × 5 + 10 × 0.20 + 2
        (Terms(hour_cache=True), "24"),
        (Terms(fast=True), "36"),
        (Terms(us_only=True), "19.8"),
        (Terms(us_only=True, fast=True, hour_cache=True), "52.8"),
    ],
)
def test_each_kind_of_token_has_its_price_under_the_terms_of_its_job(
    terms: Terms, usd: str
) -> None:
    assert spending(PRICES, calls(terms=terms)).usd == Decimal(usd)


def test_terms_are_what_the_model_options_ask_for() -> None:
    hour = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    assert Terms.of("anthropic", {}) == Terms()
    assert Terms.of("anthropic", {"speed": "fast", **hour}) == Terms(fast=True, hour_cache=True)
    assert Terms.of("anthropic", {"extra_body": {"inference_geo": "us"}}) == Terms(us_only=True)
    assert Terms.of("anthropic", {"speed": "standard", "inference_geo": "global"}) == Terms()
    assert Terms.of("scripted", {}) == Terms(scripted=True)


def test_long_prompt_has_a_price_of_its_own() -> None:
    assert PRICES.thresholds == (100_000,)
    short = spending(PRICES, calls(model="claude-haiku-5-5"))
    long = spending(PRICES, calls(model="claude-haiku-5-5", above=100_000))
    assert (short.usd, long.usd) == (Decimal("0.5"), Decimal("2.5"))
    assert spending(PRICES, calls(above=100_000)).usd == 18  # no other price for long ones


@pytest.mark.parametrize(
    ("model", "is_known"),
    [
        ("claude-opus-5-5", True),
        ("claude-opus-5-5-20260922", True),
        ("claude-opus-5-5-latest", True),
        ("claude-opus-5-5-1", False),
        ("claude-opus-5", False),
        ("claude-opus-5-5-20260922-fast", False),
        ("", False),
    ],
)
def test_model_goes_by_its_id_or_that_without_a_date_and_never_by_its_beginning(
    model: str, is_known: bool
) -> None:
    assert (PRICES.price(model) is not None) == is_known


def test_dated_model_may_have_a_price_of_its_own() -> None:
    own = Price(FAST)
    prices = PriceList(PRICES.date, "", {**PRICES.models, "claude-opus-5-5-20260922": own})
    assert prices.price("claude-opus-5-5-20260922") == own


@pytest.mark.parametrize(
    ("model", "terms", "named"),
    [
        ("claude-new", Terms(), "claude-new"),
        ("claude-haiku-5-5", Terms(fast=True), "claude-haiku-5-5 in fast mode"),
    ],
)
def test_what_has_no_price_is_named_and_not_free(model: str, terms: Terms, named: str) -> None:
    spent = spending(PRICES, calls(model=model, terms=terms))
    assert (spent.usd, spent.unpriced) == (0, {named})
    assert (spending(PRICES, calls()) + spent).unpriced == {named}
    unknown = Calls(model, terms, 0, 1, Usage(), 1, 500, 500)
    assert spending(PRICES, unknown).unpriced == {named}


def test_calls_that_were_refused_used_nothing_and_need_no_price() -> None:
    assert spending(PRICES, calls(Usage(), "claude-new")) == Spending(calls=1)


def test_script_costs_nothing_and_says_so() -> None:
    spent = spending(PRICES, calls(model="scripted", terms=Terms(scripted=True)))
    assert (spent.scripted, spent.usd, spent.unpriced) == (1, 0, frozenset())


def test_calls_of_unknown_usage_are_bounded_apart() -> None:
    lost = Calls("claude-opus-5-5", Terms(), 0, 3, USAGE, 2, 1_000_000, 64_000)
    spent = spending(PRICES, lost)
    assert (spent.usd, spent.unknown) == (18, 2)
    assert spent.at_most == 5 + Decimal("1.28")  # nothing is dearer than a cache write


def test_cache_share_is_that_of_the_prompts() -> None:
    assert spending(PRICES, calls()).cache_share == 10 / 13
    assert Spending().cache_share is None


TOKENS = st.integers(0, 2**53)
USAGES = st.builds(Usage, TOKENS, TOKENS, TOKENS, TOKENS)
TERMS = st.builds(Terms, fast=st.booleans(), us_only=st.booleans(), hour_cache=st.booleans())


@pytest.mark.slow
@given(st.lists(USAGES, max_size=20), TERMS)
def test_cost_of_a_sum_is_the_sum_of_the_costs_to_the_last_digit(
    usages: list[Usage], terms: Terms
) -> None:
    together = spending(PRICES, calls(sum(usages, Usage()), terms=terms))
    apart = sum((spending(PRICES, calls(usage, terms=terms)) for usage in usages), Spending())
    assert together.usd == apart.usd
    assert together.usage == apart.usage


@pytest.mark.slow
@given(USAGES, TERMS)
def test_no_usage_costs_more_than_its_bound(usage: Usage, terms: Terms) -> None:
    bound = Calls(
        "claude-opus-5-5", terms, 0, 1, Usage(), 1, usage.prompt_tokens, usage.output_tokens
    )
    assert spending(PRICES, calls(usage, terms=terms)).usd <= spending(PRICES, bound).at_most


@pytest.mark.slow
@given(st.lists(USAGES, max_size=5))
def test_spending_adds_up_in_any_order(usages: list[Usage]) -> None:
    spent = [spending(PRICES, calls(usage)) for usage in usages]
    assert sum(spent, Spending()) == sum(reversed(spent), Spending())

"""The price list that Runner comes with, and a user's own."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pytest

from runner.core.prices import Price, Rates
from runner.errors import UsageError
from runner.llm.prices import load_prices

RATES = "input = 1\ncache_write_5m = 1.25\ncache_write_1h = 2\ncache_read = 0.1\noutput = 5\n"
NEW = f"[models.claude-new]\n{RATES}"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "prices.toml"


def all_rates(price: Price) -> list[Rates]:
    return [rates for rates in (price.standard, price.fast, price.long) if rates is not None]


def test_list_says_from_when_and_where_it_is() -> None:
    prices = load_prices()
    assert prices.date.year >= 2026
    assert prices.source.startswith("https://")
    assert prices.us_inference == Decimal("1.1")


def test_shipped_prices_hang_together() -> None:
    """A cache write costs 1.25 of the input for 5 minutes and twice it for an hour; a read at most a
    tenth: https://platform.claude.com/docs/en/about-claude/pricing. A slip of the pen breaks it."""
    prices = load_prices()
    assert len(prices.models) > 15
    for model, price in prices.models.items():
        assert re.fullmatch(r"claude-[a-z]+-\d(-\d)?|claude-3-\d-[a-z]+", model)
        for rates in all_rates(price):
            assert rates.cache_write_5m == rates.input * Decimal("1.25"), model
            assert rates.cache_write_1h == rates.input * 2, model
            assert rates.cache_read in {rates.input * Decimal(x) for x in ("0.1", "0.05", "0.025")}
            assert rates.output == rates.input * 5, model


def test_own_list_adds_and_changes_models_and_leaves_the_others(own: Path) -> None:
    shipped = load_prices()
    own.write_text(NEW + f"[models.claude-opus-5]\n{RATES}")
    prices = load_prices(own)
    assert set(prices.models) == {*shipped.models, "claude-new"}
    assert prices.models["claude-opus-5"].standard == prices.models["claude-new"].standard
    assert prices.models["claude-new"].standard.cache_read == Decimal("0.1")
    assert prices.models["claude-opus-5-5"] == shipped.models["claude-opus-5-5"]
    assert (prices.date, prices.source) == (shipped.date, str(own))


def test_windows_are_known_by_the_models_own_pages(own: Path) -> None:
    """https://platform.claude.com/docs/en/models/opus-5-5/overview and the pages beside it."""
    prices = load_prices()
    assert prices.window("claude-opus-5-5") == 1_000_000
    assert prices.window("claude-haiku-4-5-20251001") == 200_000
    assert prices.window("claude-opus-6") is None


def test_window_of_a_model_stays_when_an_own_list_changes_only_its_price(own: Path) -> None:
    own.write_text(f"{NEW}window = 32_000\n[models.claude-opus-5]\n{RATES}")
    prices = load_prices(own)
    assert prices.window("claude-new") == 32_000
    assert prices.window("claude-opus-5") == 1_000_000


def test_own_list_may_have_a_day_and_a_source(own: Path) -> None:
    own.write_text('date = 2030-01-02\nsource = "our contract"\nus_inference = 1.2\n' + NEW)
    prices = load_prices(own)
    assert (str(prices.date), prices.source) == ("2030-01-02", "our contract")
    assert prices.us_inference == Decimal("1.2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[models", "is not TOML"),
        ("model = 1", "model is unknown"),
        ("date = 1", "date must be a day"),
        ("date = 2026-01-01T00:00:00", "date must be a day"),
        ("source = 1", "source must be a string"),
        ("models = 1", "models must be a table"),
        ("us_inference = true", "us_inference must be a number"),
        (NEW.replace("output = 5\n", ""), "models.claude-new.output is missing"),
        (NEW.replace("output = 5", "output = -5"), "models.claude-new.output must be a number"),
        (NEW.replace("output = 5", "output = nan"), "models.claude-new.output must be a number"),
        (NEW.replace("output = 5", 'output = "5"'), "models.claude-new.output must be a number"),
        (NEW.replace("output = 5", "output = 1e-9"), "at most 6 decimal places"),
        (NEW + "batch = 1", "models.claude-new.batch is unknown"),
        (NEW + f"[models.claude-new.fast]\n{RATES}above = 1", "fast.above is unknown"),
        (NEW + f"[models.claude-new.long]\n{RATES}", "long.above must be a number of tokens"),
        (NEW + "fast = 1", "models.claude-new.fast must be a table"),
        (NEW + "window = 0", "models.claude-new.window must be a number of tokens"),
        (NEW + "window = 2e5", "models.claude-new.window must be a number of tokens"),
    ],
)
def test_list_that_is_none_is_refused_in_a_line(own: Path, text: str, said: str) -> None:
    own.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_prices(own)
    assert said in str(caught.value)
    assert str(own) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_list_that_is_not_there_is_refused(own: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load_prices(own)


@pytest.mark.parametrize(
    ("model", "output"),
    [
        ("claude-opus-4-1-20250805", 75),
        ("claude-opus-4-20250514", 75),
        ("claude-sonnet-4-20250514", 15),
        ("claude-3-7-sonnet-20250219", 15),
        ("claude-3-5-haiku-20241022", 4),
    ],
)
def test_models_of_2025_have_prices(model: str, output: int) -> None:
    price = load_prices().price(model)
    assert price is not None
    assert price.standard.output == output

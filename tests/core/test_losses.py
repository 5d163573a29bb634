"""``core.losses``: what calls cost for nothing, and cheaper ways."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

from runner.core.conversation import Usage
from runner.core.losses import CheaperWay, Loss, Losses, PricedCall, losses
from runner.core.prices import Calls, Price, PriceList, Rates, Terms, spending

RATES = Rates(*map(Decimal, ("1", "1.25", "2", "0.1", "5")))
PRICES = PriceList(
    date(2026, 11, 1),
    "a test",
    {
        "large": Price(RATES, window=200_000),
        "small": Price(RATES.times(Decimal("0.1")), window=100_000),
    },
)
WRITES = Usage(cache_creation_tokens=100_000, output_tokens=100)
READS = Usage(cache_read_tokens=100_000, output_tokens=100)
HOUR, SUMMARY, BATCH = "ttl", "summary_model", "lane"


def call(at: float, usage: Usage = READS, model: str = "large", **options: Any) -> PricedCall:
    terms = options.pop("terms", Terms())
    unknown = options.pop("unknown", 0)
    sums = Calls(model, terms, 0, 1, usage, unknown=min(unknown, 1), unknown_output=unknown)
    given = {"run_id": "run_1", "turn": int(at), "purpose": "turn", "ended_at": at + 5, **options}
    return PricedCall(
        model=model,
        started_at=at,
        replied=given.pop("replied", True),
        failed=given.pop("failed", False),
        compacted=given.pop("compacted", False),
        spending=spending(PRICES, sums),
        terms=terms,
        rates=PRICES.rates(model, terms, 0),
        **given,
    )


def saved(found: Losses, change: str) -> CheaperWay | None:
    return next((way for way in found.cheaper if change in way.change), None)


def test_prefix_that_is_written_again_after_its_cache_expired_is_lost() -> None:
    found = losses([call(0, WRITES), call(400, WRITES), call(420)], PRICES)
    again = Decimal("0.115")  # 100,000 tokens at 1.25 instead of 0.1 for a million
    assert found.expired == Loss(1, again)
    assert (found.repeated, found.failed) == (Loss(), Loss())
    # An hour's cache would have read it, and its first write would have cost 2 instead of 1.25.
    hour = saved(found, HOUR)
    assert hour is not None
    assert (hour.usd, hour.at_most) == (again - Decimal("0.075"), False)


def test_only_a_cache_that_expired_is_lost_to_expiry() -> None:
    for second in (
        call(200, WRITES),  # within five minutes: the prefix changed
        call(400, WRITES, compacted=True),
        call(400, WRITES, model="small"),
        call(400),
    ):
        assert losses([call(0, WRITES), second], PRICES).expired == Loss()
    other_run = call(400, WRITES, run_id="run_2")
    assert losses([call(0, WRITES), other_run], PRICES).expired == Loss()


def test_cache_of_an_hour_expires_after_an_hour_and_no_longer_one_is_advised() -> None:
    terms = Terms(hour_cache=True)
    within = [call(0, WRITES, terms=terms), call(3000, WRITES, terms=terms)]
    after = [call(0, WRITES, terms=terms), call(4000, WRITES, terms=terms)]
    assert losses(within, PRICES).expired == Loss()
    found = losses(after, PRICES)
    assert found.expired == Loss(1, Decimal("0.19"))
    assert saved(found, HOUR) is None


def test_calls_without_a_reply_that_were_made_again_are_lost() -> None:
    died = call(0, Usage(input_tokens=1000), replied=False, unknown=1000, turn=1)
    found = losses([died, call(20, WRITES, turn=1)], PRICES)
    assert found.repeated == Loss(1, Decimal("0.001"), Decimal("0.005"))
    assert losses([call(0, WRITES, turn=1), replace(died, turn=2)], PRICES).repeated == Loss()


def test_calls_of_failed_items_are_lost_and_in_no_other_sum() -> None:
    calls = [call(0, WRITES, failed=True), call(400, WRITES, failed=True)]
    found = losses(calls, PRICES)
    assert found.failed == Loss(2, Decimal("0.251"))
    assert found.expired == Loss()


def test_summaries_are_priced_with_the_cheapest_model_and_no_cache() -> None:
    made = call(50, replace(READS, cache_read_tokens=50_000), purpose="summary")
    found = losses([call(0, WRITES), made, call(60)], PRICES)
    way = saved(found, SUMMARY)
    assert way is not None
    assert way.change == 'summary_model = "small" under [context]'
    assert way.usd == Decimal("0.0055") - Decimal("0.00505")
    too_long = replace(made, spending=call(0, READS).spending)
    assert saved(losses([call(0, WRITES), too_long, call(60)], PRICES), SUMMARY) is None


def test_batches_save_at_most_half_of_what_went_one_by_one() -> None:
    alone, batched = call(0, WRITES), call(10, terms=Terms(batch=True))
    way = saved(losses([alone, batched], PRICES), BATCH)
    assert way is not None
    assert (way.usd, way.at_most) == (alone.spending.usd / 2, True)
    assert saved(losses([batched], PRICES), BATCH) is None


def test_fewer_kept_messages_save_at_most_the_later_compactions() -> None:
    compacted = [call(at, WRITES, compacted=True) for at in (10, 20, 30)]
    way = saved(losses([call(0, WRITES), *compacted], PRICES), "keep_messages")
    assert way is not None
    assert (way.usd, way.at_most) == (Decimal("0.23"), True)
    assert saved(losses([call(0, WRITES), compacted[0]], PRICES), "keep_messages") is None


def test_largest_saving_comes_first() -> None:
    one = call(0, replace(WRITES, cache_creation_tokens=10**7), run_id="run_2")
    found = losses([call(0, WRITES), call(400, WRITES), one], PRICES)
    assert [way.usd for way in found.cheaper] == sorted(
        (way.usd for way in found.cheaper), reverse=True
    )


def test_model_without_a_price_makes_sums_lower_bounds() -> None:
    assert losses([call(0, WRITES, model="unheard of")], PRICES).unpriced
    assert not losses([call(0, WRITES)], PRICES).unpriced

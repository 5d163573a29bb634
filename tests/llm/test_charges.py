"""Compare the charges for calls of unknown usage with what the API would bill."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal

import pytest

from runner.core.budget import (
    NOTICE_SECONDS,
    Charged,
    Limits,
    Reservation,
    charge_of,
    reserve,
    written_in,
)
from runner.core.conversation import Usage
from runner.core.prices import Rates, Tariff
from runner.errors import ModelCallError
from tests.messages_api import Break, Reply, text

RATES = Tariff(Rates(*map(Decimal, ("3", "3.75", "6", "0.3", "15"))))
READ, WRITTEN = 20_000, 2_000  # tokens of a turn in the middle of a run
CHUNK = 20  # characters, five tokens, every sixteenth of a second: 80 tokens a second


PROMPT = Usage(10, READ, WRITTEN)
PROMPT_BYTES = 90_000  # a token is at least a byte


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_cut_streams_are_charged_at_most_1_3_times_what_they_cost(talk):
    """Each is cut at a random place of its reply."""
    dice = random.Random(7)
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": READ,
        "cache_creation_input_tokens": WRITTEN,
    }
    places = [dice.randint(0, 60) for _ in range(24)]
    call = _reserved()

    def charged_and_billed(place: int) -> tuple[int, int]:
        broken = Break("reset", after=place + 4)
        here = talk(
            Reply([text("x" * 2_000)], chunk=CHUNK, pause=1 / 16, usage=usage, broken=broken)
        )
        with pytest.raises(ModelCallError) as caught:
            here.complete()
        error = caught.value
        assert error.counted == PROMPT.by_kind()
        charge = charge_of(call, PROMPT, error.most_output, RATES)
        written = replace(PROMPT, output_tokens=place * CHUNK // 4)
        billed = RATES.cost(written, hour_cache=False)
        assert billed <= charge.cost
        assert charge.tokens <= 1.3 * written.total
        return charge.cost, billed

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(charged_and_billed, places))
    charged, billed = (sum(each) for each in zip(*found, strict=True))
    print(f"\ncharged / billed of cut streams: {charged / billed:.2f}")
    assert charged <= 1.3 * billed


def test_the_charge_for_calls_of_killed_workers_is_reported():
    """Kills are spread over 4-second calls; the reaper comes a minute later, and the API writes on."""
    call = _reserved()
    killed_at = [number / 6 for number in range(24)]
    charged = sum(call.at_most(written_in(at + 60 + NOTICE_SECONDS)).cost for at in killed_at)
    whole = RATES.cost(replace(PROMPT, output_tokens=320), hour_cache=False)
    billed = len(killed_at) * whole
    others = 19 * billed  # one call of twenty is killed
    print(f"\ncharged / billed of killed calls: {charged / billed:.1f}")
    print(f"of all calls, one of 20 killed: {(charged + others) / (billed + others):.2f}")
    assert billed <= charged <= len(killed_at) * call.worst_cost


def _reserved() -> Reservation:
    call = reserve(Limits(), Charged(0), PROMPT_BYTES, most_output=32_000, tariff=RATES)
    assert isinstance(call, Reservation)
    return call

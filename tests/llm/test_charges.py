"""Compare the charges for cut streams with what the API would bill."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest

from runner.core.budget import Charged, Limits, Reservation, charge_of, reserve
from runner.core.conversation import Usage
from runner.core.prices import Rates, Tariff
from runner.errors import ModelCallError
from tests.messages_api import Break, Reply, text

RATES = Tariff(Rates(*map(Decimal, ("3", "3.75", "6", "0.3", "15"))))
READ, WRITTEN = 20_000, 2_000  # tokens of a turn in the middle of a run
CHUNK = 20  # characters, five tokens, every sixteenth of a second: 80 tokens a second


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_job_with_cut_streams_is_charged_at_most_1_3_times_what_it_costs(talk):
    """Five of six calls are whole; the sixth is cut at a random place of its reply."""
    dice = random.Random(7)
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": READ,
        "cache_creation_input_tokens": WRITTEN,
    }
    counted = Usage(10, READ, WRITTEN)
    places = [dice.randint(0, 60) for _ in range(24)]

    def charged_and_billed(place: int) -> tuple[int, int]:
        broken = Break("reset", after=place + 4)
        here = talk(
            Reply([text("x" * 2_000)], chunk=CHUNK, pause=1 / 16, usage=usage, broken=broken)
        )
        with pytest.raises(ModelCallError) as caught:
            here.complete()
        error = caught.value
        call = reserve(Limits(), Charged(0), 40_000, most_output=32_000, tariff=RATES)
        assert isinstance(call, Reservation)
        assert error.counted == counted.by_kind()
        charge = charge_of(call, counted, error.most_output, RATES)
        written = Usage(10, READ, WRITTEN, place * CHUNK // 4)
        billed = RATES.cost(written, hour_cache=False)
        assert billed <= charge.cost
        assert charge.tokens <= 1.3 * written.total
        return charge.cost, billed

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(charged_and_billed, places))
    charged, billed = (sum(each) for each in zip(*found, strict=True))
    whole = 5 * len(found) * RATES.cost(Usage(10, READ, WRITTEN, 250), hour_cache=False)
    print(f"cut: {charged / billed:.2f}; of all calls: {(charged + whole) / (billed + whole):.2f}")
    assert charged + whole <= 1.3 * (billed + whole)

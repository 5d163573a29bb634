"""``[pilot]`` and ``[breaker]``: when a job pauses by itself."""

from __future__ import annotations

import pytest

from runner.core.pauses import Breaker, Pilot, Rate
from runner.core.spec import JobSpec
from tests.jobfile.conftest import Load, Problems

LEAST = 'model = "priced"\nprompt = "Go."\n'


@pytest.mark.parametrize(
    ("written", "pilot"),
    [
        ("", None),
        ("[pilot]\nitems = 5", Pilot(5)),
        ("[pilot]\nitems = 5\ncontinue = { success = 1 }", Pilot(5, 1.0)),
        ("[pilot]\nitems = 5\n[pilot.continue]\nforecast_usd = 20", Pilot(5, None, 20.0)),
        (
            "[pilot]\nitems = 5\ncontinue = { success = 0.8, forecast_usd = 20 }",
            Pilot(5, 0.8, 20.0),
        ),
    ],
)
def test_a_pilot_is_read_and_stored(load_text: Load, written: str, pilot: Pilot | None) -> None:
    spec = load_text(LEAST + written).spec
    assert spec.pilot == pilot
    assert JobSpec.from_json(spec.to_json()).pilot == pilot


BREAKER = """
[breaker]
same_failure = 5
failure_rate = "50 % of 20"
denied_rate = "12.5%of 8"
"""


def test_a_breaker_is_read_and_stored(load_text: Load) -> None:
    spec = load_text(LEAST + BREAKER).spec
    assert spec.breaker == Breaker(5, Rate(50.0, 20), Rate(12.5, 8))
    assert JobSpec.from_json(spec.to_json()).breaker == spec.breaker
    assert load_text(LEAST).spec.breaker is None


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("[pilot]", "line 3: pilot: the key items is missing: how many items are worked first"),
        ("[pilot]\nitems = 0", "line 4: pilot.items: must be at least 1, not 0"),
        (
            "[pilot]\nitems = 2\ncontinue = { success = 80 }",
            "line 5: pilot.continue.success: must be a number from 0 to 1, not 80",
        ),
        (
            "[pilot]\nitems = 2\ncontinue = { sucess = 0.8 }",
            "line 5: pilot.continue.sucess: unknown key 'sucess'; did you mean success?",
        ),
        ("[pilot]\nitems = 2\ncontinue = true", "line 5: pilot.continue: must be a table"),
        (
            "[pilot]\nitems = 2\n[pilot.continue]\nforecast_usd = 0",
            "line 6: pilot.continue.forecast_usd: must be a number from 0.000001 to",
        ),
        ("[breaker]\nsame_failure = 0", "line 4: breaker.same_failure: must be at least 1, not 0"),
        (
            "[breaker]\nfailure_rate = 0.5",
            'line 4: breaker.failure_rate: must be a string such as "50 % of 20", not a number',
        ),
        (
            '[breaker]\nfailure_rate = "half"',
            "line 4: breaker.failure_rate: must be a string such as \"50 % of 20\", not 'half'",
        ),
        (
            '[breaker]\ndenied_rate = "0 % of 20"',
            "line 4: breaker.denied_rate: must be more than 0 % and at most 100 %, not '0 % of 20'",
        ),
        (
            '[breaker]\ndenied_rate = "101 % of 20"',
            "line 4: breaker.denied_rate: must be more than",
        ),
        (
            '[breaker]\ndenied_rate = "50 % of 2000"',
            "line 4: breaker.denied_rate: must count 1 to 1,000 runs, not '50 % of 2000'",
        ),
        ('[breaker]\ndenied_rate = "50 % of 0"', "line 4: breaker.denied_rate: must count 1 to"),
        ("[breaker]\nsame_failures = 5", "line 4: breaker.same_failures: unknown key"),
    ],
)
def test_a_wrong_key_is_a_problem_with_its_line(
    problems_of: Problems, written: str, problem: str
) -> None:
    (found,) = problems_of(LEAST + written)
    assert found.startswith(problem)


def test_an_expected_cost_needs_a_price(problems_of: Problems) -> None:
    written = 'model = "dear"\nprompt = "Go."\n[pilot]\nitems = 2\ncontinue = { forecast_usd = 3 }'
    (problem,) = problems_of(written)
    assert problem.startswith("line 5: pilot.continue.forecast_usd: 'dear' has no price")

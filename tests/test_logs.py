"""An outage in a few lines."""

from __future__ import annotations

import logging

import pytest

from runner.errors import UnreachableError
from runner.logs import LONGEST_INTERVAL_SECONDS, Outage

AWAY = UnreachableError("no answer")


class Part:
    """A part that is away from time to time, by a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.outage = Outage("the part", logging.getLogger("runner.test"), lambda: self.now)

    def is_away(self, seconds: int) -> None:
        """Two threads fail in each second."""
        for _ in range(seconds):
            self.outage.failed(AWAY)
            self.outage.failed(AWAY)
            self.now += 1.0


@pytest.fixture
def part() -> Part:
    return Part()


def test_an_outage_is_one_line_at_once_and_one_when_it_is_over(
    part: Part, caplog: pytest.LogCaptureFixture
) -> None:
    part.is_away(10)
    assert caplog.messages == ["the part is away, trying on: no answer"]
    assert part.outage.why == "no answer"
    part.now += 3.0
    part.outage.worked()
    part.outage.worked()
    assert caplog.messages[1:] == ["the part is back"]
    assert vars(caplog.records[1])["fields"] == {"seconds": 13, "failures": 20}
    assert part.outage.why == ""


@pytest.mark.slow
def test_a_long_outage_is_said_again_at_growing_intervals(
    part: Part, caplog: pytest.LogCaptureFixture
) -> None:
    part.is_away(24 * 3600)
    seconds = [vars(record)["fields"].get("seconds", 0) for record in caplog.records]
    assert seconds[:5] == [0, 15, 45, 105, 225]
    assert len(seconds) < 8 + 24 * 3600 / LONGEST_INTERVAL_SECONDS


def test_a_part_that_fails_for_some_and_works_for_others_is_not_back(
    part: Part, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(60):
        part.outage.worked()
        part.is_away(1)
    assert [message for message in caplog.messages if "back" in message] == []


def test_a_part_that_is_there_is_not_mentioned(
    part: Part, caplog: pytest.LogCaptureFixture
) -> None:
    part.outage.worked()
    assert caplog.messages == []


def test_the_next_outage_is_told_anew(part: Part, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        part.is_away(20)
        part.now += 3.0
        part.outage.worked()
    first, second = caplog.messages[:3], caplog.messages[3:]
    assert first == second
    assert len(first) == 3

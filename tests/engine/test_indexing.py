from __future__ import annotations

import logging
import threading

import pytest

from runner.engine.dispatcher import follow_index
from runner.errors import UnreachableError
from runner.logs import Outage

OUTAGE = Outage("the database", logging.getLogger())


class _Index:
    """Does what it is told, and stops the indexer after the last of it."""

    def __init__(self, stopping: threading.Event, *happens: int | Exception) -> None:
        self._stopping = stopping
        self._happens = list(happens)

    def follow(self) -> int:
        happens = self._happens.pop(0)
        if not self._happens:
            self._stopping.set()
        if isinstance(happens, Exception):
            raise happens
        return happens


def test_it_follows_until_it_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    stopping = threading.Event()
    index = _Index(stopping, 200, 3, 0, 0, 1)
    follow_index(index, stopping, OUTAGE, pause=0.001)
    assert not index._happens
    assert not caplog.records


def test_what_goes_wrong_is_logged_once_and_outlived(caplog: pytest.LogCaptureFixture) -> None:
    stopping, away = threading.Event(), UnreachableError("the index is away")
    index = _Index(stopping, away, away, away, 5, away, away, 0)
    with caplog.at_level(logging.WARNING):
        follow_index(index, stopping, OUTAGE, pause=0.001)
    assert [record.getMessage() for record in caplog.records] == [
        "the search index waits: the index is away"
    ] * 2


def test_an_outage_of_the_database_is_for_others_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    stopping, away = threading.Event(), UnreachableError("the database is away")
    outage = Outage("the database", logging.getLogger("runner.test"))
    outage.failed(away)
    caplog.clear()
    follow_index(_Index(stopping, away, away, away, 0), stopping, outage, pause=0.001)
    assert not caplog.records


def test_it_outlives_whatever_goes_wrong_and_logs_where(caplog: pytest.LogCaptureFixture) -> None:
    stopping = threading.Event()
    index = _Index(stopping, ValueError("damaged"), ValueError("damaged"), 5, 0)
    with caplog.at_level(logging.WARNING):
        follow_index(index, stopping, OUTAGE, pause=0.001)
    (logged,) = caplog.records
    assert logged.getMessage() == "the search index waits: ValueError('damaged')"
    assert logged.exc_info is not None


def test_what_goes_wrong_when_nobody_waits_any_more_is_not_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The database may have been closed."""
    stopping = threading.Event()
    follow_index(_Index(stopping, ValueError("closed")), stopping, OUTAGE, pause=0.001)
    assert not caplog.records


def test_one_that_is_stopped_before_it_begins_does_nothing() -> None:
    stopping = threading.Event()
    stopping.set()
    follow_index(_Index(stopping), stopping, OUTAGE, pause=0.001)

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from runner.store.database import Database
from tests.engine.collecting import BATCH_SECONDS, Office, TurnedClock, two_turns
from tests.messages_api import MessagesServer, Received, Reply

Opened = Callable[..., Office]


@pytest.fixture(autouse=True)
def patient_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that leaves waits for its last notices, however busy the machine is."""
    monkeypatch.setattr("runner.engine.dispatcher.LEAVE_SECONDS", 60.0)


@pytest.fixture
def open_office(database: Database, tmp_path: Path) -> Iterator[Opened]:
    """Makes offices whose model plays a plan."""
    with ExitStack() as opened:

        def make(
            plan: Callable[[Received], Reply] = two_turns, seconds: float = BATCH_SECONDS
        ) -> Office:
            clock = TurnedClock()
            server = MessagesServer(plan, batch_now=clock.now, batch_takes=lambda number: seconds)
            office = Office(database, opened.enter_context(server), tmp_path, clock)
            opened.callback(office.close)
            return office

        yield make


@pytest.fixture
def office(open_office: Opened) -> Office:
    return open_office()

"""The collector over real databases and HTTP: waves, crashes at every point, unknown outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.store.database import Database
from tests.engine.collecting import Died, Office, TurnedClock, two_turns
from tests.messages_api import MessagesServer

COUNT = 3
PAID_ONCE = sorted((f"Do {number}.", turn) for number in range(COUNT) for turn in range(2))


@pytest.fixture
def office(database: Database, tmp_path: Path) -> Iterator[Office]:
    clock = TurnedClock()
    with MessagesServer(two_turns, batch_now=clock.now, batch_takes=lambda n: 60.0) as server:
        office = Office(database, server, tmp_path, clock)
        yield office
        office.close()


def work_to_the_end(office: Office, worker_id: str = "worker_a", most: int = 30) -> None:
    """Work and collect, a minute after another, until all runs have succeeded."""
    for _ in range(most):
        office.work()
        office.collector(worker_id).collect()
        if office.states().keys() == {"succeeded end_turn"}:
            return
        office.clock.turn(60.0)
    raise AssertionError(office.states())


@pytest.mark.dialect
def test_calls_of_many_runs_share_batches_and_each_is_paid_once(office: Office) -> None:
    office.submit(COUNT)
    work_to_the_end(office)
    assert office.paid() == PAID_ONCE
    assert len(office.server.requests) == 1  # the first of the job goes alone
    assert office.batches("count", "outcome") == [(COUNT, "ended"), (COUNT - 1, "ended")]


def test_a_run_in_a_batch_is_a_row_that_waits(office: Office) -> None:
    office.submit(COUNT)
    office.work()
    assert office.states() == {"waiting batch": COUNT}
    office.collector().collect()
    assert office.states() == {"waiting batch": COUNT}
    assert office.work() == []


@pytest.mark.slow
def test_a_collector_that_dies_at_any_point_pays_no_call_twice(
    database: Database, tmp_path: Path
) -> None:
    """Where it died between the intent and the request, the intent's calls are charged and made again."""
    boundary, died = 1, True
    while died:
        clock = TurnedClock()
        with MessagesServer(two_turns, batch_now=clock.now, batch_takes=lambda n: 60.0) as server:
            office = Office(database, server, tmp_path, clock)
            office.submit(COUNT)
            died = _die(office, boundary)
            office.clock.turn(20.0)  # the leases of the dead worker have expired
            work_to_the_end(office, "worker_b")
            assert office.paid() == PAID_ONCE, boundary
            office.close()
        boundary += 1
        _empty(database)
    assert boundary > 20


def _die(office: Office, boundary: int) -> bool:
    """Work with a collector until it dies at a boundary. False if the runs ended before."""
    for _ in range(30):
        office.work()
        collector = office.collector()
        with office.dying_at(boundary) as left:
            try:
                collector.collect()
            except Died:
                return True
        boundary = left()
        if office.states().keys() == {"succeeded end_turn"}:
            return False
        office.clock.turn(60.0)
    raise AssertionError(office.states())


def _empty(database: Database) -> None:
    """Delete all rows, for another story in the same database."""
    from runner.store.tables import metadata

    def work(connection):  # type: ignore[no-untyped-def]
        for table in reversed(metadata.sorted_tables):
            connection.execute(table.delete())

    database.write(work)

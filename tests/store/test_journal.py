"""The journal in the database: guarded, and the same read back as folded while it grew."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import select

from runner.errors import LeaseLost, StaleState
from runner.queries.transcript import sent_request
from runner.store import jobs, runs
from runner.store.database import Database
from runner.store.journal import StoredJournal
from runner.store.tables import events, model_calls
from runner.store.tables import runs as run_table
from tests.store.attempts import decide, free
from tests.store.driving import SPEC, Driver, RecordedDriver
from tests.store.examples import NOW, submission

pytestmark = pytest.mark.dialect


def histories(**counts: int) -> list[tuple[str, int]]:
    """Databases, each with so many seeds of its own."""
    databases = [database for database, count in counts.items() for _ in range(count)]
    return [(database, seed) for seed, database in enumerate(databases)]


# Each seed is another history: the databases need not have the same ones.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("empty_url", "seed"), histories(sqlite=8, postgresql=4), indirect=["empty_url"]
)
def test_loading_gives_the_view_that_was_folded_while_it_grew(
    database: Database, seed: int
) -> None:
    driver = Driver(database, seed)
    sent = driver.drive()
    check_events_and_charges(database, driver.run_id)
    assert {turn: sent_request(database, driver.run_id, turn) for turn in sent} == sent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("empty_url", "seed"), histories(sqlite=10, postgresql=6), indirect=["empty_url"]
)
def test_loading_gives_the_view_of_a_run_with_a_workspace_of_its_own(
    database: Database, seed: int
) -> None:
    driver = RecordedDriver(database, seed)
    sent = driver.drive()
    check_events_and_charges(database, driver.run_id)
    assert {turn: sent_request(database, driver.run_id, turn) for turn in sent} == sent


def check_events_and_charges(database: Database, run_id: str) -> None:
    def read(connection: Any) -> tuple[Any, ...]:
        run = connection.execute(select(run_table).where(run_table.c.id == run_id)).one()
        numbers = connection.execute(
            select(events.c.number).where(events.c.run_id == run_id).order_by(events.c.number)
        )
        charged = connection.execute(
            select(model_calls.c.charged_tokens).where(model_calls.c.run_id == run_id)
        )
        return run, numbers.scalars().all(), charged.scalars().all()

    run, numbers, charged = database.read(read)
    assert numbers == list(range(1, run.event_count + 1))
    assert sum(charged) == run.charged_tokens <= SPEC.limits.token_ceiling


@pytest.fixture
def driver(database: Database) -> Driver:
    return Driver(database, 1)


def test_an_attempt_without_the_lease_cannot_append(driver: Driver) -> None:
    lease, state = driver.claim()
    driver.crash()
    driver.claim()
    with pytest.raises(LeaseLost):
        driver.journal.commit(lease, state, [], decide)
    with pytest.raises(LeaseLost):
        driver.journal.load(lease)


def test_a_state_that_missed_a_commit_cannot_append(driver: Driver) -> None:
    lease, state = driver.claim()
    driver.journal.commit(lease, state, [], decide)
    with pytest.raises(StaleState):
        driver.journal.commit(lease, state, [], decide)


def test_only_one_of_two_claims_gets_the_run(
    driver: Driver, open_database: Callable[[], Database]
) -> None:
    run = runs.look_at(driver.database, driver.run_id, NOW)
    assert run is not None
    first = runs.claim(driver.database, run, "worker_a", NOW)
    second = runs.claim(open_database(), run, "worker_b", NOW)
    assert (first is None, second is None) == (False, True)


@pytest.mark.slow
def test_more_attempts_than_connections_can_load_at_once(database: Database) -> None:
    keys = [f"item {n}" for n in range(24)]
    jobs.submit(database, submission(*keys, spec=SPEC), NOW)
    leases = []
    for run_id in runs.due_to_notify(database, 100, NOW):
        run = runs.look_at(database, run_id, NOW)
        assert run is not None
        leases.append(runs.claim(database, run, "worker_a", NOW))
    journal = StoredJournal(database, lambda: NOW, free)
    with ThreadPoolExecutor(len(leases)) as pool:
        states = list(pool.map(journal.load, leases))
    assert {state.item_key for state in states} == set(keys)

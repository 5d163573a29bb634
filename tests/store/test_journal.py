"""The journal in the database: guarded, and the same read back as folded while it grew."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import select

from runner.core.commands import Target
from runner.core.conversation import ModelReply
from runner.core.run import UNKNOWN
from runner.core.times import Moment
from runner.errors import LeaseLost, StaleState
from runner.permissions import Rule
from runner.queries.transcript import sent_request
from runner.store import control, due_runs, jobs
from runner.store.batches import set_lane
from runner.store.caps import set_cap
from runner.store.database import Database
from runner.store.journal import StoredJournal
from runner.store.retry import say
from runner.store.tables import events, model_calls
from runner.store.tables import runs as run_table
from runner.store.times import move_finish_by
from tests.core.story import replied
from tests.store.asked import add_rules
from tests.store.attempts import USAGE, claim, decide, free, run_row, submit_one, text
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


AT = Moment("22:00", "UTC", NOW + 9)
# Changes from outside, each of a run or its job, and how a state shows them.
CHANGES: dict[str, tuple[Callable[[Database, str, str], Any], Callable[[Any], bool]]] = {
    "message": (lambda other, run, job: say(other, run, "Stop.", NOW), lambda s: s.inbox.messages),
    "pause": (
        lambda other, run, job: control.pause(other, Target("run", run), NOW),
        lambda s: s.inbox.pause_requested,
    ),
    "rule": (
        lambda other, run, job: add_rules(other, job, Rule("deny", "Read")),
        lambda s: s.policy.snapshot == 2,
    ),
    "finish_by": (
        lambda other, run, job: move_finish_by(other, job, AT, NOW, author=UNKNOWN),
        lambda s: s.finish_by == AT.at,
    ),
    "lane": (
        lambda other, run, job: set_lane(other, job, "batch", NOW, author=UNKNOWN),
        lambda s: s.lane == "batch",
    ),
    "cap": (
        lambda other, run, job: set_cap(other, NOW, 9.0, "UTC", 0, author=UNKNOWN),
        lambda s: s.money.cap is not None,
    ),
}


# On SQLite nobody else writes meanwhile.
@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("name", CHANGES)
def test_a_commit_sees_what_changes_while_it_is_decided(
    database: Database, open_database: Callable[[], Database], name: str
) -> None:
    change, shows = CHANGES[name]
    attempt, other, seen = claim(database, submit_one(database)), open_database(), list[bool]()
    run_id = attempt.lease.run_id

    def late(state: Any, now: float) -> Any:
        seen.append(bool(shows(state)))
        if len(seen) == 1:
            change(other, run_id, run_row(database, run_id).job_id)
        return decide(state, now)

    # It was cut, so that another call begins.
    reply = replied(ModelReply((text("One"),), "max_tokens", USAGE, "claude-test", "req_1"))
    StoredJournal(database, lambda: NOW, free).commit(attempt.lease, attempt.state, [reply], late)
    assert (seen[0], seen[-1]) == (False, True)


def test_only_one_of_two_claims_gets_the_run(
    driver: Driver, open_database: Callable[[], Database]
) -> None:
    run = due_runs.look_at(driver.database, driver.run_id, NOW)
    assert run is not None
    first = due_runs.claim(driver.database, run, "worker_a", NOW)
    second = due_runs.claim(open_database(), run, "worker_b", NOW)
    assert (first is None, second is None) == (False, True)


@pytest.mark.slow
def test_more_attempts_than_connections_can_load_at_once(database: Database) -> None:
    keys = [f"item {n}" for n in range(24)]
    jobs.submit(database, submission(*keys, spec=SPEC), NOW)
    leases = []
    for run_id in due_runs.due_to_notify(database, 100, NOW):
        run = due_runs.look_at(database, run_id, NOW)
        assert run is not None
        leases.append(due_runs.claim(database, run, "worker_a", NOW))
    journal = StoredJournal(database, lambda: NOW, free)
    with ThreadPoolExecutor(len(leases)) as pool:
        states = list(pool.map(journal.load, leases))
    assert {state.item_key for state in states} == set(keys)

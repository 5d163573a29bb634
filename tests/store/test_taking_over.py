"""Attempts that ended without an outcome."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from runner.core.run import Lease
from runner.store import jobs, leases, runs
from runner.store.database import Database
from runner.store.tables import events
from runner.store.tables import runs as run_table
from tests.store.examples import NOW, submission

pytestmark = pytest.mark.dialect

WORKER = "worker_a"


@pytest.fixture
def run_id(database: Database) -> str:
    jobs.submit(database, submission(), NOW)
    (run_id,) = runs.due_to_notify(database, 9, NOW)
    return run_id


def claim(database: Database, run_id: str) -> Lease:
    run = runs.look_at(database, run_id, NOW)
    assert run is not None
    lease = runs.claim(database, run, WORKER, NOW)
    assert lease is not None
    return lease


def row(database: Database, run_id: str) -> Any:
    query = select(run_table).where(run_table.c.id == run_id)
    return database.read(lambda c: c.execute(query).one())


def event_types(database: Database, run_id: str) -> list[str]:
    query = select(events.c.type).where(events.c.run_id == run_id).order_by(events.c.number)
    return list(database.read(lambda c: c.execute(query).scalars().all()))


def test_a_bug_is_tried_once_more_and_then_fails_the_run(database: Database, run_id: str) -> None:
    leases.give_up(database, claim(database, run_id), "Traceback …\nKeyError: 1", NOW)
    assert (row(database, run_id).state, row(database, run_id).reason) == ("queued", "bug")
    leases.give_up(database, claim(database, run_id), "Traceback …\nKeyError: 2", NOW)
    failed = row(database, run_id)
    assert (failed.state, failed.reason, failed.detail) == ("failed", "bug", "KeyError: 2")
    assert event_types(database, run_id)[-4:] == ["error", "attempt_ended", "error", "done"]


def test_only_the_attempt_that_holds_the_run_can_give_it_up(
    database: Database, run_id: str
) -> None:
    first = claim(database, run_id)
    leases.give_back(database, first, NOW)
    claim(database, run_id)
    leases.give_up(database, first, "Traceback …\nKeyError: 1", NOW)
    leases.give_back(database, first, NOW)
    assert (row(database, run_id).state, row(database, run_id).attempt) == ("running", 2)


def test_a_claim_whose_answer_was_lost_can_be_given_back(database: Database, run_id: str) -> None:
    lease = claim(database, run_id)
    assert runs.held_by(database, WORKER) == {run_id: lease.attempt}
    leases.give_back(database, lease, NOW)
    assert row(database, run_id).state == "queued"
    assert row(database, run_id).lost_leases == 0
    assert runs.held_by(database, WORKER) == {}


def test_a_postponed_run_is_not_due_until_then(database: Database, run_id: str) -> None:
    run = runs.look_at(database, run_id, NOW)
    assert run is not None
    runs.postpone(database, run, NOW + 0.2)
    assert runs.look_at(database, run_id, NOW + 0.1) is None
    assert runs.due_to_notify(database, 9, NOW + 0.1) == []
    assert runs.due_to_notify(database, 9, NOW + 0.2) == [run_id]

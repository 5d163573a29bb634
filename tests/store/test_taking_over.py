"""Attempts that ended without an outcome."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from runner.core.commands import Target
from runner.core.run import Lease
from runner.store import due_runs, jobs, leases
from runner.store.database import Database
from runner.store.retry import retry
from runner.store.tables import events, workers
from runner.store.tables import runs as run_table
from tests.store.examples import NOW, submission

pytestmark = pytest.mark.dialect

WORKER = "worker_a"


@pytest.fixture
def run_id(database: Database) -> str:
    jobs.submit(database, submission(), NOW)
    (run_id,) = due_runs.due_to_notify(database, 9, NOW)
    return run_id


def claim(database: Database, run_id: str) -> Lease:
    run = due_runs.look_at(database, run_id, NOW)
    assert run is not None
    lease = due_runs.claim(database, run, WORKER, NOW)
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
    assert due_runs.held_by(database, WORKER) == {run_id: lease.attempt}
    leases.give_back(database, lease, NOW)
    assert row(database, run_id).state == "queued"
    assert row(database, run_id).lost_leases == 0
    assert due_runs.held_by(database, WORKER) == {}


def give_back(
    database: Database, run_id: str, host: str, at: float = NOW, *, fails: bool = True
) -> None:
    fault = leases.HostFault(f"id_{host}", host, "no space left", fails=fails)
    leases.give_back_for_host(database, claim(database, run_id), fault, (), at)


def test_a_fault_that_cannot_be_the_run_s_own_never_fails_it(
    database: Database, run_id: str
) -> None:
    for host in "abcd":
        give_back(database, run_id, host, fails=False)
    assert row(database, run_id).reason == "host_fault"


@pytest.mark.slow
def test_a_fault_of_a_host_gives_the_run_back_and_counts_as_no_failure(
    database: Database, run_id: str
) -> None:
    for _ in range(9):
        give_back(database, run_id, "a")
    stored = row(database, run_id)
    assert (stored.state, stored.reason, stored.detail) == (
        *("queued", "host_fault"),
        "a: no space left",
    )
    assert (stored.lost_leases, stored.bugs, stored.due_at) == (0, 0, NOW)
    assert event_types(database, run_id)[-2:] == ["attempt_started", "attempt_ended"]
    claim(database, run_id)
    assert row(database, run_id).detail == ""


@pytest.mark.slow
def test_a_fault_that_three_hosts_agree_on_is_the_runs_until_it_is_retried(
    database: Database, run_id: str
) -> None:
    for host in ("a", "b", "a", "c"):
        assert row(database, run_id).state == "queued"
        give_back(database, run_id, host)
    failed = row(database, run_id)
    assert (failed.state, failed.reason) == ("failed", "workspace")
    assert failed.detail == "3 hosts could not work it, at last c: no space left"
    retry(database, Target("run", run_id), NOW)
    give_back(database, run_id, "d")
    assert row(database, run_id).state == "queued"


@pytest.mark.slow
def test_a_host_leaves_a_run_alone_that_met_its_fault_and_others_do_not(
    database: Database, run_id: str
) -> None:
    waits = []
    for _ in range(7):
        give_back(database, run_id, "a")
        run = due_runs.look_at(database, run_id, NOW)
        assert run is not None
        waits.append(run.left_alone_until("id_a") - NOW)
        assert run.left_alone_until("id_b") == 0
    assert waits == [2, 4, 8, 16, 32, 60, 60]


def test_a_run_that_a_host_leaves_to_others_is_not_finished(
    database: Database, run_id: str
) -> None:
    give_back(database, run_id, "a")
    run = due_runs.look_at(database, run_id, NOW)
    assert run is not None
    due_runs.postpone(database, run, NOW + 1)
    assert due_runs.unfinished(database, NOW)


@pytest.mark.slow
def test_only_the_attempt_that_met_a_fault_gives_its_run_back(
    database: Database, run_id: str
) -> None:
    first = claim(database, run_id)
    leases.give_back(database, first, NOW)
    claim(database, run_id)
    fault = leases.HostFault("id_a", "a", "no space left")
    leases.give_back_for_host(database, first, fault, (), NOW)
    assert (row(database, run_id).state, row(database, run_id).attempt) == ("running", 2)


def test_a_run_is_untried_while_a_host_that_takes_runs_has_met_no_fault_at_it(
    database: Database, run_id: str
) -> None:
    def is_untried(host: str) -> bool:
        return leases.is_untried(database, run_id, f"id_{host}", NOW)

    columns = {"hostname": "h", "pid": 1, "slots": 1}
    leases.register(database, "a", now=NOW, host_id="id_a", **columns)
    assert not is_untried("a"), "it is the only host"
    leases.register(database, "gone", now=NOW - 60, host_id="id_gone", **columns)
    leases.register(database, "other", now=NOW, host_id="id_c", job_id="of another job", **columns)
    assert not is_untried("a")
    leases.register(database, "b", now=NOW, host_id="id_b", **columns)
    assert is_untried("a")
    give_back(database, run_id, "a")
    assert not is_untried("b"), "the other has tried"
    leases.set_fault(database, "b", "no space left", NOW)
    assert not is_untried("a")


@pytest.mark.slow
def test_the_fault_of_a_workers_host_is_marked(database: Database) -> None:
    known = {"host_id": "h", "hostname": "a", "pid": 1, "slots": 1}
    leases.register(database, WORKER, now=NOW, **known)
    marked = select(workers.c.fault, workers.c.fault_at)
    leases.set_fault(database, WORKER, "no space left", NOW)
    assert [tuple(each) for each in database.rows(marked)] == [("no space left", NOW)]
    leases.set_fault(database, WORKER, "no git", NOW + 9)
    assert [tuple(each) for each in database.rows(marked)] == [("no git", NOW)]
    leases.set_fault(database, WORKER, None)
    assert [tuple(each) for each in database.rows(marked)] == [(None, None)]


def test_a_postponed_run_is_not_due_until_then(database: Database, run_id: str) -> None:
    run = due_runs.look_at(database, run_id, NOW)
    assert run is not None
    due_runs.postpone(database, run, NOW + 0.2)
    assert due_runs.look_at(database, run_id, NOW + 0.1) is None
    assert due_runs.due_to_notify(database, 9, NOW + 0.1) == []
    assert due_runs.due_to_notify(database, 9, NOW + 0.2) == [run_id]

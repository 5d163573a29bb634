"""Workers as they are listed, and the states to show of runs that no worker works."""

from __future__ import annotations

from sqlalchemy import update

from runner.core.run import LEASE_SECONDS
from runner.queries.jobs import item_runs, list_runs
from runner.queries.workers import backlog, list_workers, shown_states, shown_states_by_job
from runner.store import jobs as jobs_store
from runner.store import leases
from runner.store.database import Database
from runner.store.tables import workers
from tests.store.attempts import WORKER, add_worker, claim, run_row, submit_one
from tests.store.examples import NOW, submission

LATER = NOW + LEASE_SECONDS + 1


def test_a_worker_is_listed_with_its_state_and_what_it_has_in_hand(database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id)
    (worker,) = list_workers(database, NOW)
    assert (worker["id"], worker["hostname"], worker["slots"]) == (WORKER, "here", 1)
    assert (worker["state"], worker["runs"], worker["heartbeat_at"]) == ("alive", [run_id], NOW)
    broken = update(workers).values(fault="no space left", fault_at=NOW)
    database.execute(broken)
    assert [each["state"] for each in list_workers(database, NOW)] == ["faulty"]
    leases.drain(database, WORKER, NOW + 1)
    (worker,) = list_workers(database, NOW + 1)
    assert (worker["state"], worker["draining_at"]) == ("draining", NOW + 1)


def test_only_workers_that_are_alive_are_listed_unless_all_are_wanted(database: Database) -> None:
    add_worker(database)
    assert list_workers(database, LATER) == []
    assert [each["state"] for each in list_workers(database, LATER, ended=True)] == ["dead"]
    leases.end(database, WORKER, NOW)
    assert list_workers(database, NOW) == []
    assert [each["state"] for each in list_workers(database, NOW, ended=True)] == ["ended"]


def test_a_due_run_is_shown_without_a_worker_as_long_as_none_is_alive(database: Database) -> None:
    run_id = submit_one(database)
    job_id = run_row(database, run_id).job_id
    assert shown_states(database, NOW, [run_id]) == {run_id: "queued (no worker alive)"}
    assert shown_states_by_job(database, NOW)[job_id] == {("queued", "queued (no worker alive)"): 1}
    assert shown_states(database, NOW - 1, [run_id]) == {}, "it is not due yet"
    add_worker(database)
    assert shown_states(database, NOW, [run_id]) == {}
    assert not shown_states_by_job(database, NOW)


def test_a_run_of_a_dead_worker_is_not_shown_as_running(database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id)
    assert shown_states(database, NOW, [run_id]) == {}
    assert shown_states(database, LATER, [run_id]) == {run_id: "interrupted (no worker alive)"}
    other = {"hostname": "there", "host_id": "other", "pid": 2, "slots": 1, "version": "1"}
    leases.register(database, "worker_2", now=LATER, **other)
    assert shown_states(database, LATER, [run_id]) == {run_id: "interrupted"}


def test_the_backlog_is_what_is_due(database: Database) -> None:
    assert backlog(database, NOW) == backlog(database, 0)
    assert backlog(database, NOW).oldest_due_at is None
    jobs_store.submit(database, submission("a", "b"), NOW)
    assert (backlog(database, NOW - 1).runs, backlog(database, NOW + 9).runs) == (0, 2)
    assert backlog(database, NOW + 9).oldest_due_at == NOW


def test_runs_are_listed_page_by_page_in_the_order_of_items(database: Database) -> None:
    job_id = jobs_store.submit(database, submission("c", "a", "b"), NOW)
    whole = list_runs(database, job_id)
    first = item_runs(database, job_id, limit=2)
    rest = item_runs(database, job_id, after=first[-1], limit=2)
    paged = [run for ids in (first, rest) for run in list_runs(database, job_id, among=ids)]
    assert paged == whole
    assert [run["item_key"] for run in paged] == ["c", "a", "b"]
    trees = item_runs(database, job_id, whole_trees=True, limit=9)
    assert list_runs(database, job_id, whole_trees=True, among=trees) == whole
    assert item_runs(database, job_id, "failed", limit=2) == []

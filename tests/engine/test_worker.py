"""A whole worker, in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select, update

import runner
from runner import wiring
from runner.core.commands import Target
from runner.core.run import ALL_RUNS, Assignment
from runner.engine.worker import WATCH_SECONDS, Worker, _Held
from runner.errors import HostFaultError
from runner.ports import Interrupt
from runner.queries.workers import list_workers
from runner.settings import Settings
from runner.store import due_runs, jobs
from runner.store.control import cancel, pause, resume
from runner.store.database import Database
from runner.store.migrate import HEAD
from runner.store.tables import runs as run_table
from tests.engine.test_attempt import scripted
from tests.store.attempts import claim
from tests.store.children.family import asks, start
from tests.store.examples import NOW, submission


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.load({}, home=str(tmp_path / "home"))


@pytest.fixture
def store(settings: Settings) -> Iterator[Database]:
    database = wiring.open_database(settings, upgrade=True)
    yield database
    database.close()


@pytest.fixture
def worker(settings: Settings, store: Database) -> Iterator[Worker]:
    worker = wiring.start_worker(settings, store, slots=2)
    yield worker
    worker.drain()
    assert worker.wait(60)
    assert worker.failure is None


def row(store: Database, run_id: str) -> Any:
    query = select(run_table).where(run_table.c.id == run_id)
    return store.read(lambda connection: connection.execute(query).one())


@pytest.mark.slow
def test_a_second_queue_message_of_a_run_leaves_the_first_alone(
    worker: Worker, store: Database
) -> None:
    spec = scripted({"text": "Done."})
    job_id = jobs.submit(store, submission("one", spec=spec), time.time() + 3600)
    query = select(run_table.c.id).where(run_table.c.job_id == job_id)
    run_id = store.read(lambda connection: connection.execute(query).scalar_one())
    first = _Held(1, Interrupt())
    worker._held[run_id] = first
    now = time.time()
    due = update(run_table).where(run_table.c.id == run_id).values(due_at=now, rung_at=now)
    store.write(lambda connection: connection.execute(due))
    worker._handle(run_id)
    assert worker._held[run_id] is first
    assert row(store, run_id).state == "queued"
    assert row(store, run_id).due_at > now, "it is looked at again soon"
    del worker._held[run_id]
    while row(store, run_id).state != "succeeded":
        assert not worker.wait(0.05)


@pytest.mark.slow
def test_a_run_that_no_thread_works_on_is_given_back(worker: Worker, store: Database) -> None:
    spec = scripted({"text": "Done."})
    jobs.submit(store, submission("one", spec=spec), time.time() + 3600)
    (run_id,) = due_runs.due_to_notify(store, 9, time.time() + 7200)
    run = due_runs.look_at(store, run_id, time.time() + 7200)
    assert run is not None
    assert due_runs.claim(store, run, worker.id, time.time() + 7200) is not None
    while row(store, run_id).state != "succeeded":
        assert not worker.wait(0.05)
    assert row(store, run_id).attempt == 2


@pytest.mark.slow
def test_a_burst_does_not_end_before_it_has_looked_again_at_a_run_that_it_postponed(
    settings: Settings, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes of its last attempt are still on their way out at the first look; several looks at what is
    due come before the second."""
    monkeypatch.setattr("runner.engine.worker.QUIET_SECONDS", 3 * WATCH_SECONDS)
    quiet = iter([False])
    monkeypatch.setattr(Worker, "_is_quiet", lambda worker, run: next(quiet, True))
    job_id = jobs.submit(store, submission("one", spec=scripted({"text": "Done."})), time.time())
    worker = wiring.start_worker(settings, store, 1, Assignment(burst=True))
    assert worker.wait(60)
    assert worker.failure is None
    (run,) = store.rows(select(run_table).where(run_table.c.job_id == job_id))
    assert run.state == "succeeded"


@pytest.mark.slow
def test_a_worker_that_cannot_leave_properly_still_ends(
    settings: Settings, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = wiring.start_worker(settings, store, slots=1)

    def fail(*_: object) -> None:
        raise ValueError("no way out")

    monkeypatch.setattr("runner.engine.worker.leases.end", fail)
    worker.drain()
    assert worker.wait(60)
    assert isinstance(worker.failure, ValueError)


@pytest.mark.slow
def test_a_worker_that_ends_for_want_of_what_its_host_lacks_says_so_without_a_traceback(
    settings: Settings, store: Database, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    worker = wiring.start_worker(settings, store, slots=1)
    monkeypatch.setattr(worker, "_look_for_lost_runs", fail)
    assert worker.wait(60)
    assert isinstance(worker.failure, HostFaultError)
    assert "as this host cannot work (can't start new thread)" in str(worker.failure)
    assert not [each for each in caplog.records if each.exc_info]


@pytest.mark.slow
def test_a_worker_that_drains_does_not_wait_for_what_is_being_indexed(
    settings: Settings, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.engine.worker.INDEX_SECONDS", 0.01)
    began, goes_on = threading.Event(), threading.Event()

    def follow(_self: Any) -> int:
        began.set()
        goes_on.wait()
        return 0

    monkeypatch.setattr("runner.queries.search.sqlite.SqliteIndex.follow", follow)
    worker = wiring.start_worker(settings, store, slots=1)
    assert began.wait(60)
    worker.drain()
    assert worker.wait(60)
    assert worker.failure is None
    goes_on.set()


@pytest.mark.slow
def test_a_parent_begins_when_nothing_of_its_ended_sub_agents_runs_any_more(
    store: Database,
) -> None:
    """One that was cancelled a moment ago may still write in its parent's folder; those that go on may."""
    run_id = start(store, asks(1), asks(2)).state.run_id
    claim(store, f"{run_id}.2")
    cancel(store, Target("run", f"{run_id}.1"), NOW)
    pause(store, Target("run", run_id), NOW)
    resume(store, Target("run", run_id), NOW)
    run = due_runs.look_at(store, run_id, NOW)
    assert run is not None
    busy = {f"{run_id}.1", f"{run_id}.2"}
    here = SimpleNamespace(
        database=store, locks=SimpleNamespace(host_id="host"), quiet=lambda each: each not in busy
    )
    working = SimpleNamespace(_machine=here)
    assert not Worker._is_quiet(working, run)
    busy.remove(f"{run_id}.1")
    assert Worker._is_quiet(working, run)


@pytest.mark.slow
def test_a_worker_says_its_version_and_that_it_drains(
    worker: Worker, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    (listed,) = list_workers(store, time.time())
    assert (listed["state"], listed["version"]) == ("alive", f"{runner.__version__}/{HEAD}")
    ended = threading.Event()
    monkeypatch.setattr(worker._queue_side, "stop", lambda: ended.wait(60))  # a run is in hand
    stop = type(worker._queue_side).stop
    worker.drain()
    while list_workers(store, time.time())[0]["state"] != "draining":
        assert not worker.wait(0.05)
    stop(worker._queue_side)
    ended.set()
    assert worker.wait(60)
    assert [each["state"] for each in list_workers(store, time.time(), ended=True)] == ["ended"]


def test_a_worker_that_takes_a_stale_queue_message_works_what_is_next_by_now(
    store: Database,
) -> None:
    asked, first = (jobs.submit(store, submission(), NOW) for _ in range(2))
    run_ids = {run.job_id: run.id for run in store.rows(select(run_table))}
    run_id = run_ids[asked]
    now = time.time()
    fresh = update(run_table).where(run_table.c.id == run_id).values(rung_at=now)
    here = SimpleNamespace(database=store, clock=SimpleNamespace(now=lambda: now))
    next_up = SimpleNamespace(next_instead_of=lambda stale: run_ids[first])
    working = SimpleNamespace(_machine=here, _dispatcher=next_up, _assigned=ALL_RUNS)
    chosen = Worker._look_at(working, run_id)
    assert chosen is not None
    assert chosen.id == run_ids[first]
    store.execute(fresh)
    chosen = Worker._look_at(working, run_id)
    assert chosen is not None
    assert chosen.id == run_id

"""The dispatcher over a real database: which runs it notifies of, and whose runs it takes."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import select, update

from runner.core.budget import Budget
from runner.core.run import LEASE_SECONDS, Author
from runner.core.times import Moment, Times
from runner.core.workspace import Workspace
from runner.engine.dispatcher import OUTAGE_SECONDS, Dispatcher
from runner.errors import UnreachableError
from runner.logs import Outage
from runner.ports import Observer
from runner.store import due_runs, jobs, leases, schedules
from runner.store.database import Database
from runner.store.host_locks import HostLocks
from runner.store.notices import DueNotice
from runner.store.tables import jobs as job_table
from runner.store.tables import runs as run_table
from tests.store.attempts import claim, run_row, submit_one
from tests.store.children.family import asks, end, start
from tests.store.examples import NOW, SPEC, submission

pytestmark = pytest.mark.dialect


class Time:
    """``runner.ports.Clock``, set by the test."""

    def __init__(self) -> None:
        self.seconds = NOW

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds


class Bell:
    """Records the runs it was notified of; ``broken`` makes it as unreachable as a queue can be."""

    def __init__(self) -> None:
        self.notified: list[str] = []
        self.broken = False

    def notify(self, run_ids: Sequence[str]) -> None:
        if self.broken:
            raise UnreachableError("the queue does not answer")
        self.notified += run_ids


class Post:
    """A worker's dispatcher and what is around it."""

    def __init__(
        self, database: Database, folder: Path, worker_id: str = "worker_me", now: float = NOW
    ) -> None:
        self.database = database
        self.time = Time()
        self.time.seconds = now
        self.notifier = Bell()
        self.locks = HostLocks(folder)
        self.slots = 2
        self.offered: list[str] = []
        self.seen: set[str] = set()
        self.told: list[DueNotice] = []
        self.register(worker_id, self.locks.host_id)
        machine = SimpleNamespace(
            database=database,
            notifier=self.notifier,
            locks=self.locks,
            clock=self.time,
            visible=lambda path, identity: identity in self.seen,
            send=self.told.append,
            observer=Observer(),
            queue_outage=Outage("Redis", logging.getLogger()),
        )
        self.renewed_at = now
        self.dispatcher = Dispatcher(
            machine, self, worker_id, unrenewed_for=lambda: self.time.now() - self.renewed_at
        )

    @property
    def free_slots(self) -> int:
        return self.slots - len(self.offered)

    def offer(self, run_id: str) -> bool:
        if len(self.offered) >= self.slots:
            return False
        self.offered.append(run_id)
        return True

    def register(self, worker_id: str, host_id: str) -> None:
        leases.register(
            self.database,
            worker_id,
            host_id=host_id,
            hostname="here",
            pid=1,
            slots=2,
            now=self.time.now(),
        )

    def held_elsewhere(self, worker_id: str, host_id: str = "elsewhere") -> str:
        """A run that another worker holds."""
        self.register(worker_id, host_id)
        jobs.submit(self.database, submission(), self.time.now())
        query = select(run_table.c.id).order_by(run_table.c.id.desc())
        run_id: str = self.database.read(lambda c: c.execute(query).scalars().first()) or ""
        run = due_runs.look_at(self.database, run_id, self.time.now())
        assert run is not None
        assert due_runs.claim(self.database, run, worker_id, self.time.now()) is not None
        return run_id

    def state(self, run_id: str) -> str:
        query = select(run_table.c.state).where(run_table.c.id == run_id)
        return self.database.read(lambda c: str(c.execute(query).scalar_one()))

    def pass_at(self, seconds: float) -> None:
        """A pass of a worker that has renewed its leases."""
        self.renewed_at = NOW + seconds
        self.stalled_pass_at(seconds)

    def stalled_pass_at(self, seconds: float) -> None:
        """A pass of a worker that cannot renew them."""
        self.time.seconds = NOW + seconds
        self.dispatcher.dispatch()


@pytest.fixture
def post(database: Database, tmp_path: Path) -> Post:
    return Post(database, tmp_path / "locks")


@pytest.mark.slow
def test_a_pass_that_meets_a_fault_of_the_host_is_not_the_last(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping, faults = threading.Event(), list[str]()

    def refuse(worker_id: str) -> bool:
        if len(faults) == 2:
            stopping.set()
            return False
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    post.held_elsewhere("worker_other", post.locks.host_id)
    monkeypatch.setattr(post.locks, "is_dead", refuse)
    post.dispatcher.report_fault = faults.append
    post.dispatcher.run(stopping)
    assert [fault.endswith("Too many open files") for fault in faults] == [True, True]


def test_it_notifies_at_most_twice_the_free_slots_and_for_nobody_twice(post: Post) -> None:
    jobs.submit(post.database, submission(*"abcdef"), NOW)
    post.pass_at(0)
    assert len(post.notifier.notified) == 4
    post.pass_at(1)
    assert len(post.notifier.notified) == len(set(post.notifier.notified)) == 6


@pytest.mark.slow
def test_a_lost_queue_message_is_sent_again(post: Post) -> None:
    jobs.submit(post.database, submission("a"), NOW)
    for seconds in range(17):
        post.pass_at(seconds)
    assert len(post.notifier.notified) == 2


@pytest.mark.slow
def test_without_the_queue_runs_are_worked_here(post: Post) -> None:
    jobs.submit(post.database, submission(*"abc"), NOW)
    post.notifier.broken = True
    post.pass_at(0)
    assert len(post.offered) == 2
    post.notifier.broken = False
    post.offered.clear()
    post.pass_at(1)
    assert len(post.notifier.notified) == 1, "the third was not stamped as notified"


@pytest.mark.slow
def test_an_expired_lease_is_taken_by_any_host(post: Post) -> None:
    run_id = post.held_elsewhere("worker_other")
    for seconds in range(14):
        post.pass_at(seconds)
    assert post.state(run_id) == "running"
    post.pass_at(15.5)
    assert post.state(run_id) == "queued"


@pytest.mark.slow
def test_a_renewed_lease_is_not_taken(post: Post) -> None:
    run_id = post.held_elsewhere("worker_other")
    for seconds in range(40):
        leases.renew(post.database, "worker_other", post.time.now())
        post.pass_at(seconds)
    assert post.state(run_id) == "running"


@pytest.mark.slow
def test_after_an_outage_others_get_a_lease_to_renew(post: Post) -> None:
    run_id = post.held_elsewhere("worker_other")
    for seconds in range(8):
        post.pass_at(seconds)
    # The database was away for everybody, and all leases have expired meanwhile.
    post.pass_at(60)
    assert post.state(run_id) == "running"
    for seconds in range(61, 74):
        post.pass_at(seconds)
    assert post.state(run_id) == "running"
    post.pass_at(60 + LEASE_SECONDS)
    assert post.state(run_id) == "queued"


def test_a_worker_that_could_not_renew_lets_others_renew_first(post: Post) -> None:
    """Writes stall for everybody, and reads do not: a slow disk, or a long transaction on SQLite."""
    run_id = post.held_elsewhere("worker_other")
    post.pass_at(0)
    post.pass_at(5)
    for seconds in range(6, 23):
        post.stalled_pass_at(seconds)
    post.pass_at(23)
    assert post.state(run_id) == "running"
    leases.renew(post.database, "worker_other", post.time.now())
    for seconds in range(24, 38):
        post.pass_at(seconds)
    assert post.state(run_id) == "running"
    post.pass_at(23 + LEASE_SECONDS + 1)
    assert post.state(run_id) == "queued"


def test_a_new_dispatcher_lets_others_renew_first(database: Database, tmp_path: Path) -> None:
    run_id = Post(database, tmp_path / "locks").held_elsewhere("worker_other")
    late = Post(database, tmp_path / "late", "worker_late", NOW + 100)
    late.pass_at(100 + OUTAGE_SECONDS - 1)
    assert late.state(run_id) == "running"
    late.pass_at(100 + OUTAGE_SECONDS)
    assert late.state(run_id) == "queued"


def test_a_dead_neighbours_runs_are_taken_at_once(post: Post) -> None:
    run_id = post.held_elsewhere("worker_dead", post.locks.host_id)
    (post.locks.folder / "worker_dead.lock").touch()
    post.pass_at(0)
    assert post.state(run_id) == "queued"


def test_a_living_neighbours_runs_are_left_alone(post: Post) -> None:
    run_id = post.held_elsewhere("worker_alive", post.locks.host_id)
    neighbour = HostLocks(post.locks.folder)
    neighbour.hold("worker_alive")
    post.pass_at(0)
    assert post.state(run_id) == "running"
    neighbour.release("worker_alive")


def test_only_a_worker_that_sees_the_workspace_takes_its_run_up(post: Post) -> None:
    spec = replace(SPEC, workspace=Workspace("/somewhere"))
    jobs.submit(post.database, submission("a", spec=spec), NOW, None, "ws_1")
    (run_id,) = due_runs.due_to_notify(post.database, 9, NOW)
    run = due_runs.look_at(post.database, run_id, NOW)
    assert run is not None
    due_runs.wait_for_workspace(post.database, run, NOW)
    post.pass_at(1)
    assert (post.state(run_id), post.offered) == ("waiting", [])
    post.seen.add(run.workspace_id or "")
    post.pass_at(2)
    assert (post.state(run_id), post.offered, post.notifier.notified) == ("queued", [run_id], [])


def test_a_run_that_waits_since_finish_by_is_queued_when_that_was_moved(post: Post) -> None:
    times = Times(finish_by=Moment("", "UTC", NOW + 60.0))
    run_id = submit_one(post.database, spec=replace(SPEC, times=times))
    claim(post.database, run_id, NOW + 60)
    post.pass_at(61)
    assert post.state(run_id) == "waiting"
    post.database.execute(update(job_table).values(finish_by=NOW + 90.0))
    post.pass_at(62)
    assert post.state(run_id) == "queued"


def test_a_schedule_fires_when_it_is_due(post: Post) -> None:
    cron = schedules.Cron("* * * * *", "UTC")
    schedules.add(post.database, submission(), cron, None, NOW, Author("ada"))
    due = cron.next_after(NOW) - NOW
    post.pass_at(due - 1)
    assert post.notifier.notified == []
    post.pass_at(due)
    assert len(post.notifier.notified) == 1


def test_a_run_that_waits_for_its_budget_is_queued_to_end_at_its_deadline(post: Post) -> None:
    limits = replace(SPEC.limits, deadline=60.0)
    spec = replace(SPEC, limits=limits, budget=Budget(tokens=1))
    run_id = submit_one(post.database, spec=spec)
    claim(post.database, run_id)
    post.pass_at(59)
    assert post.state(run_id) == "waiting"
    post.pass_at(61)
    assert post.state(run_id) == "queued"
    assert run_id in post.notifier.notified


@pytest.mark.slow
def test_a_pass_notifies_of_a_parent_whose_children_have_ended_unseen(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who ended the last of them died before it could wake the parent."""
    parent = start(database, asks(1)).state.run_id
    with monkeypatch.context() as dead:
        dead.setattr("runner.store.journal.wake", lambda *arguments: False)
        end(database, f"{parent}.1")
    post = Post(database, tmp_path)
    post.dispatcher.dispatch()
    assert post.notifier.notified == [parent]


def test_a_pass_cancels_what_a_run_that_has_failed_had_started(
    database: Database, tmp_path: Path
) -> None:
    parent = start(database, asks(1)).state.run_id
    failed = {"state": "failed", "reason": "crash_loop", "ended_at": NOW}
    change = update(run_table).where(run_table.c.id == parent).values(**failed)
    database.write(lambda connection: connection.execute(change))
    Post(database, tmp_path).dispatcher.dispatch()
    assert run_row(database, f"{parent}.1").state == "cancelled"


def held_here(post: Post, count: int) -> str:
    """Submit a job of eight runs, claim ``count`` of them here, and return the job's id."""
    job_id = jobs.submit(post.database, submission(*"abcdefgh"), NOW)
    for run_id in due_runs.due_to_notify(post.database, count, NOW):
        run = due_runs.look_at(post.database, run_id, NOW)
        assert run is not None
        assert due_runs.claim(post.database, run, "worker_me", NOW) is not None
    return job_id


@pytest.mark.slow
def test_runs_of_a_job_above_its_share_yield_once_another_has_waited_ten_seconds(
    post: Post,
) -> None:
    large = held_here(post, 4)
    small = jobs.submit(post.database, submission("x"), NOW)
    post.slots = 0
    for second in range(10):
        post.pass_at(second)
        assert not post.dispatcher.yields(large), f"after {second} s"
    post.pass_at(10)
    assert (post.dispatcher.yields(large), post.dispatcher.yields(small)) == (True, False)
    post.dispatcher.has_yielded(large)
    assert not post.dispatcher.yields(large), "one run is due: one slot is enough"


@pytest.mark.slow
def test_nobody_yields_while_a_slot_is_free(post: Post) -> None:
    large = held_here(post, 4)
    for second in range(15):
        jobs.submit(post.database, submission("x"), NOW + second)
        post.pass_at(second)
    assert not post.dispatcher.yields(large)


def test_in_place_of_a_stale_queue_message_comes_what_is_next_by_now(post: Post) -> None:
    jobs.submit(post.database, submission(*"abc"), NOW)
    post.pass_at(0)
    stale, *_ = post.notifier.notified
    run = due_runs.look_at(post.database, stale, NOW + 2)
    assert run is not None
    assert not run.is_stale(NOW + 2)
    assert run.is_stale(NOW + 2.1)
    assert run.is_stale(NOW - 2.1), "the clock was set back"
    other = jobs.submit(post.database, submission("x"), NOW)
    first = post.dispatcher.next_instead_of(stale) or ""
    assert run_row(post.database, first).job_id == other
    assert post.dispatcher.next_instead_of(first) == first, "it is still the next one"

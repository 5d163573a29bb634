"""Runs are locked before jobs, and jobs by id: nobody locks another out of a budget."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, select, update

from runner.core.budget import Budget
from runner.core.commands import Reply, Target
from runner.core.run import Author
from runner.core.steps import CallModel
from runner.errors import LeaseLost
from runner.permissions import Rule
from runner.store import budgets, caps, leases
from runner.store import due_runs as runs_store
from runner.store.approvals import answer, apply_new_rules
from runner.store.budgets import budget_of, set_budget
from runner.store.changes import locked_runs
from runner.store.children import attend
from runner.store.control import cancel, pause, resume
from runner.store.database import Database
from runner.store.new_children import lock_tree
from runner.store.retry import retry
from runner.store.tables import runs
from tests.postgres import waiting_for_locks
from tests.store.asked import add_rules, answers, ask, priced, submit_budgeted
from tests.store.attempts import WORKER, add_worker, claim, run_row, text
from tests.store.children.family import PARENT, asks, end, start, submit_parent, tree_of
from tests.store.examples import NOW

# SQLite has one writer: nothing happens while it writes.
pytestmark = pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)


def budget_of_who_waits(
    database: Database,
    open_database: Callable[[], Database],
    *,
    held: Callable[[Connection], Any],
    meanwhile: Callable[[Database], Any],
    job_id: str,
) -> None:
    """Hold something, let another wait for it, and lock the budget of a job then: the other must not
    have it."""
    other, watcher = open_database(), open_database()

    def work(connection: Connection) -> Future[Any]:
        held(connection)
        waits = pool.submit(meanwhile, other)
        while not waiting_for_locks(watcher):
            assert not waits.done()
        assert budgets.look_into(connection, job_id, lock=True) is not None
        return waits

    with ThreadPoolExecutor(1) as pool:
        database.write(work).result()


def remembers(database: Database, asked: str) -> None:
    answer(database, [asked], Reply("approved", "ada", remember="job"), NOW)


def looks_again(database: Database, asked: str) -> None:
    apply_new_rules(database, NOW)


@pytest.mark.parametrize("changes_rules", [remembers, looks_again])
def test_who_has_a_run_gets_the_budget_while_questions_are_answered(
    database: Database,
    open_database: Callable[[], Database],
    changes_rules: Callable[[Database, str], None],
) -> None:
    job_id, (run_id,) = submit_budgeted(database, "a", tokens=90_000)
    (asked,) = ask(database, run_id, "uv lock")
    add_rules(database, job_id, Rule("deny", "Bash(uv sync)"))
    budget_of_who_waits(
        database,
        open_database,
        held=lambda connection: locked_runs(connection, [run_id]),
        meanwhile=lambda other: changes_rules(other, asked),
        job_id=job_id,
    )
    remembers(database, asked)
    assert answers(database, [asked]) == ["approved"]


def test_who_has_a_run_gets_the_budget_while_the_runs_of_its_job_are_cancelled(
    database: Database, open_database: Callable[[], Database]
) -> None:
    job_id, (first, second) = submit_budgeted(database, "a", "b", tokens=90_000)
    for run_id in (first, second):
        assert isinstance(claim(database, run_id).effect, CallModel)
    budget_of_who_waits(
        database,
        open_database,
        held=lambda connection: locked_runs(connection, [second]),
        meanwhile=lambda other: cancel(other, Target("job", job_id), NOW),
        job_id=job_id,
    )
    assert run_row(database, second).state == "cancelled"


def test_who_has_a_run_gets_the_budget_while_its_budget_is_raised(
    database: Database, open_database: Callable[[], Database]
) -> None:
    job_id, (run_id,) = submit_budgeted(database, "a", tokens=2_000)
    claim(database, run_id)
    assert run_row(database, run_id).reason == "budget"
    budget_of_who_waits(
        database,
        open_database,
        held=lambda connection: locked_runs(connection, [run_id]),
        meanwhile=lambda other: set_budget(other, job_id, NOW, author=Author("ada"), tokens=90_000),
        job_id=job_id,
    )
    assert run_row(database, run_id).state == "queued"


def test_budgets_of_a_dead_worker_s_runs_are_locked_in_order(
    database: Database, open_database: Callable[[], Database]
) -> None:
    first_job, (begun_afresh,) = submit_budgeted(database, "a", tokens=90_000)
    second_job, (older,) = submit_budgeted(database, "a", tokens=90_000)
    assert first_job < second_job
    cancel(database, Target("run", begun_afresh), NOW)
    (change,) = retry(database, Target("run", begun_afresh), NOW, fresh=True)
    assert older < change.id
    for run_id in (older, change.id):
        assert isinstance(claim(database, run_id).effect, CallModel)
    budget_of_who_waits(
        database,
        open_database,
        held=lambda connection: budgets.look_into(connection, first_job, lock=True),
        meanwhile=lambda other: leases.take_from(other, [WORKER], NOW),
        job_id=second_job,
    )
    for job_id in (first_job, second_job):
        left = budget_of(database, job_id)
        assert left is not None
        assert left.reserved_tokens == 0 < left.spent_tokens


def test_the_cap_of_the_day_is_locked_after_the_budgets_of_all_jobs(
    database: Database, open_database: Callable[[], Database]
) -> None:
    """A worker that dies with runs of two jobs: whoever has the budget of one gets the cap."""
    caps.set_cap(database, NOW, 50.0, "UTC", 0, author=Author("ada"))
    jobs = [submit_budgeted(database, "a", tokens=90_000) for _ in range(2)]
    for _, (run_id,) in jobs:
        assert isinstance(claim(database, run_id, NOW, priced).effect, CallModel)
    other, watcher = open_database(), open_database()

    def work(connection: Connection) -> Future[Any]:
        assert budgets.look_into(connection, jobs[1][0], lock=True) is not None
        waits = pool.submit(leases.take_from, other, [WORKER], NOW)
        while not waiting_for_locks(watcher):
            assert not waits.done()
        assert caps.lock_cap(connection, NOW) is not None
        return waits

    with ThreadPoolExecutor(1) as pool:
        assert len(database.write(work).result()) == 2


def test_budgets_of_orphans_of_several_jobs_are_locked_in_order(
    database: Database, open_database: Callable[[], Database]
) -> None:
    """The younger run is of the older job."""
    spec = replace(PARENT, budget=Budget(tokens=5_000_000))
    begun_afresh = submit_parent(database, spec)
    older = submit_parent(database, spec)
    first_job, second_job = (run_row(database, each).job_id for each in (begun_afresh, older))
    cancel(database, Target("run", begun_afresh), NOW)
    (change,) = retry(database, Target("run", begun_afresh), NOW, fresh=True)
    assert first_job < second_job
    assert older < change.id
    for run_id in (older, change.id):
        start(database, asks(1), run_id=run_id)
        assert isinstance(claim(database, f"{run_id}.1").effect, CallModel)
        failed = {"state": "failed", "reason": "crash_loop", "ended_at": NOW}
        ended = update(runs).where(runs.c.id == run_id).values(**failed)
        database.write(lambda connection, ended=ended: connection.execute(ended))  # type: ignore[misc]
    budget_of_who_waits(
        database,
        open_database,
        held=lambda connection: budgets.look_into(connection, first_job, lock=True),
        meanwhile=lambda other: attend(other, NOW),
        job_id=second_job,
    )
    for run_id in (older, change.id):
        assert run_row(database, f"{run_id}.1").state == "cancelled"


def test_an_orphan_whose_parent_is_being_taken_up_again_waits_for_that(
    database: Database, open_database: Callable[[], Database]
) -> None:
    run_id = start(database, asks(1)).state.run_id
    failed = {"state": "failed", "reason": "workspace", "ended_at": NOW}
    queued = {"state": "queued", "reason": "", "ended_at": None, "due_at": NOW}
    of_parent = update(runs).where(runs.c.id == run_id)
    database.write(lambda connection: connection.execute(of_parent.values(**failed)))
    other, watcher = open_database(), open_database()

    def work(connection: Connection) -> Future[Any]:
        locked_runs(connection, [run_id])
        waits = pool.submit(attend, other, NOW)
        while not waiting_for_locks(watcher):
            assert not waits.done()
        connection.execute(of_parent.values(**queued))
        return waits

    with ThreadPoolExecutor(1) as pool:
        database.write(work).result()
    assert run_row(database, f"{run_id}.1").state == "queued"


def test_who_has_the_budget_may_start_sub_agents_while_others_of_its_tree_do(
    database: Database, open_database: Callable[[], Database]
) -> None:
    """Only so many may be in a tree: who starts some has its own run and the budget before it looks."""
    spec = replace(PARENT, budget=Budget(tokens=5_000_000))
    root = start(database, asks(1), asks(2), spec=spec).state.run_id
    job_id = run_row(database, root).job_id
    first, second = (claim(database, f"{root}.{number}") for number in (1, 2))
    second.database = other = open_database()
    watcher = open_database()

    def work(connection: Connection) -> Future[Any]:
        locked_runs(connection, [f"{root}.1"])
        assert budgets.look_into(connection, job_id, lock=True) is not None
        waits = pool.submit(second.reply, asks(3), stop="tool_use")
        while not waiting_for_locks(watcher):
            assert not waits.done()
        lock_tree(connection, f"{root}.1")
        return waits

    with ThreadPoolExecutor(1) as pool:
        database.write(work).result()
    first.reply(asks(4), stop="tool_use")
    assert {f"{root}.1.1", f"{root}.2.1"} <= set(tree_of(other, root))


def test_families_that_start_end_and_are_steered_at_once_lock_nobody_out(
    database: Database, open_database: Callable[[], Database]
) -> None:
    """A deadlock would be told as a database that does not answer."""
    spec = replace(PARENT, budget=Budget(tokens=50_000_000))
    root = start(database, *map(asks, range(6)), spec=spec).state.run_id
    children = [f"{root}.{number}" for number in range(1, 7)]

    def lives(child: str) -> None:
        own = open_database()
        with suppress(LeaseLost, AssertionError):  # it was paused or cancelled meanwhile
            claim(own, child).reply(asks(1), asks(2), stop="tool_use")
            for below in (f"{child}.1", f"{child}.2"):
                end(own, below)
            claim(own, child).reply(text("Done."))

    def steers(act: Callable[..., Any], run_id: str) -> None:
        act(open_database(), Target("run", run_id), NOW)

    with ThreadPoolExecutor(12) as pool:
        doing = [pool.submit(lives, child) for child in children]
        doing += [pool.submit(steers, act, root) for act in (pause, resume, pause, resume)]
        doing += [pool.submit(steers, cancel, child) for child in children[3:]]
        doing += [pool.submit(attend, open_database(), NOW) for _ in range(3)]
        for each in doing:
            each.result()
    cancel(database, Target("run", root), NOW)
    attend(database, NOW)
    assert run_row(database, root).state == "cancelled"
    assert {row.state for row in tree_of(database, root).values()} <= {"cancelled", "succeeded"}


def submit_due(database: Database, count: int) -> list[str]:
    """Submit a job whose runs are all notified of, and return their ids."""
    submit_budgeted(database, *map(str, range(count)), tokens=50_000_000)
    return sorted(runs_store.due_to_notify(database, count, NOW))


LONG_AFTER = NOW + 2 * runs_store.NOTIFY_AGAIN_SECONDS


def test_lost_queue_messages_are_forgotten_past_a_run_that_is_being_claimed(
    database: Database, open_database: Callable[[], Database]
) -> None:
    """Two workers that waited for each other's rows here were a deadlock."""
    held, *free = submit_due(database, 3)
    other = open_database()

    def work(connection: Connection) -> None:
        locked_runs(connection, [held])
        runs_store.forget_lost_messages(other, LONG_AFTER)
        runs_store.not_notified(other, [held])

    database.write(work)
    assert [run_row(database, each).rung_at for each in free] == [None, None]
    assert run_row(database, held).rung_at == NOW


@pytest.mark.slow
def test_a_crowd_that_claims_ends_forgets_and_reaps_waits_for_nobody_in_a_circle(
    database: Database, open_database: Callable[[], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadlock is an error here: nothing tries again."""
    monkeypatch.setattr("runner.store.database._COLLISIONS", set())
    add_worker(database)
    for _ in range(3):
        submit_due(database, 100)
    stopping = threading.Event()

    def attends() -> None:
        own = open_database()
        while not stopping.is_set():
            runs_store.forget_lost_messages(own, LONG_AFTER)
            runs_store.due_to_notify(own, 64, NOW)
            leases.take_from(own, [WORKER, "worker_2"], NOW)

    def works(run_ids: list[str]) -> None:
        own = open_database()
        for run_id in run_ids:
            with suppress(LeaseLost, AssertionError):  # a reaper was faster
                claim(own, run_id).reply(text("Done."))

    queued = select(runs.c.id).order_by(runs.c.id)
    run_ids = [row.id for row in database.rows(queued)]
    with ThreadPoolExecutor(12) as pool:
        attending = [pool.submit(attends) for _ in range(6)]
        try:
            list(pool.map(works, (run_ids[start::6] for start in range(6))))
        finally:
            stopping.set()
        for each in attending:
            each.result()


def test_a_write_that_the_server_rolls_back_for_a_deadlock_is_tried_again(
    database: Database, open_database: Callable[[], Database]
) -> None:
    run_ids = submit_due(database, 2)
    both_have_one = threading.Barrier(2, timeout=30)

    def locks(own: Database, order: list[str]) -> int:
        tries = 0

        def work(connection: Connection) -> None:
            nonlocal tries
            tries += 1
            locked_runs(connection, order[:1])
            if tries == 1:
                both_have_one.wait()
            locked_runs(connection, order[1:])

        own.write(work)
        return tries

    with ThreadPoolExecutor(2) as pool:
        orders = run_ids, run_ids[::-1]
        tries = pool.map(locks, (database, open_database()), orders)
        assert max(tries) > 1

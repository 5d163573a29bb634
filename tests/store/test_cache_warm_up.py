"""The first run of a job fills the cache before its siblings start."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, update

from runner.core.commands import Target
from runner.core.entries import ModelCallFailed
from runner.core.run import Lease
from runner.core.spec import JobSpec
from runner.store import jobs as jobs_store
from runner.store import leases
from runner.store.budgets import wake_siblings
from runner.store.changes import locked_runs
from runner.store.control import cancel, pause
from runner.store.database import Database
from runner.store.due_runs import due_to_notify, unfinished
from runner.store.retry import retry
from runner.store.tables import runs
from tests.store.asked import run_ids
from tests.store.attempts import Attempt, claim, run_row, text, tool_use
from tests.store.examples import NOW, SPEC, submission

LONG = replace(SPEC, system="Be brief. " * 500)


def submit(database: Database, *keys: str, spec: JobSpec = LONG) -> list[str]:
    return run_ids(database, jobs_store.submit(database, submission(*keys, spec=spec), NOW))


def due(database: Database, run_ids: list[str]) -> list[float | None]:
    return [run_row(database, run_id).due_at for run_id in run_ids]


def test_siblings_wait_five_seconds_at_most_for_the_first_run(database: Database) -> None:
    first, *others = submit(database, *"abc")
    assert due(database, [first, *others]) == [NOW, NOW + 5, NOW + 5]
    assert run_row(database, first).progress["model"]["warms_cache"]
    assert [run_row(database, run_id).reason for run_id in others] == ["warming"] * 2
    assert due_to_notify(database, 9, NOW + 4.9) == [first]
    assert due_to_notify(database, 9, NOW + 5) == others


def test_first_reply_lets_the_siblings_start(database: Database) -> None:
    first, *others = submit(database, *"abc")
    attempt = claim(database, first, NOW + 1)
    assert due(database, others) == [NOW + 5] * 2
    attempt.reply(tool_use(1), stop="tool_use")
    assert due(database, others) == [NOW + 1] * 2
    assert not attempt.state.model.warms_cache
    assert not run_row(database, first).progress["model"]["warms_cache"]


def test_a_worker_until_all_is_done_stays_for_siblings_that_wait_for_a_moment(
    database: Database,
) -> None:
    first, second = submit(database, *"ab")
    cancel(database, Target("run", first), NOW)
    database.write(
        lambda connection: connection.execute(
            update(runs).where(runs.c.id == second).values(reason="warming", due_at=NOW + 5)
        )
    )
    assert unfinished(database, NOW)
    cancel(database, Target("run", second), NOW)
    assert not unfinished(database, NOW)


def test_siblings_that_go_on_already_are_left_alone(database: Database) -> None:
    first, second, third = submit(database, *"abc")
    pause(database, Target("run", second), NOW)
    attempt = claim(database, first)
    going = claim(database, third, NOW + 5)
    attempt.now = NOW + 6
    attempt.reply(text("Done."))
    assert (run_row(database, second).state, run_row(database, second).due_at) == ("waiting", None)
    assert run_row(database, third).state == "running"
    going.reply(text("Done."))


@pytest.mark.parametrize("spec", [SPEC, replace(LONG, provider="scripted")], ids=["short", "free"])
def test_runs_without_a_common_prefix_to_cache_do_not_wait(
    database: Database, spec: JobSpec
) -> None:
    first, *others = submit(database, *"ab", spec=spec)
    assert due(database, [first, *others]) == [NOW, NOW]
    assert not run_row(database, first).progress["model"]["warms_cache"]


def test_one_run_warms_for_nobody(database: Database) -> None:
    (only,) = submit(database, "a")
    assert not run_row(database, only).progress["model"]["warms_cache"]


def fails(attempt: Attempt) -> None:
    attempt.fail("invalid_request_error", "no")


def backs_off(attempt: Attempt) -> None:
    attempt.append(ModelCallFailed("overloaded_error", "", 529, None, 0, NOW, NOW + 600))


def is_cancelled(attempt: Attempt) -> None:
    cancel(attempt.database, Target("run", attempt.lease.run_id), NOW)


def crashes(attempt: Attempt) -> None:
    lease = attempt.lease
    leases.give_up(attempt.database, lease, "KeyError: 1", NOW)
    claim(attempt.database, lease.run_id)
    again = Lease(lease.run_id, lease.attempt + 1, lease.worker_id)
    leases.give_up(attempt.database, again, "KeyError: 1", NOW)


@pytest.mark.parametrize("ends", [fails, backs_off, is_cancelled, crashes])
def test_first_run_that_ends_or_waits_lets_the_siblings_start(
    database: Database, ends: Callable[[Attempt], Any]
) -> None:
    first, *others = submit(database, *"abc")
    ends(claim(database, first))
    assert run_row(database, first).state != "running"
    assert due(database, others) == [NOW] * 2


def test_job_that_is_cancelled_whole_stays_cancelled(database: Database) -> None:
    runs = submit(database, *"abc")
    changes = cancel(database, Target("job", run_row(database, runs[0]).job_id), NOW)
    assert [change.changed for change in changes] == [True] * 3
    assert [run_row(database, run_id).state for run_id in runs] == ["cancelled"] * 3
    assert due(database, runs) == [None] * 3


def test_fresh_run_does_not_warm(database: Database) -> None:
    first, _ = submit(database, *"ab")
    cancel(database, Target("run", first), NOW)
    (change,) = retry(database, Target("run", first), NOW, fresh=True)
    assert not run_row(database, change.id).progress["model"]["warms_cache"]


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_first_reply_does_not_wait_for_who_holds_a_sibling(
    database: Database, open_database: Callable[[], Database]
) -> None:
    first, second, third = submit(database, *"abc")
    attempt = claim(database, first)
    attempt.database = open_database()

    def hold(connection: Connection) -> None:
        locked_runs(connection, [second])
        pool.submit(attempt.reply, text("Done.")).result(timeout=20)

    with ThreadPoolExecutor(1) as pool:
        database.write(hold)
    assert due(database, [second, third]) == [NOW + 5, NOW]


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_sibling_that_was_held_at_the_first_reply_starts_with_the_next_pass(
    database: Database, open_database: Callable[[], Database]
) -> None:
    """In the lane of batches it would wait for ten minutes."""
    first, second = submit(database, *"ab", spec=replace(LONG, lane="auto"))
    attempt = claim(database, first)
    attempt.database = open_database()
    wake_siblings(database, NOW)
    with database.writer.begin() as connection:
        locked_runs(connection, [second])
        cancel(attempt.database, Target("run", first), NOW)
        wake_siblings(attempt.database, NOW)
        assert due(database, [second]) == [NOW + 600]
    wake_siblings(database, NOW + 1)
    assert due(database, [second]) == [NOW + 1]

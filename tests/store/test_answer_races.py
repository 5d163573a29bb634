"""Several answer at the same time, while workers work."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from sqlalchemy import Connection, update

from runner.core.commands import Reply, Target
from runner.core.notices import Notify
from runner.core.spec import Asking
from runner.store import approvals as approvals_module
from runner.store.approvals import answer, apply_new_rules, expire
from runner.store.changes import locked_runs
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.notices import take_due
from runner.store.questions import announce
from runner.store.rules import lock_rules, new_snapshot
from runner.store.tables import approvals
from tests.postgres import waiting_for_locks
from tests.store.asked import (
    answer_events,
    answers,
    approval_row,
    ask,
    ask_all,
    remembered,
    run_ids,
    submit_asking,
)
from tests.store.attempts import event_types, run_row
from tests.store.examples import NOW

pytestmark = pytest.mark.dialect

T = TypeVar("T")

TOLD = Notify(on=("needs_approval",), command="tell me")
YES = Reply("approved", "ada")
NO = Reply("denied", "bo", "not today")
FOR_THE_JOB = Reply("approved", "ada", remember="job")


def race(
    database: Database,
    open_database: Callable[[], Database],
    actions: list[Callable[[Database], Any]],
) -> list[Any]:
    """What these give that are done at the same time, each over connections of its own."""
    connections = [database, *(open_database() for _ in actions[1:])]
    with ThreadPoolExecutor(len(actions)) as pool:
        futures = [pool.submit(act, each) for act, each in zip(actions, connections, strict=True)]
        return [future.result() for future in futures]


@pytest.mark.slow
def test_one_of_two_answers_wins(
    database: Database, open_database: Callable[[], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals_module, "BATCH", 3)
    job_id = submit_asking(database, *map(str, range(20)))
    asked = ask_all(database, job_id, "uv lock")
    yes, no = race(
        database,
        open_database,
        [lambda d: answer(d, asked, YES, NOW), lambda d: answer(d, asked[::-1], NO, NOW)],
    )
    won = {one.id: "approved" for one in yes if one.changed}
    lost = {one.id: "denied" for one in no if one.changed}
    assert not won.keys() & lost.keys()
    assert answers(database, asked) == [(won | lost)[one] for one in asked]
    for run_id in run_ids(database, job_id):
        assert len(answer_events(database, run_id)) == 1
        assert run_row(database, run_id).answer_count == 1


@pytest.mark.slow
def test_one_of_an_answer_an_expiry_and_a_cancel_wins(
    database: Database, open_database: Callable[[], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals_module, "BATCH", 3)
    job_id = submit_asking(database, *map(str, range(20)))
    asked = ask_all(database, job_id, "uv lock", expires_at=NOW)

    def cancel_backwards(other: Database) -> None:
        for run_id in reversed(run_ids(other, job_id)):
            cancel(other, Target("run", run_id), NOW)

    race(
        database,
        open_database,
        [
            lambda d: answer(d, asked, YES, NOW),
            lambda d: [expire(d, NOW, most=4) for _ in range(5)],
            cancel_backwards,
        ],
    )
    for run_id, one in zip(run_ids(database, job_id), asked, strict=True):
        row, run = approval_row(database, one), run_row(database, run_id)
        assert run.state == "cancelled"
        told = [event["answer"] for event in answer_events(database, run_id)]
        assert told == ([] if row.answer == "cancelled" else [row.answer])
        assert run.answer_count == len(told)
        assert event_types(database, run_id)[0] == "run_submitted"


# SQLite has one writer: nothing happens while it writes.
only_postgres = pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)


@pytest.mark.slow
@only_postgres
def test_one_of_three_wins_who_all_saw_the_question_open(
    database: Database, open_database: Callable[[], Database], run_id: str
) -> None:
    (asked,) = ask(database, run_id, "uv lock", expires_at=NOW)
    watcher = open_database()
    actions: list[Callable[[Database], Any]] = [
        lambda d: answer(d, [asked], YES, NOW - 1),
        lambda d: expire(d, NOW),
        lambda d: cancel(d, Target("run", run_id), NOW),
    ]

    def start(connection: Connection) -> list[Future[Any]]:
        locked_runs(connection, [run_id])
        started = [pool.submit(act, each) for act, each in zip(actions, others, strict=True)]
        while waiting_for_locks(watcher) < len(started):
            assert not any(future.done() for future in started)
        return started

    others = [open_database() for _ in actions]
    with ThreadPoolExecutor(len(actions)) as pool:
        for future in database.write(start):
            future.result()
    row, run = approval_row(database, asked), run_row(database, run_id)
    told = [event["answer"] for event in answer_events(database, run_id)]
    assert run.state == "cancelled"
    assert told == ([] if row.answer == "cancelled" else [row.answer])
    assert run.answer_count == len(told)


@pytest.mark.parametrize("order", [*itertools.permutations(("approved", "expired", "cancelled"))])
def test_first_of_an_answer_an_expiry_and_a_cancel_wins(
    database: Database, run_id: str, order: tuple[str, ...]
) -> None:
    (asked,) = ask(database, run_id, "uv lock", expires_at=NOW)
    actions: dict[str, Callable[[], Any]] = {
        "approved": lambda: answer(database, [asked], YES, NOW - 1),
        "expired": lambda: expire(database, NOW),
        "cancelled": lambda: cancel(database, Target("run", run_id), NOW),
    }
    for name in order:
        actions[name]()
    assert answers(database, [asked]) == [order[0]]
    assert run_row(database, run_id).state == "cancelled"


def meanwhile(database: Database, hold: Callable[[Connection], Any], act: Callable[[], T]) -> T:
    """What ``act`` gives, which must not have to wait for the transaction that holds something."""

    def work(connection: Connection) -> T:
        hold(connection)
        return pool.submit(act).result(timeout=60)

    with ThreadPoolExecutor(1) as pool:
        return database.write(work)


@only_postgres
def test_worker_can_ask_while_the_rules_of_the_job_change(
    database: Database, open_database: Callable[[], Database], run_id: str
) -> None:
    job_id, other = run_row(database, run_id).job_id, open_database()

    def change(connection: Connection) -> None:
        lock_rules(connection, job_id)
        new_snapshot(connection, job_id)

    asked = meanwhile(database, change, lambda: ask(other, run_id, "uv lock"))
    assert answers(database, asked) == [None]


@pytest.mark.slow
@only_postgres
def test_notices_do_not_wait_for_answers(
    database: Database, open_database: Callable[[], Database]
) -> None:
    job_id = submit_asking(database, "a", "b", asking=Asking("ask"), notify=TOLD)
    one, another = run_ids(database, job_id)
    (first,), (second,) = ask(database, one, "uv lock"), ask(database, another, "uv sync")
    other = open_database()
    being_answered = update(approvals).where(approvals.c.id == first).values(reason="")
    meanwhile(
        database,
        lambda connection: connection.execute(being_answered),
        lambda: announce(other, NOW),
    )
    for told in (second, first):
        (notice,) = take_due(other, NOW)
        assert [one["id"] for one in notice.data["questions"]] == [told]
        announce(other, NOW)


@pytest.mark.slow
def test_workers_that_ask_meanwhile_lock_nobody_out(
    database: Database, open_database: Callable[[], Database]
) -> None:
    every = run_ids(database, submit_asking(database, *map(str, range(20))))
    asked = [ask(database, run_id, "uv lock")[0] for run_id in every[::2]]

    def work(other: Database) -> list[str]:
        return [ask(other, run_id, "make")[0] for run_id in every[1::2]]

    def remember(other: Database) -> None:
        for one in asked:
            answer(other, [one], replace(FOR_THE_JOB, rule="Bash(uv lock)"), NOW)

    race(database, open_database, [work, remember])
    assert answers(database, asked) == ["approved"] * len(asked)


@pytest.mark.slow
def test_remembering_at_the_same_time_locks_nobody_out(
    database: Database, open_database: Callable[[], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals_module, "BATCH", 2)
    job_id = submit_asking(database, *map(str, range(12)), asking=Asking("ask"), notify=TOLD)
    first, second = run_ids(database, job_id)[:6], run_ids(database, job_id)[6:]
    ours = [ask(database, run_id, "uv sync", "uv lock") for run_id in first]
    theirs = [ask(database, run_id, "uv lock", "uv sync") for run_id in second]
    every = [one for pair in [*ours, *theirs] for one in pair]
    race(
        database,
        open_database,
        [
            lambda d: answer(d, [pair[0] for pair in ours], FOR_THE_JOB, NOW),
            lambda d: answer(d, [pair[0] for pair in theirs], FOR_THE_JOB, NOW),
            lambda d: [apply_new_rules(d, NOW, 3) for _ in range(5)],
            lambda d: [announce(d, NOW, 3) for _ in range(5)],
        ],
    )
    assert answers(database, every) == ["approved"] * len(every)
    rules = sorted(rule for _, rule, _ in remembered(database, job_id))
    assert rules == ["Bash(uv lock)", "Bash(uv sync)"]
    for run_id in first + second:
        assert event_types(database, run_id)[-2:] == ["approval_answered"] * 2

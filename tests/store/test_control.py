"""Cancelling, pausing and resuming."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, update

from runner.core.commands import Reply, Target
from runner.core.run import Waiting
from runner.core.steps import CallModel, Done
from runner.errors import LeaseLost
from runner.store import jobs as jobs_store
from runner.store.approvals import answer
from runner.store.control import cancel, pause, resume
from runner.store.database import Database
from runner.store.due_runs import look_at, wait_for_workspace
from runner.store.tables import model_calls, runs, tool_calls
from tests.store.asked import answers, approval_row, ask, run_ids, submit_asking
from tests.store.attempts import claim, event_types, run_row, submit_one, text, tool_use
from tests.store.examples import NOW, submission


def test_cancelled_run_has_ended_and_is_held_by_nobody(database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id)
    (change,) = cancel(database, Target("run", run_id), NOW + 5)
    assert (change.id, change.item_key, change.state) == (run_id, "one", "cancelled")
    assert change.changed
    run = run_row(database, run_id)
    assert (run.state, run.reason) == ("cancelled", "cancelled")
    assert (run.worker_id, run.due_at, run.ended_at) == (None, None, NOW + 5)
    assert event_types(database, run_id)[-4:] == [
        "cancelled",
        "model_call_ended",
        "attempt_ended",
        "done",
    ]


def test_cancelled_attempt_cannot_append(database: Database) -> None:
    run_id = submit_one(database)
    attempt = claim(database, run_id)
    cancel(database, Target("run", run_id), NOW)
    with pytest.raises(LeaseLost):
        attempt.reply(text("Too late."))
    assert run_row(database, run_id).attempt == attempt.lease.attempt + 1


def test_cancelled_model_call_is_charged_at_its_worst_case(database: Database) -> None:
    run_id = submit_one(database)
    attempt = claim(database, run_id).reply(tool_use(1), stop="tool_use").finish("one")
    assert isinstance(attempt.effect, CallModel)
    worst_case = attempt.effect.call.reservation.worst_case
    cancel(database, Target("run", run_id), NOW + 5)
    run = run_row(database, run_id)
    assert run.charged_tokens == 110 + worst_case
    assert run.progress["model"]["open_call"] is None
    query = select(model_calls).where(model_calls.c.number == 2)
    call = database.read(lambda connection: connection.execute(query).one())
    assert (call.ended_at, call.charged_tokens) == (NOW + 5, worst_case)
    assert call.error.startswith("cancelled: ")


def test_cancel_marks_the_calls_that_have_no_result(database: Database) -> None:
    run_id = submit_one(database)
    attempt = claim(database, run_id)
    attempt.reply(tool_use(1), stop="tool_use").finish("one")
    attempt.reply(tool_use(2), tool_use(3), stop="tool_use").finish("two")
    cancel(database, Target("run", run_id), NOW)
    query = select(tool_calls.c.tool_use_id, tool_calls.c.interrupted)
    rows = database.read(lambda connection: connection.execute(query).all())
    assert dict(map(tuple, rows)) == {"toolu_1": False, "toolu_2": False, "toolu_3": True}


@pytest.mark.parametrize("act", [cancel, pause, resume])
def test_run_that_has_ended_stays_as_it_is(
    database: Database, act: Callable[..., list[object]]
) -> None:
    run_id = submit_one(database)
    claim(database, run_id).reply(text("Done."))
    before = run_row(database, run_id)
    (change,) = cancel(database, Target("run", run_id), NOW)
    assert not change.changed
    assert "succeeded" in change.detail
    assert run_row(database, run_id) == before


def test_cancelling_a_job_cancels_what_has_not_ended(database: Database) -> None:
    job_id = jobs_store.submit(database, submission("a", "b", "c"), NOW)
    query = select(runs.c.id).order_by(runs.c.id)
    first, second, third = database.read(lambda c: c.execute(query).scalars().all())
    claim(database, first).reply(text("Done."))
    claim(database, second)
    changes = cancel(database, Target("job", job_id), NOW)
    assert [(change.id, change.changed) for change in changes] == [
        (first, False),
        (second, True),
        (third, True),
    ]
    states = [run_row(database, run_id).state for run_id in (first, second, third)]
    assert states == ["succeeded", "cancelled", "cancelled"]


def test_queued_run_pauses_at_once_and_resumes_due(database: Database) -> None:
    run_id = submit_one(database)
    (change,) = pause(database, Target("run", run_id), NOW)
    assert (change.state, change.changed) == ("waiting", True)
    assert run_row(database, run_id).reason == "paused"
    (change,) = resume(database, Target("run", run_id), NOW + 7)
    run = run_row(database, run_id)
    assert (run.state, run.reason, run.due_at) == ("queued", "", NOW + 7)
    assert event_types(database, run_id) == ["run_submitted", "paused", "resumed"]


def test_running_run_pauses_at_its_next_step(database: Database) -> None:
    run_id = submit_one(database)
    attempt = claim(database, run_id)
    (change,) = pause(database, Target("run", run_id), NOW)
    assert (change.state, change.changed) == ("running", True)
    attempt.reply(tool_use(1), stop="tool_use")
    assert attempt.effect == Done(Waiting("paused"))
    run = run_row(database, run_id)
    assert (run.state, run.reason, run.pause_requested) == ("waiting", "paused", False)


def test_pause_that_has_not_come_yet_can_be_taken_back(database: Database) -> None:
    run_id = submit_one(database)
    attempt = claim(database, run_id)
    pause(database, Target("run", run_id), NOW)
    (change,) = resume(database, Target("run", run_id), NOW)
    assert (change.state, change.changed) == ("running", True)
    attempt.reply(text("Done."))
    assert run_row(database, run_id).state == "succeeded"


def test_pausing_twice_changes_nothing_more(database: Database) -> None:
    queued, running = submit_one(database, "queued"), submit_one(database, "running")
    claim(database, running)
    for run_id in (queued, running):
        pause(database, Target("run", run_id), NOW)
        before = run_row(database, run_id)
        (change,) = pause(database, Target("run", run_id), NOW)
        assert not change.changed
        assert run_row(database, run_id) == before


def test_run_that_waits_for_its_workspace_pauses_when_it_is_found(database: Database) -> None:
    run_id = submit_one(database)
    due = look_at(database, run_id, NOW)
    assert due is not None
    wait_for_workspace(database, due, NOW)
    (unchanged,) = resume(database, Target("run", run_id), NOW)
    assert not unchanged.changed
    (change,) = pause(database, Target("run", run_id), NOW)
    assert (change.state, change.changed) == ("waiting", True)
    assert run_row(database, run_id).pause_requested
    assert resume(database, Target("run", run_id), NOW)[0].changed
    assert not run_row(database, run_id).pause_requested


def test_run_that_is_not_paused_says_so(database: Database) -> None:
    run_id = submit_one(database)
    (change,) = resume(database, Target("run", run_id), NOW)
    assert (change.changed, change.detail) == (False, "is not paused")


@pytest.mark.slow
def test_controls_at_the_same_time_leave_events_without_gaps(
    database: Database, open_database: Callable[[], Database]
) -> None:
    run_id = submit_one(database)
    connections = [database, *(open_database() for _ in range(3))]
    actions = [pause, resume, pause, resume]

    def act(one: tuple[Database, Callable[..., object]]) -> None:
        for _ in range(10):
            one[1](one[0], Target("run", run_id), NOW)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(act, zip(connections, actions, strict=True)))
    types = event_types(database, run_id)[1:]
    assert all(a != b for a, b in itertools.pairwise(types))


@pytest.fixture
def asking_run(database: Database) -> str:
    """A run of a job that asks."""
    (run_id,) = run_ids(database, submit_asking(database))
    return run_id


def test_cancel_closes_the_open_questions(database: Database, asking_run: str) -> None:
    first, second = ask(database, asking_run, "one", "two")
    answer(database, [second], Reply("approved", "ada"), NOW)
    cancel(database, Target("run", asking_run), NOW + 1)
    assert answers(database, [first, second]) == ["cancelled", "approved"]
    row = approval_row(database, first)
    assert (row.answered_via, row.answered_at) == ("cancel", NOW + 1)
    (late,) = answer(database, [first], Reply("approved", "ada"), NOW + 2)
    assert (late.changed, late.detail) == (False, "was answered before: cancelled")


def test_run_that_waits_for_an_answer_pauses_when_it_comes(
    database: Database, asking_run: str
) -> None:
    (asked,) = ask(database, asking_run, "one")
    (change,) = pause(database, Target("run", asking_run), NOW)
    assert (change.state, change.detail) == ("waiting", "pauses when its question is answered")
    assert run_row(database, asking_run).pause_requested
    answer(database, [asked], Reply("approved", "ada"), NOW)
    run = run_row(database, asking_run)
    assert (run.state, run.pause_requested) == ("queued", True)


def test_resuming_a_run_that_waits_for_an_answer_says_so(
    database: Database, asking_run: str
) -> None:
    ask(database, asking_run, "one")
    (change,) = resume(database, Target("run", asking_run), NOW)
    assert (change.changed, change.state) == (False, "waiting")
    assert change.detail == f"waits for an answer: see `runner approvals {asking_run}`"
    pause(database, Target("run", asking_run), NOW)
    assert resume(database, Target("run", asking_run), NOW)[0].detail == "no longer pauses"


def test_paused_run_stays_paused_when_it_is_answered(database: Database, asking_run: str) -> None:
    (asked,) = ask(database, asking_run, "one")
    database.write(lambda connection: connection.execute(update(runs).values(reason="paused")))
    (answered,) = answer(database, [asked], Reply("approved", "ada"), NOW)
    assert answered.detail == "approved: the run is waiting (paused)"
    run = run_row(database, asking_run)
    assert (run.state, run.reason, run.answer_count) == ("waiting", "paused", 1)

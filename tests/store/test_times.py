"""Jobs that may call the model at some times only, in the database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, update

from runner.core.budget import Limits
from runner.core.commands import Target
from runner.core.run import FRESH, Author, Waiting
from runner.core.steps import CallModel, Done
from runner.core.times import Moment, Times, Window
from runner.store.control import pause, resume
from runner.store.database import Database
from runner.store.due_runs import due_to_notify
from runner.store.jobs import submit
from runner.store.leases import give_back
from runner.store.specs import JobCache
from runner.store.tables import job_events, jobs, runs
from runner.store.times import close_windows, move_finish_by, queue_moved
from tests.store.attempts import claim, event_types, run_row, submit_one, tool_use
from tests.store.examples import NOW, SPEC, submission

pytestmark = pytest.mark.dialect

HOUR = 3_600.0
ADA = Author("ada", "late again")


def clock(seconds: float) -> str:
    """A time of day, this many seconds after now; minutes are whole."""
    return f"{datetime.fromtimestamp(NOW + seconds, UTC):%H:%M}"


def at(seconds: float) -> float:
    return (NOW + seconds) // 60 * 60


def submit_at(database: Database, **options: Any) -> str:
    limits = options.pop("limits", SPEC.limits)
    return submit_one(database, spec=replace(SPEC, times=Times(**options), limits=limits))


def test_a_run_is_due_when_its_job_may_begin(database: Database) -> None:
    window = Window(clock(HOUR), clock(2 * HOUR), "UTC")
    run = run_row(database, submit_at(database, window=window))
    assert (run.state, run.reason, run.due_at) == ("queued", "window", at(HOUR))
    not_before = Moment(clock(HOUR), "UTC")
    run = run_row(database, submit_at(database, not_before=not_before))
    assert (run.state, run.reason, run.due_at) == ("queued", "not_before", at(HOUR))
    limits = Limits(deadline=60.0)
    run = run_row(database, submit_at(database, not_before=not_before, limits=limits))
    assert run.due_at == NOW + 60.0  # to end
    spec = database.rows(select(jobs.c.spec).where(jobs.c.id == run.job_id))[0].spec
    assert spec["times"]["not_before"] == {"text": clock(HOUR), "zone": "UTC", "at": at(HOUR)}


def past_finish(database: Database) -> tuple[str, str]:
    """A run that waits since its job's ``finish_by``, and the job."""
    run_id = submit_at(database, finish_by=Moment(clock(HOUR), "UTC"))
    attempt = claim(database, run_id, at(HOUR))
    assert attempt.effect == Done(Waiting("finish_by"))
    run = run_row(database, run_id)
    assert (run.state, run.reason, run.due_at) == ("waiting", "finish_by", None)
    return run_id, str(run.job_id)


def test_a_run_waits_from_finish_by_until_a_person_moves_it(database: Database) -> None:
    run_id, job_id = past_finish(database)
    later = at(HOUR) + 60
    assert queue_moved(database, later) == []
    moment = Moment(clock(3 * HOUR), "UTC").after(later)
    assert move_finish_by(database, job_id, moment, later, author=ADA) == [run_id]
    run = run_row(database, run_id)
    assert (run.state, run.due_at) == ("queued", later)
    assert event_types(database, run_id)[-1] == "resumed"
    assert isinstance(claim(database, run_id, later).effect, CallModel)
    happened = select(job_events.c.type, job_events.c.data).where(job_events.c.job_id == job_id)
    data = next(row.data for row in database.rows(happened) if row.type == "finish_by_moved")
    assert (data["by"], data["why"]) == ("ada", "late again")
    assert data["old"] == {"finish_by": at(HOUR), "finish_by_text": f"{clock(HOUR)} UTC"}
    assert data["new"] == {"finish_by": at(3 * HOUR), "finish_by_text": f"{clock(3 * HOUR)} UTC"}


@pytest.mark.slow
def test_a_run_in_hand_sees_that_finish_by_was_moved(database: Database) -> None:
    run_id = submit_at(database, finish_by=Moment(clock(HOUR), "UTC"))
    attempt = claim(database, run_id)
    job_id = run_row(database, run_id).job_id
    sooner = Moment("", "", NOW - 1)
    move_finish_by(database, job_id, sooner, NOW, author=ADA)
    attempt.reply(tool_use(1, "Bash"), stop="tool_use")  # which the job denies
    assert attempt.effect == Done(Waiting("finish_by"))


def test_a_run_that_began_to_wait_as_it_was_moved_is_found(database: Database) -> None:
    run_id, job_id = past_finish(database)
    database.execute(update(jobs).where(jobs.c.id == job_id).values(finish_by=at(9 * HOUR)))
    assert queue_moved(database, at(HOUR) + 1) == [run_id]
    assert queue_moved(database, at(HOUR) + 1) == []


@pytest.mark.slow
def test_a_run_that_waits_since_finish_by_can_be_paused(database: Database) -> None:
    run_id, job_id = past_finish(database)
    (refused,) = resume(database, Target("run", run_id), NOW)
    assert refused.detail == (
        f"waits since its job's finish_by: move it with `runner finish-by {job_id} TIME`"
    )
    pause(database, Target("run", run_id), NOW)
    assert run_row(database, run_id).reason == "paused"
    moment = Moment("", "", at(9 * HOUR))
    assert move_finish_by(database, job_id, moment, NOW, author=ADA) == []


@pytest.mark.slow
@pytest.mark.parametrize("deadline", [None, 3 * HOUR])
def test_runs_that_have_not_begun_wait_together_when_the_window_closes(
    database: Database, deadline: float | None
) -> None:
    limits, times = Limits(deadline=deadline), Times(window=Window(clock(0), clock(HOUR), "UTC"))
    spec = replace(SPEC, times=times, limits=limits)
    submit(database, submission(*"abcd", spec=spec), NOW)
    begun, *others = sorted(row.id for row in database.rows(select(runs.c.id)))
    attempt = claim(database, begun)
    attempt.reply(tool_use(1, "Bash"), stop="tool_use")
    give_back(database, attempt.lease, NOW)
    overdue = others.pop() if deadline else None  # it has to end, in the window or not
    if overdue:
        database.execute(update(runs).where(runs.c.id == overdue).values(created_at=NOW - 2 * HOUR))
    other_job, closed, close = (
        submit_one(database),
        at(HOUR) + 60,
        partial(close_windows, database, JobCache()),
    )
    due = set(due_to_notify(database, 9, closed, close=close))
    assert due == {begun, other_job, overdue or begun}
    for run_id in others:  # of no interest to the claim until then
        run = run_row(database, run_id)
        assert (run.state, run.reason, run.attempt, run.rung_at) == ("queued", "window", 0, None)
        assert run.due_at == (NOW + deadline if deadline else at(24 * HOUR))
    opened = at(24 * HOUR) + 1
    assert set(others) == set(due_to_notify(database, 9, opened, close=close))


@pytest.mark.slow
def test_runs_that_have_not_begun_wait_together_from_finish_by(database: Database) -> None:
    times = Times(finish_by=Moment(clock(HOUR), "UTC"))
    limits = Limits(deadline=3 * HOUR)
    submit(database, submission(*"abcd", spec=replace(SPEC, times=times, limits=limits)), NOW)
    begun, overdue, *others = sorted(row.id for row in database.rows(select(runs.c.id)))
    attempt = claim(database, begun)
    attempt.reply(tool_use(1, "Bash"), stop="tool_use")
    give_back(database, attempt.lease, NOW)
    database.execute(update(runs).where(runs.c.id == overdue).values(created_at=NOW - 9 * HOUR))
    past, close = at(HOUR) + 60, partial(close_windows, database, JobCache())
    assert set(due_to_notify(database, 9, past, close=close)) == {begun, overdue}
    for run_id in others:
        run = run_row(database, run_id)
        assert (run.state, run.reason, run.attempt, run.due_at) == ("waiting", "finish_by", 0, None)
        assert event_types(database, run_id) == ["run_submitted", "waiting"]
    job_id, moment = run_row(database, begun).job_id, Moment("", "", at(2 * HOUR))
    assert move_finish_by(database, job_id, moment, past, author=ADA) == others
    moved = run_row(database, others[0])
    assert (moved.state, moved.rank, moved.due_at) == ("queued", FRESH, past)
    assert set(due_to_notify(database, 9, past, close=close)) >= set(others)

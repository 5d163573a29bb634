"""Runs that wait for their budget longer than they may."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import Engine, event

from runner.core.commands import Target
from runner.core.run import Author, Ended, Waiting
from runner.core.steps import Done
from runner.store.budgets import set_budget, wake_overdue
from runner.store.control import cancel, pause
from runner.store.database import Database
from runner.store.specs import JobCache
from tests.store.asked import LIMITS, priced, submit_budgeted
from tests.store.attempts import claim, event_types, run_row
from tests.store.examples import NOW

DEADLINE = 60.0


def waiting_run(database: Database, deadline: float | None = DEADLINE) -> tuple[str, str]:
    """A run that waits for its job's budget, and the job."""
    limits = replace(LIMITS, deadline=deadline)
    job_id, (run_id,) = submit_budgeted(database, "a", tokens=4_000, limits=limits)
    attempt = claim(database, run_id, tariffs=priced)
    assert attempt.effect == Done(Waiting("budget"))
    return job_id, run_id


def test_run_that_waits_for_its_budget_ends_at_its_deadline(database: Database) -> None:
    job_id, run_id = waiting_run(database)
    assert wake_overdue(database, JobCache(), NOW + DEADLINE - 1) == []
    assert wake_overdue(database, JobCache(), NOW + DEADLINE) == [run_id]
    assert wake_overdue(database, JobCache(), NOW + DEADLINE) == []
    run = run_row(database, run_id)
    assert (run.state, run.due_at) == ("queued", NOW + DEADLINE)
    assert event_types(database, run_id)[-1] == "resumed"
    attempt = claim(database, run_id, NOW + DEADLINE, priced)
    assert attempt.effect == Done(Ended("stopped", "deadline", "the deadline of 60 s"))
    assert run_row(database, run_id).state == "stopped"
    assert set_budget(database, job_id, NOW + 90, author=Author("ada"), tokens=9_000_000) == []


def test_run_without_a_deadline_waits_for_its_budget_as_long_as_it_takes(
    database: Database,
) -> None:
    _, run_id = waiting_run(database, None)
    assert wake_overdue(database, JobCache(), NOW + 10**9) == []
    assert run_row(database, run_id).state == "waiting"


@pytest.mark.parametrize("act", [pause, cancel])
def test_only_runs_that_still_wait_for_it_are_woken(database: Database, act: object) -> None:
    _, run_id = waiting_run(database)
    assert callable(act)
    act(database, Target("run", run_id), NOW + 1)
    before = run_row(database, run_id)
    assert wake_overdue(database, JobCache(), NOW + DEADLINE) == []
    assert run_row(database, run_id) == before


@pytest.mark.slow
def test_jobs_are_looked_at_each_with_its_own_deadline(database: Database) -> None:
    _, later = waiting_run(database, 2 * DEADLINE)
    _, sooner = waiting_run(database)
    assert wake_overdue(database, JobCache(), NOW + DEADLINE) == [sooner]
    assert wake_overdue(database, JobCache(), NOW + 2 * DEADLINE) == [later]


def test_the_specs_of_jobs_whose_runs_wait_are_read_once(database: Database) -> None:
    waiting_run(database)
    waits = partial(wake_overdue, database, JobCache())
    statements: list[str] = []
    note = lambda *arguments: statements.append(arguments[2])  # noqa: E731
    event.listen(Engine, "before_cursor_execute", note)
    waits(NOW)
    waits(NOW + 1)
    event.remove(Engine, "before_cursor_execute", note)
    assert len([each for each in statements if "jobs.spec" in each]) == 1


def test_a_job_whose_runs_begin_to_wait_between_two_looks_is_looked_at(database: Database) -> None:
    waits = partial(wake_overdue, database, JobCache())
    assert waits(NOW) == []
    _, first = waiting_run(database)
    assert waits(NOW + DEADLINE) == [first]
    _, second = waiting_run(database, 2 * DEADLINE)
    assert waits(NOW + DEADLINE) == []
    assert waits(NOW + 2 * DEADLINE) == [second]

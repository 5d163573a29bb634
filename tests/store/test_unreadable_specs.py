"""What a job's script says stands in no query's way: JSON with a NUL, or half a surrogate pair, in it is
read as a whole, as Postgres can take nothing out of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import update

from runner.core.budget import Budget, Limits
from runner.core.run import Waiting
from runner.core.steps import Done
from runner.core.workspace import Workspace
from runner.llm.prices import load_prices
from runner.queries.costs import costs_by
from runner.store import budgets
from runner.store.database import Database
from runner.store.specs import JobCache
from runner.store.tables import runs
from runner.store.workspaces import list_of_host, workspace_of, workspaces_of_job
from tests.store.attempts import claim, run_row, submit_one, text
from tests.store.examples import NOW, SPEC

WORKSPACE = Workspace("/project", "git", commit="c0ffee")
SPEC_WITH = replace(
    SPEC, provider="scripted", workspace=WORKSPACE, script={"one": [{"text": "\0 and \ud800"}]}
)


@pytest.fixture
def run_id(database: Database) -> str:
    """A run whose progress is as hard to read as its job's spec."""
    run_id = submit_one(database, spec=SPEC_WITH)
    claim(database, run_id).fail("api_error", "no \0 \ud800")
    progress = run_row(database, run_id).progress
    progress["files"]["tree"], progress["ending"]["delivered"] = "7ree", "c0mm17"
    progress["model"]["failure"] = {"message": "\0"}
    change = update(runs).where(runs.c.id == run_id).values(progress=progress)
    database.write(lambda connection: connection.execute(change))
    return run_id


def test_the_workspace_of_a_run_is_found(database: Database, run_id: str) -> None:
    assert workspace_of(database, run_id).asked == WORKSPACE
    (found,) = list_of_host(database, "here", [run_id])
    assert (found.asked, found.tree, found.commit) == (WORKSPACE, "7ree", "c0mm17")


def test_the_trees_of_a_run_are_found(database: Database, run_id: str) -> None:
    trees = workspace_of(database, run_id)
    assert (trees.asked, trees.model) == (WORKSPACE, "claude-test")
    assert (trees.tree, trees.commit) == ("7ree", "c0mm17")
    assert workspaces_of_job(database, trees.job_id) == [trees]


def test_what_a_run_costs_is_told(database: Database) -> None:
    run_id = submit_one(database, spec=SPEC_WITH)
    claim(database, run_id).reply(text("Done."))
    (spent,) = costs_by(database, load_prices(), "run")
    assert spent.key == run_id


def test_a_run_that_waits_for_the_budget_meets_its_deadline(database: Database) -> None:
    limits = Limits(deadline=60.0, max_output_tokens=2_000)
    spec = replace(SPEC_WITH, limits=limits, budget=Budget(tokens=100))
    run_id = submit_one(database, spec=spec)
    assert claim(database, run_id).effect == Done(Waiting("budget"))
    assert budgets.wake_overdue(database, JobCache(), NOW + 59) == []
    assert budgets.wake_overdue(database, JobCache(), NOW + 60) == [run_id]

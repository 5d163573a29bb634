"""What is stored of runs' own workspaces."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import update

from runner.core.run import Lease
from runner.core.workspace import Workspace
from runner.errors import LeaseLost
from runner.store import runs as runs_store
from runner.store.database import Database
from runner.store.tables import runs
from runner.store.workspaces import (
    Kept,
    assignment_of,
    delivered,
    keep,
    on_host,
    origins,
    others_have,
)
from tests.store.attempts import claim, run_row, submit_one
from tests.store.examples import NOW, SPEC

WORKSPACE = Workspace("/project", "git", commit="c0ffee", setup=("make",))
SPEC_WITH = replace(SPEC, workspace=WORKSPACE)
KEPT = Kept("here", "/home/workspaces/1", "runner/mend/one", "5ta47")


def test_a_workspace_is_kept_and_found_again(database: Database) -> None:
    run_id = submit_one(database, spec=SPEC_WITH)
    before = assignment_of(database, run_id)
    assert (before.asked, before.path, before.kept) == (WORKSPACE, "/project", None)
    assert (before.job_name, before.item_key, before.model) == ("mend", "one", "claude-test")
    lease = claim(database, run_id).lease
    keep(database, lease, KEPT, "snap_here", NOW)
    after = assignment_of(database, run_id)
    assert (after.kept, after.path) == (KEPT, KEPT.path)
    assert run_row(database, run_id).workspace_id == "snap_here"
    moved = replace(KEPT, store_id="there")
    keep(database, lease, moved, None, NOW)
    assert assignment_of(database, run_id).kept == moved
    assert run_row(database, run_id).workspace_path is None, "any host may have it"
    delivered(database, lease, "d0ne")
    assert assignment_of(database, run_id).kept == replace(moved, commit="d0ne")


def test_an_attempt_that_lost_its_run_stores_nothing(database: Database) -> None:
    run_id = submit_one(database, spec=SPEC_WITH)
    lease = claim(database, run_id).lease
    stale = Lease(run_id, lease.attempt - 1, lease.worker_id)
    with pytest.raises(LeaseLost):
        keep(database, stale, KEPT, "snap_here", NOW)
    keep(database, lease, KEPT, "snap_here", NOW)
    with pytest.raises(LeaseLost):
        delivered(database, stale, "d0ne")
    assert assignment_of(database, run_id).kept == KEPT


def test_a_branch_is_anothers_by_its_name(database: Database) -> None:
    mine, other = (submit_one(database, spec=SPEC_WITH) for _ in range(2))
    keep(database, claim(database, other).lease, KEPT, "snap_here", NOW)
    assert others_have(database, mine, "runner/mend/one")
    assert not others_have(database, other, "runner/mend/one")
    assert not others_have(database, mine, "runner/mend/two")


def test_a_forks_origins_are_followed_to_the_first(database: Database) -> None:
    first, second, third = (submit_one(database) for _ in range(3))
    for fork, of in ((second, first), (third, second)):
        change = update(runs).where(runs.c.id == fork).values(fork_of=of)
        database.write(lambda connection, change=change: connection.execute(change))
    assert origins(database, third) == [second, first]
    assert origins(database, first) == []


def test_a_hosts_workspaces_are_those_that_it_prepared_and_those_it_asks_for(
    database: Database,
) -> None:
    here, there, third = (submit_one(database, spec=SPEC_WITH) for _ in range(3))
    keep(database, claim(database, here).lease, KEPT, "snap_here", NOW)
    keep(database, claim(database, there).lease, replace(KEPT, store_id="there"), None, NOW)
    found = on_host(database, "here", ["run_unknown"])
    assert [(run.run_id, run.state, run.kept) for run in found] == [(here, "running", KEPT)]
    assert [run.run_id for run in on_host(database, "here", [there, third])] == [here, there, third]
    job_id = run_row(database, there).job_id
    assert [run.run_id for run in on_host(database, "there", [here], job_id)] == [there]


def test_runs_that_any_host_may_have_wait_for_no_folder(database: Database) -> None:
    run_id = submit_one(database, spec=SPEC_WITH)
    place = update(runs).where(runs.c.id == run_id).values(workspace_path=None)
    database.write(lambda connection: connection.execute(place))
    due = runs_store.look_at(database, run_id, NOW)
    assert due is not None
    runs_store.wait_for_workspace(database, due, NOW)
    assert runs_store.missing_workspaces(database) == []

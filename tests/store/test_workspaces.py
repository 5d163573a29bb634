"""What is stored of runs' own workspaces."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import update

from runner.core.run import Lease
from runner.core.workspace import Workspace
from runner.errors import LeaseLost
from runner.store import due_runs as runs_store
from runner.store.database import Database
from runner.store.tables import runs
from runner.store.workspaces import (
    WorkspaceRecord,
    is_branch_of_another,
    list_of_host,
    origins,
    save_delivery,
    save_record,
    workspace_of,
)
from tests.store.attempts import claim, run_row, submit_one
from tests.store.examples import NOW, SPEC

WORKSPACE = Workspace("/project", "git", commit="c0ffee", setup=("make",))
SPEC_WITH = replace(SPEC, workspace=WORKSPACE)
RECORD = WorkspaceRecord("here", "/home/workspaces/1", "runner/mend/one", "5ta47")


def test_a_workspace_is_kept_and_found_again(database: Database) -> None:
    run_id = submit_one(database, spec=SPEC_WITH)
    before = workspace_of(database, run_id)
    assert (before.asked, before.path, before.record) == (WORKSPACE, "/project", None)
    assert (before.job_name, before.item_key, before.model) == ("mend", "one", "claude-test")
    lease = claim(database, run_id).lease
    save_record(database, lease, RECORD, "snap_here", NOW)
    after = workspace_of(database, run_id)
    assert (after.record, after.path) == (RECORD, RECORD.path)
    assert run_row(database, run_id).workspace_id == "snap_here"
    moved = replace(RECORD, store_id="there")
    save_record(database, lease, moved, None, NOW)
    assert workspace_of(database, run_id).record == moved
    assert run_row(database, run_id).workspace_path is None, "any host may have it"
    save_delivery(database, lease, "d0ne")
    assert workspace_of(database, run_id).record == replace(moved, commit="d0ne")


def test_an_attempt_that_lost_its_run_stores_nothing(database: Database) -> None:
    run_id = submit_one(database, spec=SPEC_WITH)
    lease = claim(database, run_id).lease
    stale = Lease(run_id, lease.attempt - 1, lease.worker_id)
    with pytest.raises(LeaseLost):
        save_record(database, stale, RECORD, "snap_here", NOW)
    save_record(database, lease, RECORD, "snap_here", NOW)
    with pytest.raises(LeaseLost):
        save_delivery(database, stale, "d0ne")
    assert workspace_of(database, run_id).record == RECORD


def test_a_branch_is_anothers_by_its_name(database: Database) -> None:
    mine, other = (submit_one(database, spec=SPEC_WITH) for _ in range(2))
    save_record(database, claim(database, other).lease, RECORD, "snap_here", NOW)
    assert is_branch_of_another(database, mine, "runner/mend/one")
    assert not is_branch_of_another(database, other, "runner/mend/one")
    assert not is_branch_of_another(database, mine, "runner/mend/two")


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
    save_record(database, claim(database, here).lease, RECORD, "snap_here", NOW)
    save_record(
        database, claim(database, there).lease, replace(RECORD, store_id="there"), None, NOW
    )
    found = list_of_host(database, "here", ["run_unknown"])
    assert [(run.run_id, run.state, run.record) for run in found] == [(here, "running", RECORD)]
    assert [run.run_id for run in list_of_host(database, "here", [there, third])] == [
        here,
        there,
        third,
    ]
    job_id = run_row(database, there).job_id
    assert [run.run_id for run in list_of_host(database, "there", [here], job_id)] == [there]


def test_runs_that_any_host_may_have_wait_for_no_folder(database: Database) -> None:
    run_id = submit_one(database, spec=SPEC_WITH)
    place = update(runs).where(runs.c.id == run_id).values(workspace_path=None)
    database.write(lambda connection: connection.execute(place))
    due = runs_store.look_at(database, run_id, NOW)
    assert due is not None
    runs_store.wait_for_workspace(database, due, NOW)
    assert runs_store.missing_workspaces(database) == []

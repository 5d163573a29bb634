"""Removing the files of jobs that ended long ago, and keeping those that are needed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from runner.app.handle import App
from runner.app.prune import prune
from runner.core.run import Author, Lease
from runner.settings import Settings
from runner.store.database import Database
from runner.store.due_runs import job_of
from runner.store.tables import jobs, runs
from runner.workspace.snapshot_store import has_trees, store_git, store_of
from tests.workspace.repository.made import Made

from .conftest import Claim, Host
from .test_leftovers import done, end

DAY = 86_400.0


@pytest.fixture
def pruned(store: Database, person: dict[str, str]) -> Callable[..., list[dict[str, Any]]]:
    """Prunes on a host what ended a day ago."""

    def prune_it(host: Host, *, force: bool = False, dry_run: bool = False) -> list[dict[str, Any]]:
        app = App(Settings(host.home, str(store.url)), store)
        return list(prune(app, DAY, Author("ann"), force=force, dry_run=dry_run, warn=pytest.fail))

    return prune_it


def age(store: Database, lease: Lease) -> None:
    """The job of a run was submitted and ended two days ago."""
    at = time.time() - 2 * DAY
    times = {"created_at": at, "ended_at": at}
    store.execute(update(runs).where(runs.c.id == lease.run_id).values(times))
    job = select(runs.c.job_id).where(runs.c.id == lease.run_id).scalar_subquery()
    store.execute(update(jobs).where(jobs.c.id == job).values(created_at=at))


def refs(host: Host, repository: Made) -> set[str]:
    """The runs that have snapshots on a host."""
    git = store_git(store_of(host.home, str(repository.path)), dict(os.environ))
    listed = git.text("for-each-ref", "--format=%(refname)", "refs/runner").splitlines()
    return {ref.split("/")[3] for ref in listed}


@pytest.mark.slow
def test_a_job_is_removed_with_its_workspace_snapshots_outputs_and_caches(
    store: Database, host: Host, repository: Made, begin: Claim, pruned: Callable[..., Any]
) -> None:
    old, new = begin("old"), begin("new")
    for lease in (old, new):
        done(store, host, lease)
        outputs = host.home / "outputs" / lease.run_id
        outputs.mkdir(parents=True)
        (host.home / "caches" / job_of(store, lease.run_id)).mkdir(parents=True)
    age(store, old)
    assert refs(host, repository) == {old.run_id, new.run_id}
    (told,) = pruned(host, dry_run=True)
    assert (told["runs"], told["workspaces"], told["why_kept"]) == (1, 1, "")
    assert told["bytes"] > 0
    assert refs(host, repository) == {old.run_id, new.run_id}
    assert host.path(old).is_dir()
    (told,) = pruned(host)
    assert told["why_kept"] == ""
    assert refs(host, repository) == {new.run_id}
    assert [path.name for path in (host.home / "outputs").iterdir()] == [new.run_id]
    kept = job_of(store, new.run_id)
    assert [path.name for path in (host.home / "caches").iterdir()] == [kept]
    assert (host.path(old).exists(), host.path(new).exists()) == (False, True)
    assert store.rows(select(runs.c.id)) == [(new.run_id,)]
    branches = repository.git("branch", "--list", "runner/*")
    assert len(branches.splitlines()) == 2, "branches stay"
    assert pruned(host) == []


@pytest.mark.slow
def test_changes_that_are_on_no_branch_keep_their_job_unless_forced(
    store: Database, host: Host, repository: Made, begin: Claim, pruned: Callable[..., Any]
) -> None:
    lease = begin()
    host.prepare(lease)
    start = host.record(lease)
    store.execute(update(runs).where(runs.c.id == lease.run_id).values(start_tree=start))
    (host.path(lease) / "a.py").write_text("2\n")
    end(store, lease, host.record(lease), "failed")
    age(store, lease)
    for _ in range(2):
        (told,) = pruned(host)
        assert "1 run with changes on no branch" in told["why_kept"]
    assert refs(host, repository) == {lease.run_id}
    (told,) = pruned(host, force=True)
    assert told["why_kept"] == ""
    assert store.rows(select(runs.c.id)) == []


def test_a_workspace_that_a_person_works_in_keeps_its_job(
    store: Database, host: Host, begin: Claim, pruned: Callable[..., Any]
) -> None:
    lease = begin()
    done(store, host, lease)
    (host.path(lease) / "mine.py").write_text("1\n")
    age(store, lease)
    for dry_run in (True, False):
        (told,) = pruned(host, dry_run=dry_run)
        assert "its files were changed" in told["why_kept"]
    assert (host.path(lease) / "mine.py").exists()
    assert len(store.rows(select(runs.c.id))) == 1


@pytest.mark.slow
def test_the_last_host_with_files_of_a_job_removes_the_job(
    store: Database,
    hosts: Callable[[str], Host],
    repository: Made,
    begin: Claim,
    pruned: Callable[..., Any],
) -> None:
    here, there = hosts("here"), hosts("there")
    lease = begin()
    done(store, there, lease)
    age(store, lease)
    (told,) = pruned(here)
    assert "files of 1 run are on other hosts" in told["why_kept"]
    assert refs(there, repository) == {lease.run_id}
    (told,) = pruned(there)
    assert told["why_kept"] == ""
    assert refs(there, repository) == set()
    assert store.rows(select(runs.c.id)) == []


@pytest.mark.slow
def test_killed_after_the_files_the_next_one_removes_the_rows(
    store: Database,
    host: Host,
    begin: Claim,
    pruned: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lease = begin()
    done(store, host, lease)
    age(store, lease)

    def die(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("runner.store.prune.erase", die)
        with pytest.raises(KeyboardInterrupt):
            pruned(host)
    assert not Path(host.path(lease)).exists()
    (told,) = pruned(host)
    assert told["why_kept"] == ""
    assert store.rows(select(runs.c.id)) == []


@pytest.mark.slow
def test_the_space_of_snapshots_that_nothing_needs_is_freed(
    store: Database,
    host: Host,
    repository: Made,
    begin: Claim,
    pruned: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runner.workspace.snapshot_store._UNNEEDED_SINCE", "now")
    old, new = begin("old"), begin("new")
    tree = done(store, host, old)
    assert done(store, host, new) == tree
    age(store, old)
    folder = store_of(host.home, str(repository.path))
    objects = store_git(folder, dict(os.environ))
    (host.path(new) / "b.py").write_text("3\n")
    kept = host.record(new)
    before = len([each for each in (folder / "objects").rglob("*") if each.is_file()])
    pruned(host)
    assert len([each for each in (folder / "objects").rglob("*") if each.is_file()]) < before
    assert has_trees(objects, [tree]), "the run that stays has recorded the same files"
    assert has_trees(objects, [kept])

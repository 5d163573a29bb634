"""Runs in mode copy: a folder of their own, recorded as worktrees are."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import update

from runner.core.run import Ended, Lease
from runner.core.workspace import Workspace
from runner.errors import WorkspaceElsewhere, WorkspaceError
from runner.ports import Interrupt
from runner.store.database import Database
from runner.store.tables import runs
from tests.workspace.repository.made import Made

from .conftest import Claim, Host, claim_again, kept, row


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "empty").mkdir(parents=True)
    (folder / "a.txt").write_text("1\n")
    return folder


@pytest.fixture
def copied(begin: Claim, source: Path) -> Callable[..., Lease]:
    return lambda **asked: begin(workspace=Workspace(str(source), "copy"), **asked)


@pytest.mark.slow
def test_a_copy_is_made_once_and_recorded(
    host: Host, copied: Claim, store: Database, source: Path
) -> None:
    lease = copied(setup=("echo 1 >> set-up",))
    tree = host.prepare(lease).snapshot
    path = host.path(lease)
    (path / "a.txt").write_text("2\n")
    shutil.rmtree(path / "empty")
    after = host.record(lease)
    assert after != tree
    again = claim_again(store, lease)
    assert host.prepare(again, after).cause is None
    assert (path / "set-up").read_text() == "1\n"
    host.workspaces.restore(again, str(tree), Interrupt())
    assert (path / "a.txt").read_text() == "1\n"
    assert (path / "empty").is_dir()
    assert (source / "a.txt").read_text() == "1\n"
    assert row(store, lease).workspace_id == f"snap_{kept(store, lease).store_id}"


@pytest.mark.slow
def test_a_copy_is_half_set_up_only_once(host: Host, copied: Claim, store: Database) -> None:
    lease = copied(setup=("echo 1 >> set-up", "test -e ../go"))
    with pytest.raises(WorkspaceError):
        host.prepare(lease)
    (host.home / "workspaces" / "go").touch()
    host.prepare(claim_again(store, lease))
    assert (host.path(lease) / "set-up").read_text() == "1\n"


@pytest.mark.slow
def test_a_copy_that_was_removed_is_made_again(
    host: Host, copied: Claim, store: Database, source: Path
) -> None:
    lease = copied()
    host.prepare(lease)
    (host.path(lease) / "a.txt").write_text("2\n")
    tree = host.record(lease)
    for remove in (host.path(lease), source):
        shutil.rmtree(remove)
        prepared = host.prepare(claim_again(store, lease), tree)
        assert (prepared.snapshot, prepared.cause) == (tree, None)
        assert (host.path(lease) / "a.txt").read_text() == "2\n"
        assert (host.path(lease) / "empty").is_dir()
        shutil.rmtree(host.path(lease))


@pytest.mark.slow
def test_a_copy_of_a_repository_leaves_the_repository_alone(
    host: Host, copied: Claim, begin: Claim, repository: Made
) -> None:
    lease = begin(workspace=Workspace(str(repository.path), "copy"))
    before = repository.state()
    host.prepare(lease)
    (host.path(lease) / "a.py").write_text("2\n")
    host.record(lease)
    after = repository.state()
    assert {part: after[part] for part in ("refs", "head", "index", "config")} == {
        part: before[part] for part in ("refs", "head", "index", "config")
    }


@pytest.mark.slow
def test_a_source_that_is_gone_is_told(host: Host, copied: Claim, source: Path) -> None:
    shutil.rmtree(source)
    with pytest.raises(WorkspaceError, match="source"):
        host.prepare(copied())


@pytest.mark.slow
def test_a_copy_of_a_runner_that_recorded_nothing_keeps_its_work(
    host: Host, copied: Claim, store: Database
) -> None:
    lease = copied()
    path = host.path(lease)
    path.mkdir(parents=True)
    (path / "a.txt").write_text("worked\n")
    place = update(runs).where(runs.c.id == lease.run_id).values(workspace_path=str(path))
    store.write(lambda connection: connection.execute(place))
    prepared = host.prepare(lease)
    assert prepared.cause == "created"
    assert (path / "a.txt").read_text() == "worked\n"
    assert kept(store, lease).path == str(path)


@pytest.mark.slow
def test_on_another_host_the_run_waits(
    hosts: Callable[[str], Host], copied: Claim, store: Database
) -> None:
    lease = copied()
    tree = hosts("here").prepare(lease).snapshot
    with pytest.raises(WorkspaceElsewhere, match="another host"):
        hosts("there").prepare(claim_again(store, lease), tree)


def test_a_shared_folder_and_none_at_all_are_not_recorded(
    host: Host, begin: Claim, source: Path
) -> None:
    shared = begin(workspace=Workspace(str(source), "shared"))
    none = begin(workspace=Workspace(None, "none"))
    assert host.prepare(shared).surroundings.workspace == source
    assert host.prepare(none).surroundings.workspace is None
    for lease in (shared, none):
        assert host.workspaces.record(lease, Interrupt()) is None
        assert not host.workspaces.holds(lease, "a.txt")
        with pytest.raises(WorkspaceError, match="no branch"):
            host.workspaces.deliver(lease, Ended("succeeded", "end_turn"), Interrupt())


@pytest.mark.slow
def test_trees_hold_what_is_in_the_copy_and_not_ignored(host: Host, copied: Claim) -> None:
    lease = copied(setup=("echo '*.log' > .gitignore",))
    host.prepare(lease)
    holds = host.workspaces.holds
    assert holds(lease, "a.txt")
    assert holds(lease, str(host.path(lease) / "new" / "file"))
    assert not holds(lease, "x.log")
    assert not holds(lease, "/etc/passwd")

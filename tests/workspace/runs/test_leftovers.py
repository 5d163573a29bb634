"""What is left of runs' workspaces, and removing it without losing work."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import update

from runner.core.run import Ended, Lease
from runner.core.workspace import Workspace
from runner.errors import WorkspaceError
from runner.ports import Interrupt
from runner.store.database import Database
from runner.store.tables import runs
from runner.workspace.leftovers import Leftover, Pruned, list_workspaces, prune
from tests.store.examples import NOW
from tests.workspace.repository.made import Made

from .conftest import Claim, Host, claim_again, row

DONE = Ended("succeeded", "end_turn")


@pytest.fixture
def listed(store: Database, host: Host) -> Callable[..., list[Leftover]]:
    return lambda **options: list_workspaces(store, host.home, dict(os.environ), **options)


@pytest.fixture
def pruned(store: Database, host: Host) -> Callable[..., list[Pruned]]:
    return lambda **options: prune(store, host.home, dict(os.environ), NOW, **options)


def end(
    store: Database,
    lease: Lease,
    tree: str | None,
    state: str = "succeeded",
    delivered: str | None = None,
) -> None:
    """The run ends with this tree recorded, and this commit delivered."""
    progress = row(store, lease).progress
    progress["files"]["tree"], progress["ending"]["delivered"] = tree, delivered
    ended = {"state": state, "worker_id": None, "due_at": None, "progress": progress}
    change = update(runs).where(runs.c.id == lease.run_id).values(ended)
    store.write(lambda connection: connection.execute(change))


def done(store: Database, host: Host, lease: Lease) -> str:
    """A run that worked, was delivered and has ended; its tree."""
    host.prepare(lease)
    (host.path(lease) / "a.py").write_text("2\n")
    tree = host.record(lease)
    commit = host.workspaces.deliver(lease, DONE, Interrupt())
    end(store, lease, tree, delivered=commit)
    return tree


@pytest.mark.slow
def test_what_was_delivered_and_not_changed_since_goes(
    store: Database,
    host: Host,
    begin: Claim,
    repository: Made,
    listed: Callable[..., list[Leftover]],
    pruned: Callable[..., list[Pruned]],
) -> None:
    lease = begin()
    tree = done(store, host, lease)
    (leftover,) = listed()
    assert (leftover.run_id, leftover.unsaved, leftover.here) == (lease.run_id, "", True)
    assert leftover.run is not None
    assert leftover.run.record is not None
    assert leftover.run.record.branch == "runner/Mend-it/one"
    assert leftover.size() > 0
    (gone,) = pruned()
    assert gone.removed
    assert not host.path(lease).exists()
    assert len(repository.git("worktree", "list").splitlines()) == 1
    assert repository.git("rev-parse", "runner/Mend-it/one"), "the branch stays"
    assert pruned() == []
    again = claim_again(store, lease)
    prepared = host.prepare(again, tree)
    assert (prepared.snapshot, prepared.cause) == (tree, None), "and so do the snapshots"
    assert (host.path(lease) / "a.py").read_text() == "2\n"


@pytest.mark.slow
@pytest.mark.parametrize("force", [False, True])
def test_the_workspace_of_a_run_that_goes_on_is_kept(
    store: Database, host: Host, begin: Claim, pruned: Callable[..., list[Pruned]], force: bool
) -> None:
    lease = begin()
    host.prepare(lease)
    (kept,) = pruned(force=force)
    assert (kept.removed, kept.why_kept) == (False, "its run has not ended: cancel it first")
    assert host.path(lease).exists()


@pytest.mark.slow
def test_work_that_was_not_delivered_goes_only_by_force(
    store: Database, host: Host, begin: Claim, pruned: Callable[..., list[Pruned]]
) -> None:
    lease = begin()
    end(store, lease, host.prepare(lease).snapshot, "cancelled")
    (kept,) = pruned()
    assert "not delivered" in kept.why_kept
    assert host.path(lease).exists()
    (gone,) = pruned(force=True)
    assert gone.removed
    assert not host.path(lease).exists()


@pytest.mark.slow
def test_what_a_run_did_after_it_was_delivered_goes_only_by_force(
    store: Database, host: Host, begin: Claim, pruned: Callable[..., list[Pruned]]
) -> None:
    lease = begin()
    done(store, host, lease)
    (host.path(lease) / "a.py").write_text("taken up again\n")
    end(store, lease, host.record(lease), "cancelled")
    (kept,) = pruned()
    assert "not delivered" in kept.why_kept


@pytest.mark.slow
def test_a_workspace_with_a_repository_in_it_goes_only_by_force(
    store: Database, host: Host, begin: Claim, repository: Made, pruned: Callable[..., list[Pruned]]
) -> None:
    lease = begin()
    host.prepare(lease)
    repository.git("init", "-q", str(host.path(lease) / "vendor"))
    (host.path(lease) / "vendor" / "a.py").write_text("mine\n")
    tree = host.record(lease)
    commit = host.workspaces.deliver(lease, DONE, Interrupt())
    end(store, lease, tree, delivered=commit)
    (kept,) = pruned()
    assert "a repository of its own): vendor" in kept.why_kept
    assert (host.path(lease) / "vendor" / "a.py").exists()
    assert pruned(force=True)[0].removed


@pytest.mark.slow
def test_a_filled_submodule_is_a_repository_of_its_own(
    store: Database,
    host: Host,
    begin: Claim,
    repository: Made,
    tmp_path: Path,
    pruned: Callable[..., list[Pruned]],
) -> None:
    repository.git("clone", "-q", str(repository.path), str(repository.path / "sub"))
    repository.git("add", "sub")
    repository.git("commit", "-q", "-m", "a submodule")
    lease = begin()
    done(store, host, lease)
    assert [each.removed for each in pruned()] == [True], "its folder is empty"
    lease = begin("two")
    host.prepare(lease)
    path = host.path(lease)
    repository.git("clone", "-q", str(repository.path), str(path / "sub"))
    tree = host.record(lease)
    assert list(host.workspaces.unrecorded(lease, tree, Interrupt())) == ["sub"]
    commit = host.workspaces.deliver(lease, DONE, Interrupt())
    end(store, lease, tree, delivered=commit)
    (kept,) = pruned()
    assert "a repository of its own): sub" in kept.why_kept


@pytest.mark.slow
@pytest.mark.parametrize("change", ["a file", "a commit", "something staged"])
def test_changes_since_the_end_go_only_by_force(
    store: Database,
    host: Host,
    begin: Claim,
    repository: Made,
    pruned: Callable[..., list[Pruned]],
    change: str,
) -> None:
    lease = begin()
    done(store, host, lease)
    path = host.path(lease)
    if change == "a commit":
        repository.git("-C", str(path), "commit", "-q", "--allow-empty", "-m", "mine")
    else:
        (path / "mine").write_text("x")
    if change == "something staged":
        repository.git("-C", str(path), "add", "mine")
        (path / "mine").unlink()
    (kept,) = pruned()
    assert (kept.removed, kept.why_kept) == (
        False,
        "its files were changed since they were recorded last",
    )
    assert path.exists()
    assert pruned(force=True)[0].removed


@pytest.mark.slow
def test_a_copy_goes_when_it_is_as_it_was_recorded(
    store: Database, host: Host, begin: Claim, tmp_path: Path, pruned: Callable[..., list[Pruned]]
) -> None:
    (tmp_path / "source").mkdir()
    lease = begin(workspace=Workspace(str(tmp_path / "source"), "copy"))
    host.prepare(lease)
    (host.path(lease) / "new").write_text("x")
    end(store, lease, host.record(lease), "stopped")
    (host.path(lease) / "new").write_text("y")
    assert [each.removed for each in pruned()] == [False]
    (host.path(lease) / "new").write_text("x")
    assert [each.removed for each in pruned()] == [True]


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_that_no_run_knows_is_told_and_kept(
    host: Host, pruned: Callable[..., list[Pruned]], force: bool
) -> None:
    stranger = host.home / "workspaces" / "mine"
    stranger.mkdir(parents=True)
    (kept,) = pruned(force=force)
    assert not kept.removed, "it may be a run's of another database"
    assert "no run of this database knows it" in kept.why_kept
    assert stranger.exists()
    assert pruned(job_id="job_1", force=force) == []


@pytest.mark.slow
def test_one_jobs_workspaces_are_listed_alone(
    store: Database, host: Host, begin: Claim, listed: Callable[..., list[Leftover]]
) -> None:
    one, two = begin("one"), begin("two")
    for lease in (one, two):
        host.prepare(lease)
    assert [each.run_id for each in listed()] == [one.run_id, two.run_id]
    job = row(store, two).job_id
    assert [each.run_id for each in listed(job_id=job)] == [two.run_id]


@pytest.mark.slow
def test_one_whose_folder_is_gone_is_listed_and_left(
    store: Database,
    host: Host,
    begin: Claim,
    listed: Callable[..., list[Leftover]],
    pruned: Callable[..., list[Pruned]],
) -> None:
    lease = begin()
    done(store, host, lease)
    shutil.rmtree(host.path(lease))
    assert [(each.run_id, each.here, each.unsaved) for each in listed()] == [
        (lease.run_id, False, "")
    ]
    assert pruned() == []


@pytest.mark.slow
def test_one_that_cannot_be_compared_is_kept(
    store: Database, host: Host, begin: Claim, repository: Made, pruned: Callable[..., list[Pruned]]
) -> None:
    lease = begin()
    done(store, host, lease)
    repository.path.rename(repository.path.with_name("away"))
    (kept,) = pruned()
    assert not kept.removed
    assert kept.why_kept.startswith("it cannot be compared with what is recorded of it: ")
    assert "\n" not in kept.why_kept


def stored(host: Host) -> set[Path]:
    """What lies in the stores of snapshots."""
    return set((host.home / "snapshots").rglob("*"))


@pytest.mark.slow
def test_looking_at_a_workspace_records_nothing(
    store: Database, host: Host, begin: Claim, listed: Callable[..., list[Leftover]]
) -> None:
    lease = begin()
    done(store, host, lease)
    assert listed()[0].unsaved == ""
    before = stored(host)
    (host.path(lease) / "mine").write_text("x")
    assert "changed since" in listed()[0].unsaved
    assert stored(host) == before


@pytest.mark.slow
def test_what_was_left_behind_on_another_host_is_compared_there(
    store: Database, hosts: Callable[[str], Host], begin: Claim, repository: Made, tmp_path: Path
) -> None:
    repository.git("init", "-q", "--bare", str(tmp_path / "remote"))
    remote = str(tmp_path / "remote")
    repository.git("push", "-q", remote, "main")
    here, there = hosts("here"), hosts("there")
    lease = begin(remote=remote)
    here.prepare(lease)
    (here.path(lease) / "a.py").write_text("2\n")
    tree = here.record(lease)
    again = claim_again(store, lease)
    there.prepare(again, tree)
    (there.path(again) / "a.py").write_text("3\n")
    tree = there.record(again)
    end(store, again, tree, delivered=there.workspaces.deliver(again, DONE, Interrupt()))

    def unsaved() -> str:
        (leftover,) = list_workspaces(store, here.home, dict(os.environ))
        return leftover.unsaved

    assert unsaved() == "", "all that is in it was recorded"
    (here.path(lease) / "mine").write_text("x")
    assert unsaved() == "its files were changed since they were recorded last"
    (pruned,) = prune(store, here.home, dict(os.environ), NOW)
    assert not pruned.removed


def test_the_size_leaves_out_what_is_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stays").write_text("12345")
    gone = [(str(tmp_path), [], ["gone", "stays"])]
    monkeypatch.setattr(os, "walk", lambda _: iter(gone))
    assert Leftover("run_1", tmp_path, None, "").size() == 5


@pytest.mark.slow
def test_nothing_is_left_beside_a_workspace_that_was_removed(
    store: Database, host: Host, begin: Claim, pruned: Callable[..., list[Pruned]]
) -> None:
    done(store, host, begin())
    assert [each.removed for each in pruned()] == [True]
    assert list((host.home / "workspaces").iterdir()) == []


@pytest.mark.slow
def test_a_run_that_goes_on_after_it_was_removed_is_delivered_on_top(
    store: Database, host: Host, begin: Claim, repository: Made, pruned: Callable[..., list[Pruned]]
) -> None:
    lease = begin()
    tree = done(store, host, lease)
    first = repository.git("rev-parse", "runner/Mend-it/one")
    assert [each.removed for each in pruned()] == [True]
    again = claim_again(store, lease)
    host.prepare(again, tree)
    (host.path(lease) / "a.py").write_text("3\n")
    host.record(again)
    host.workspaces.deliver(again, DONE, Interrupt())
    assert repository.git("rev-parse", "runner/Mend-it/one^") == first


@pytest.mark.slow
def test_a_link_in_the_place_of_a_workspace_is_not_followed(
    store: Database, host: Host, begin: Claim, repository: Made, pruned: Callable[..., list[Pruned]]
) -> None:
    lease = begin()
    tree = done(store, host, lease)
    path = host.path(lease)
    shutil.rmtree(path)
    path.symlink_to(repository.path)
    for work in (
        lambda: host.record(lease),
        lambda: host.workspaces.restore(lease, tree, Interrupt()),
        lambda: host.workspaces.deliver(lease, DONE, Interrupt()),
    ):
        with pytest.raises(WorkspaceError, match="a link has replaced the workspace"):
            work()
    (kept,) = pruned()
    assert "a link has replaced" in kept.why_kept
    assert repository.git("status", "--porcelain") == ""
    host.prepare(claim_again(store, lease), tree)
    assert not path.is_symlink()
    assert (path / "a.py").read_text() == "2\n"
    assert (repository.path / "a.py").read_text() == "1\n"

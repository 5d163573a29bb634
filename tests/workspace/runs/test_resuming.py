"""What the next attempt finds: files as they were recorded, whoever was cut off or changed them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.run import Ended, Lease
from runner.errors import Interrupted, WorkspaceError
from runner.ports import Interrupt
from runner.store.database import Database
from runner.workspace.notes import MadeNotes
from tests.workspace.repository.made import Made

from .conftest import Claim, Host, claim_again, kept, row

DONE = Ended("succeeded", "end_turn")


def git(host: Host, lease: Lease, repository: Made, *arguments: str) -> str:
    return repository.git("-C", str(host.path(lease)), *arguments)


def files(path: Path) -> dict[str, str]:
    """All files of a worktree, by name."""
    return {
        str(file.relative_to(path)): file.read_text()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != ".git"
    }


@pytest.mark.slow
def test_what_is_as_it_was_recorded_stays(host: Host, begin: Claim, store: Database) -> None:
    lease = begin()
    tree = host.prepare(lease).snapshot
    again = claim_again(store, lease)
    prepared = host.prepare(again, tree)
    assert (prepared.snapshot, prepared.cause, prepared.found) == (tree, None, None)


@pytest.mark.slow
def test_undoing_puts_files_back_and_what_was_found_aside(
    host: Host, begin: Claim, store: Database
) -> None:
    lease = begin(setup=("echo kept > dependency.log",))
    tree = host.prepare(lease).snapshot
    path = host.path(lease)
    before = files(path)
    (path / "a.py").write_text("half")
    (path / "new").mkdir()
    (path / "new" / "file").write_text("x")
    (path / "b.py").unlink()
    prepared = host.prepare(claim_again(store, lease), tree, undo=True)
    assert (prepared.snapshot, prepared.cause) == (tree, "restored")
    assert prepared.found not in (None, tree)
    assert files(path) == before
    assert (path / "dependency.log").exists(), "ignored files are left alone"


@pytest.mark.slow
def test_what_a_person_changed_stays_when_nothing_was_in_doubt(
    host: Host, begin: Claim, store: Database
) -> None:
    lease = begin()
    tree = host.prepare(lease).snapshot
    (host.path(lease) / "a.py").write_text("mine")
    prepared = host.prepare(claim_again(store, lease), tree)
    assert prepared.cause == "changed"
    assert prepared.snapshot != tree
    assert (host.path(lease) / "a.py").read_text() == "mine"


@pytest.mark.slow
def test_a_call_that_was_recorded_but_not_stored_is_undone_too(
    host: Host, begin: Claim, store: Database
) -> None:
    lease = begin()
    tree = host.prepare(lease).snapshot
    (host.path(lease) / "a.py").write_text("done")
    after = host.record(lease)
    prepared = host.prepare(claim_again(store, lease), tree, undo=True)
    assert (prepared.cause, prepared.found) == ("restored", after)
    assert (host.path(lease) / "a.py").read_text() == "1\n"


@pytest.mark.slow
def test_a_commit_in_doubt_is_undone_with_what_was_staged(
    host: Host, begin: Claim, store: Database, repository: Made
) -> None:
    lease = begin()
    host.prepare(lease)
    path = host.path(lease)
    (path / "a.py").write_text("2\n")
    git(host, lease, repository, "add", "a.py")
    tree = host.record(lease)
    git(host, lease, repository, "commit", "-q", "-m", "second")
    assert host.record(lease) != tree, "a commit changes no file, but what the next command finds"
    host.prepare(claim_again(store, lease), tree, undo=True)
    assert git(host, lease, repository, "log", "--format=%s") == "work"
    assert git(host, lease, repository, "status", "--porcelain") == "M  a.py"
    git(host, lease, repository, "commit", "-q", "-m", "second")
    assert git(host, lease, repository, "log", "--format=%s").split() == ["second", "work"]


@pytest.mark.slow
def test_a_branch_of_the_agents_own_is_gone_back_to(
    host: Host, begin: Claim, store: Database, repository: Made
) -> None:
    lease = begin()
    host.prepare(lease)
    git(host, lease, repository, "checkout", "-q", "-b", "try")
    git(host, lease, repository, "commit", "-q", "--allow-empty", "-m", "tried")
    tree = host.record(lease)
    git(host, lease, repository, "commit", "-q", "--allow-empty", "-m", "again")
    host.prepare(claim_again(store, lease), tree, undo=True)
    assert git(host, lease, repository, "symbolic-ref", "--short", "HEAD") == "try"
    assert git(host, lease, repository, "log", "-1", "--format=%s") == "tried"


@pytest.mark.slow
def test_branches_tags_and_the_stash_are_as_they_were(
    host: Host, begin: Claim, store: Database, repository: Made
) -> None:
    lease = begin()
    host.prepare(lease)
    (host.path(lease) / "a.py").write_text("stashed first")
    git(host, lease, repository, "stash", "-q")
    git(host, lease, repository, "tag", "kept")
    git(host, lease, repository, "branch", "gone")
    tree = host.record(lease)
    before = git(host, lease, repository, "for-each-ref")
    (host.path(lease) / "a.py").write_text("stashed second")
    git(host, lease, repository, "stash", "-q")
    git(host, lease, repository, "tag", "-d", "kept")
    git(host, lease, repository, "branch", "-D", "gone")
    git(host, lease, repository, "checkout", "-q", "-b", "gone/feature")
    git(host, lease, repository, "commit", "-q", "--allow-empty", "-m", "tried")
    assert host.record(lease) != tree
    again = claim_again(store, lease)
    assert host.prepare(again, tree, undo=True).snapshot == tree
    assert host.record(again) == tree
    assert git(host, lease, repository, "for-each-ref") == before
    assert len(git(host, lease, repository, "stash", "list").splitlines()) == 1
    git(host, lease, repository, "stash", "pop", "-q")
    assert (host.path(lease) / "a.py").read_text() == "stashed first"


@pytest.mark.slow
def test_locks_of_a_killed_git_are_taken_away(
    host: Host, begin: Claim, store: Database, repository: Made
) -> None:
    lease = begin()
    tree = host.prepare(lease).snapshot
    admin = host.path(lease).with_name(f".{lease.run_id}.git")
    (admin / "index.lock").touch()
    (host.path(lease) / "a.py").write_text("half")
    host.prepare(claim_again(store, lease), tree, undo=True)
    git(host, lease, repository, "add", "-A")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["folder", "git_too", "only_the_link", "whole_home"])
def test_a_workspace_that_was_removed_by_hand_is_made_again(
    host: Host, begin: Claim, store: Database, repository: Made, how: str
) -> None:
    lease = begin(setup=("echo 1 >> setup.log", "echo set up > made.txt"))
    host.prepare(lease)
    path = host.path(lease)
    (path / "a.py").write_text("worked\n")
    git(host, lease, repository, "commit", "-q", "-a", "-m", "worked")
    (path / "b.py").unlink()
    tree = host.record(lease)
    before = files(path)
    if how == "only_the_link":
        (path / ".git").unlink()
    else:
        shutil.rmtree(path if how != "whole_home" else path.parent)
    if how == "git_too":
        shutil.rmtree(path.with_name(f".{lease.run_id}.git"))
    prepared = host.prepare(claim_again(store, lease), tree)
    assert (prepared.snapshot, prepared.cause, prepared.found) == (tree, None, None)
    assert files(path) == before
    assert git(host, lease, repository, "log", "--format=%s", "--no-merges").split("\n") == [
        "worked",
        "Set up by job Mend it",
        "work",
    ]
    assert git(host, lease, repository, "symbolic-ref", "--short", "HEAD") == "runner/Mend-it/one"


@pytest.mark.slow
def test_what_is_in_the_place_of_a_broken_worktree_is_put_aside(
    host: Host, begin: Claim, store: Database, repository: Made
) -> None:
    lease = begin()
    tree = host.prepare(lease).snapshot
    path = host.path(lease)
    (path / "a.py").write_text("not recorded")
    (path / ".git").unlink()
    shutil.rmtree(path.with_name(f".{lease.run_id}.git"))
    prepared = host.prepare(claim_again(store, lease), tree)
    assert prepared.cause == "restored"
    assert prepared.found is not None
    host.workspaces.restore(claim_again(store, lease), prepared.found, Interrupt())
    assert (path / "a.py").read_text() == "not recorded"


@pytest.mark.slow
def test_an_agent_that_leaves_git_cannot_touch_what_is_around_its_worktree(
    hosts: object, begin: Claim, store: Database, repository: Made
) -> None:
    inside = Host(store, repository.path / ".runner")
    try:
        lease = begin()
        inside.prepare(lease)
        path = inside.path(lease)
        (path / ".git").unlink()
        (path / "a.py").write_text("by the agent\n")
        before = (repository.path / ".git" / "index").read_bytes()
        commit = inside.workspaces.deliver(lease, DONE, Interrupt())
        assert repository.git("show", f"{commit}:a.py") == "by the agent"
        assert (repository.path / ".git" / "index").read_bytes() == before
    finally:
        inside.tools.close()


@pytest.mark.slow
def test_snapshots_that_are_gone_are_told(host: Host, begin: Claim, store: Database) -> None:
    lease = begin()
    host.prepare(lease)
    (host.path(lease) / "a.py").write_text("worked")
    tree = host.record(lease)
    (host.path(lease) / "a.py").write_text("half")
    for kept_in in (host.home / "snapshots").glob("*.git"):
        shutil.rmtree(kept_in)
    with pytest.raises(WorkspaceError, match=f"{tree}.* not in"):
        host.prepare(claim_again(store, lease), tree, undo=True)


@pytest.mark.slow
def test_files_that_were_half_put_back_are_put_back(
    host: Host, begin: Claim, store: Database
) -> None:
    lease = begin()
    tree = host.prepare(lease).snapshot
    # As if the attempt had been killed while it put files back after a verification.
    note = MadeNotes.beside(host.path(lease), lease.attempt)
    made = note.read()
    assert made is not None
    note.write(replace(made, put_back=False))
    (host.path(lease) / "a.py").write_text("half")
    prepared = host.prepare(claim_again(store, lease), tree)
    assert (prepared.snapshot, prepared.cause) == (tree, "restored")
    assert prepared.found not in (None, tree), "a person may have changed it since"
    assert (host.path(lease) / "a.py").read_text() == "1\n"


@pytest.mark.slow
def test_a_run_that_goes_on_after_its_delivery_finds_nothing_changed(
    host: Host, begin: Claim, store: Database, repository: Made
) -> None:
    lease = begin()
    host.prepare(lease)
    (host.path(lease) / "a.py").write_text("2\n")
    tree = host.record(lease)
    commit = host.workspaces.deliver(lease, DONE, Interrupt())
    again = claim_again(store, lease)
    prepared = host.prepare(again, tree)
    assert (prepared.snapshot, prepared.cause) == (tree, None)
    (host.path(lease) / "a.py").write_text("half\n")
    prepared = host.prepare(claim_again(store, again), tree, undo=True)
    assert git(host, lease, repository, "rev-parse", "HEAD") == commit
    assert git(host, lease, repository, "status", "--porcelain") == ""


@pytest.mark.slow
def test_a_fork_works_in_a_worktree_of_its_own(
    host: Host, begin: Claim, store: Database, repository: Made
) -> None:
    first = begin()
    host.prepare(first)
    (host.path(first) / "a.py").write_text("2\n")
    git(host, first, repository, "commit", "-q", "-a", "-m", "by the agent")
    tree = host.record(first)
    fork = begin()
    prepared = host.prepare(fork, tree)
    assert (prepared.snapshot, prepared.cause, prepared.found) == (tree, None, None)
    assert (host.path(fork) / "a.py").read_text() == "2\n"
    assert git(host, fork, repository, "log", "-1", "--format=%s") == "by the agent"
    assert kept(store, fork).branch == f"runner/Mend-it/one-{fork.run_id[-6:]}"
    assert row(store, fork).workspace_path == str(host.path(fork))
    git(host, fork, repository, "commit", "-q", "--allow-empty", "-m", "by the fork")
    assert git(host, first, repository, "log", "-1", "--format=%s") == "by the agent"


def test_a_cut_prepare_leaves_what_the_next_one_makes_anew(
    host: Host, begin: Claim, store: Database
) -> None:
    lease = begin(setup=("touch begun; sleep 60",))
    interrupt = Interrupt()
    host.tools.command = _cutting(host, interrupt)  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        host.prepare(lease, interrupt=interrupt)
    assert kept(store, lease) is None


def _cutting(host: Host, interrupt: Interrupt):  # type: ignore[no-untyped-def]
    run = host.tools.command

    def cut(command: object, given: Interrupt) -> object:
        interrupt.set("shutdown")
        return run(command, given)  # type: ignore[arg-type]

    return cut

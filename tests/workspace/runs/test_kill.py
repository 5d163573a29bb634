"""Workers killed with SIGKILL at calls of git while they make, put back and deliver a workspace: the next
attempt finds or makes it whole. With RUNNER_SWEEP=all they are killed at every call."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.core.run import Lease
from runner.ports import Interrupt
from runner.store.database import Database
from tests.workspace.repository.made import Made

from .conftest import Claim, Host, claim_again, kept
from .dying import DONE, Deed, dies_at

pytestmark = pytest.mark.timeout(900)

EVERY = 1 if os.environ.get("RUNNER_SWEEP") == "all" else 21
LEAST = 15  # each of the three calls git more often


def deed(what: str, host: Host, store: Database, lease: Lease, **more: object) -> Deed:
    url = str(store.url)
    return Deed(what, url, host.home.parent, lease, **more)  # type: ignore[arg-type]


def worktrees(repository: Made) -> list[str]:
    listed = repository.git("worktree", "list", "--porcelain").splitlines()
    return [Path(line.split()[1]).name for line in listed if line.startswith("worktree ")]


def test_a_worktree_that_was_half_made_is_made_whole_by_the_next_attempt(
    host: Host, begin: Claim, store: Database, repository: Made
) -> None:
    setup = ("mkdir -p built && echo 1 >> built/once", "echo locked >> lockfile")
    call, killed = 1 - EVERY, True
    while killed:
        call = max(1, call + EVERY)
        lease = begin(f"item-{call}", setup=setup)
        killed = dies_at(deed("prepare", host, store, lease), call)
        again = claim_again(store, lease)
        prepared = host.prepare(again)
        path = host.path(lease)
        assert prepared.cause == "created"
        assert (path / "built" / "once").read_text() == "1\n"
        assert (path / "lockfile").read_text() == "locked\n"
        assert worktrees(repository) == [repository.path.name], "they are the user's"
        branches = repository.git("branch", "--list", f"runner/*/item-{call}*").split()
        assert branches == [f"runner/Mend-it/item-{call}"]
        assert repository.git("-C", str(path), "status", "--porcelain") == ""
        count = repository.git(
            "-C", str(path), "rev-list", "--count", f"main..{kept(store, lease).branch}"
        )
        assert count == "1", "set up once"
    assert call > LEAST
    assert repository.git("status", "--porcelain") == ""


def test_files_that_were_half_put_back_are_put_back_by_the_next_attempt(
    host: Host, begin: Claim, store: Database, repository: Made
) -> None:
    lease = begin()
    host.prepare(lease)
    path = host.path(lease)
    (path / "a.py").write_text("2\n")
    repository.git("-C", str(path), "add", "a.py")
    tree = host.record(lease)
    call, killed = 4 - EVERY, True
    while killed:
        call = max(1, call + EVERY)
        repository.git("-C", str(path), "commit", "-q", "-m", "half")
        (path / "b.py").unlink()
        (path / "new").write_text("x")
        lease = claim_again(store, lease)
        killed = dies_at(deed("prepare", host, store, lease, tree=tree, undo=True), call)
        lease = claim_again(store, lease)
        assert host.prepare(lease, tree, undo=True).snapshot == tree
        assert (path / "a.py").read_text() == "2\n"
        assert (path / "b.py").exists()
        assert not (path / "new").exists()
        assert repository.git("-C", str(path), "log", "--format=%s") == "work"
        assert repository.git("-C", str(path), "status", "--porcelain") == "M  a.py"
    assert call > LEAST


def test_a_delivery_that_was_cut_off_is_made_once(
    host: Host, begin: Claim, store: Database, repository: Made
) -> None:
    call, killed = 6 - EVERY, True
    while killed:
        call = max(1, call + EVERY)
        lease = begin(f"item-{call}")
        host.prepare(lease)
        path = host.path(lease)
        (path / "a.py").write_text("2\n")
        tree = host.record(lease)
        killed = dies_at(deed("deliver", host, store, lease), call)
        lease = claim_again(store, lease)
        prepared = host.prepare(lease, tree)
        assert (prepared.snapshot, prepared.cause) == (tree, None), (
            "it was nobody who changed anything"
        )
        commit = host.workspaces.deliver(lease, DONE, Interrupt())
        subjects = repository.git("log", "--format=%s", f"runner/Mend-it/item-{call}")
        assert subjects.splitlines() == [f"Mend it: item-{call}", "work"]
        assert repository.git("show", "--format=", "--name-only", commit) == "a.py"
        assert repository.git("-C", str(path), "rev-parse", "HEAD") == commit
        assert repository.git("-C", str(path), "status", "--porcelain") == ""
    assert call > LEAST

"""Workspaces with something in them that no tree holds: made again without it, and never delivered in
half."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.core.run import Ended
from runner.errors import WorkspaceError
from runner.ports import Interrupt
from runner.store.database import Database
from runner.workspace.repository import Repository
from runner.workspace.worktree import Worktree
from tests.workspace.places import git_that
from tests.workspace.repository.made import Made

from .conftest import Claim, Host, claim_again

DONE = Ended("succeeded", "end_turn")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["removed", "another host"])
def test_a_run_goes_on_without_a_repository_that_its_agent_made(
    store: Database, hosts: Callable[[str], Host], begin: Claim, repository: Made, way: str
) -> None:
    remote = repository.path.with_name("remote")
    repository.git("init", "-q", "--bare", str(remote))
    repository.git("push", "-q", str(remote), "main")
    host = hosts("here")
    lease = begin(remote=str(remote))
    host.prepare(lease)
    path = host.path(lease)
    repository.git("init", "-q", str(path / "vendor"))
    (path / "vendor" / "inner").write_text("lost")
    (path / "a.py").write_text("2\n")
    tree = host.record(lease)
    if way == "removed":
        shutil.rmtree(path)
    else:
        host = hosts("there")
    again = claim_again(store, lease)
    prepared = host.prepare(again, tree, undo=True)
    assert (prepared.cause, prepared.found) == ("incomplete", tree)
    assert prepared.snapshot == host.record(again) != tree
    assert (host.path(again) / "a.py").read_text() == "2\n"
    assert not (host.path(again) / "vendor").exists()
    commit = host.workspaces.deliver(again, DONE, Interrupt())
    assert repository.git("show", f"{commit}:a.py") == "2"


def test_what_cannot_be_read_is_not_delivered_and_says_what_to_do(
    host: Host, begin: Claim, repository: Made, tmp_path: Path
) -> None:
    lease = begin()
    host.prepare(lease)
    refused = """case " $* " in *" add "*)
        echo 'error: open("a.py"): Permission denied' >&2; exit 128;;
    esac"""
    source = Repository(repository.path, git_that(tmp_path / "bin", refused))
    with pytest.raises(WorkspaceError, match=r"a\.py.*make them readable"):
        Worktree(source, host.path(lease)).write_tree()


@pytest.mark.slow
def test_a_setup_command_that_was_killed_from_outside_is_run_again_once(
    host: Host, begin: Claim
) -> None:
    killed = "mkdir once && kill -9 $PPID && sleep 600"
    lease = begin(setup=(f"{killed}; echo set up > made",))
    host.prepare(lease)
    assert (host.path(lease) / "made").read_text() == "set up\n"
    with pytest.raises(
        WorkspaceError, match="the process that watched over the command was killed"
    ):
        host.prepare(begin("two", setup=("kill -9 $PPID; sleep 600",)))

"""Runs that go on on another host, which shares no folder with the first: snapshots are fetched from a
remote. And repositories that are cloned from a URL."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import update

from runner.core.run import Ended, Lease
from runner.errors import WorkspaceElsewhere, WorkspaceError
from runner.ports import Interrupt
from runner.store import workspaces
from runner.store.database import Database
from runner.store.tables import runs
from runner.workspace.snapshot_store import store_id
from tests.workspace.repository.made import Made

from .conftest import Claim, Host, claim_again, kept, row

DONE = Ended("succeeded", "end_turn")
BRANCH = "runner/Mend-it/one"
Hosts = Callable[[str], Host]


@pytest.fixture
def remote(tmp_path: Path, repository: Made) -> Made:
    """A bare repository that both hosts reach, with what the person has pushed."""
    made = Made(tmp_path / "remote.git", repository.environment, "--bare")
    repository.git("push", "-q", str(made.path), "main")
    return made


@contextmanager
def out_of_reach(repository: Made) -> Iterator[None]:
    """The person's repository is on the first host only."""
    away = repository.path.with_name("unreachable")
    repository.path.rename(away)
    yield
    away.rename(repository.path)


def log(repository: Made, host: Host, lease: Lease) -> list[str]:
    path = str(host.path(lease))
    return repository.git("-C", path, "log", "--format=%s").splitlines()


@pytest.mark.slow
def test_a_run_goes_on_on_a_host_without_the_repository(
    hosts: Hosts, begin: Claim, store: Database, repository: Made, remote: Made
) -> None:
    here, there = hosts("here"), hosts("there")
    lease = begin(remote=str(remote.path), setup=("echo set up > made.txt; echo 1 > dep.log",))
    here.prepare(lease)
    path = here.path(lease)
    (path / "a.py").write_text("2\n")
    repository.git("-C", str(path), "commit", "-q", "-a", "-m", "by the agent")
    (path / "b.py").write_text("worked\n")
    (path / "empty").mkdir()
    tree = here.record(lease)
    (path / "b.py").write_text("not recorded\n")
    repository.path.rename(repository.path.with_name("unreachable"))
    shutil.move(here.home, here.home.with_name("unreachable"))

    again = claim_again(store, lease)
    prepared = there.prepare(again, tree)
    assert (prepared.snapshot, prepared.cause, prepared.found) == (tree, None, None)
    path = there.path(lease)
    assert (path / "a.py").read_text() == "2\n"
    assert (path / "b.py").read_text() == "worked\n"
    assert (path / "empty").is_dir()
    assert (path / "dep.log").exists(), "what git ignores was set up again"
    assert log(remote, there, lease) == ["by the agent", "Set up by job Mend it", "work"]
    assert row(store, lease).workspace_id is None, "any host may have it"

    commit = there.workspaces.deliver(again, DONE, Interrupt())
    assert remote.git("rev-parse", "runner/Mend-it/one") == commit
    assert remote.git("rev-parse", f"refs/runner/runs/{lease.run_id}/commit") == commit
    assert remote.git("show", f"{commit}:b.py") == "worked"


@pytest.mark.slow
def test_back_on_the_first_host_what_was_done_elsewhere_is_fetched(
    hosts: Hosts, begin: Claim, store: Database, repository: Made, remote: Made
) -> None:
    here, there = hosts("here"), hosts("there")
    first = begin(remote=str(remote.path))
    tree = here.prepare(first).snapshot
    second = claim_again(store, first)
    with out_of_reach(repository):
        there.prepare(second, tree)
        (there.path(first) / "a.py").write_text("there\n")
        remote.git("-C", str(there.path(first)), "commit", "-q", "-a", "-m", "there")
        tree = there.record(second)
    assert kept(store, first).store_id == store_id(there.home)

    third = claim_again(store, first)
    prepared = here.prepare(third, tree)
    assert (prepared.snapshot, prepared.cause, prepared.found) == (tree, None, None)
    assert (here.path(first) / "a.py").read_text() == "there\n"
    assert log(repository, here, first) == ["there", "work"]
    assert kept(store, first).store_id == store_id(here.home)


@pytest.mark.slow
def test_what_a_person_changed_on_a_host_left_behind_is_put_aside(
    hosts: Hosts, begin: Claim, store: Database, repository: Made, remote: Made
) -> None:
    here, there = hosts("here"), hosts("there")
    first = begin(remote=str(remote.path))
    tree = here.prepare(first).snapshot
    second = claim_again(store, first)
    with out_of_reach(repository):
        there.prepare(second, tree)
        (there.path(first) / "a.py").write_text("there\n")
        tree = there.record(second)
    (here.path(first) / "a.py").write_text("mine\n")
    prepared = here.prepare(claim_again(store, first), tree)
    assert prepared.cause == "restored"
    assert (here.path(first) / "a.py").read_text() == "there\n"
    here.workspaces.restore(claim_again(store, first), str(prepared.found), Interrupt())
    assert (here.path(first) / "a.py").read_text() == "mine\n"


@pytest.mark.slow
def test_a_delivery_on_another_host_moves_the_branch_on(
    hosts: Hosts, begin: Claim, store: Database, repository: Made, remote: Made
) -> None:
    here, there = hosts("here"), hosts("there")
    first = begin(remote=str(remote.path))
    tree = here.prepare(first).snapshot
    here.workspaces.deliver(first, Ended("failed", "verify"), Interrupt())
    second = claim_again(store, first)
    repository.path.rename(repository.path.with_name("unreachable"))
    there.prepare(second, tree)
    (there.path(first) / "a.py").write_text("2\n")
    commit = there.workspaces.deliver(second, DONE, Interrupt())
    assert remote.git("rev-parse", "runner/Mend-it/one") == commit


@pytest.mark.slow
def test_a_crash_between_the_push_and_its_row_leaves_a_delivery_that_another_host_replaces(
    hosts: Hosts,
    begin: Claim,
    store: Database,
    repository: Made,
    remote: Made,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, there = hosts("here"), hosts("there")
    first = begin(remote=str(remote.path))
    here.prepare(first)
    (here.path(first) / "a.py").write_text("2\n")
    tree = here.record(first)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(workspaces, "save_delivery", killed)
        with pytest.raises(KeyboardInterrupt):
            here.workspaces.deliver(first, Ended("failed", "verify"), Interrupt())
    pushed = remote.git("rev-parse", BRANCH)
    assert kept(store, first).commit_id is None
    second = claim_again(store, first)
    with out_of_reach(repository):
        there.prepare(second, tree)
        commit = there.workspaces.deliver(second, DONE, Interrupt())
    assert remote.git("rev-parse", BRANCH) == commit != pushed
    assert remote.git("rev-parse", f"{commit}^") == remote.git("rev-parse", "main")
    assert kept(store, second).commit_id == commit


@pytest.mark.slow
def test_one_attempt_delivers_again_what_changed_since(
    hosts: Hosts, begin: Claim, store: Database, remote: Made
) -> None:
    """What is said to a run while its commit is made has it go on."""
    here = hosts("here")
    lease = begin(remote=str(remote.path))
    here.prepare(lease)
    (here.path(lease) / "a.py").write_text("2\n")
    first = here.workspaces.deliver(lease, DONE, Interrupt())
    (here.path(lease) / "a.py").write_text("3\n")
    here.record(lease)
    second = here.workspaces.deliver(lease, DONE, Interrupt())
    assert remote.git("rev-parse", BRANCH) == second
    assert remote.git("rev-parse", f"{second}^") == first
    assert remote.git("show", f"{second}:a.py") == "3"
    assert kept(store, lease).commit_id == second


@pytest.mark.slow
def test_a_branch_that_someone_else_moved_at_the_remote_is_left_to_them(
    hosts: Hosts, begin: Claim, remote: Made
) -> None:
    here = hosts("here")
    lease = begin(remote=str(remote.path))
    here.prepare(lease)
    remote.git("branch", "runner/Mend-it/one", "main")
    theirs = remote.git("rev-parse", "main")
    with pytest.raises(WorkspaceError, match="someone else has moved the branch"):
        here.workspaces.deliver(lease, DONE, Interrupt())
    assert remote.git("rev-parse", "runner/Mend-it/one") == theirs


@pytest.mark.slow
def test_a_branch_that_the_remote_has_already_is_left_to_its_owner(
    hosts: Hosts, begin: Claim, store: Database, remote: Made
) -> None:
    here = hosts("here")
    remote.git("branch", "runner/Mend-it/one", "main")
    lease = begin(remote=str(remote.path))
    here.prepare(lease)
    commit = here.workspaces.deliver(lease, DONE, Interrupt())
    own = f"runner/Mend-it/one-{lease.run_id[-6:]}"
    assert kept(store, lease).branch == own
    assert remote.git("rev-parse", own) == commit


@pytest.mark.slow
def test_a_remote_that_does_not_answer_is_told(hosts: Hosts, begin: Claim, remote: Made) -> None:
    here = hosts("here")
    lease = begin(remote=str(remote.path))
    here.prepare(lease)
    shutil.rmtree(remote.path)
    (here.path(lease) / "a.py").write_text("2\n")
    with pytest.raises(WorkspaceError, match=r"remote\.git"):
        here.record(lease)


@pytest.mark.slow
def test_a_remote_that_comes_back_is_asked_again(hosts: Hosts, begin: Claim, remote: Made) -> None:
    here = hosts("here")
    lease = begin(remote=str(remote.path))
    here.prepare(lease)
    away = remote.path.with_name("away")
    remote.path.rename(away)
    waits: list[float] = []

    class Returning(Interrupt):
        def wait(self, seconds: float) -> bool:
            waits.append(seconds)
            if len(waits) == 3:
                away.rename(remote.path)
            return False

    (here.path(lease) / "a.py").write_text("2\n")
    tree = here.open(remote_seconds=120.0).record(lease, Returning())
    assert waits == [0.5, 1.0, 2.0]
    shown = remote.git("rev-parse", f"refs/runner/runs/{lease.run_id}/{lease.attempt}^{{tree}}")
    assert shown == tree


def test_without_a_remote_the_run_waits_for_its_host(
    hosts: Hosts, begin: Claim, store: Database
) -> None:
    lease = begin()
    tree = hosts("here").prepare(lease).snapshot
    with pytest.raises(WorkspaceElsewhere):
        hosts("there").prepare(claim_again(store, lease), tree)


@pytest.mark.slow
def test_a_fork_fetches_what_the_other_run_recorded(
    hosts: Hosts, begin: Claim, store: Database, repository: Made, remote: Made
) -> None:
    here, there = hosts("here"), hosts("there")
    first = begin(remote=str(remote.path))
    here.prepare(first)
    (here.path(first) / "a.py").write_text("2\n")
    tree = here.record(first)
    fork = begin(remote=str(remote.path))
    of = update(runs).where(runs.c.id == fork.run_id).values(fork_of=first.run_id)
    store.write(lambda connection: connection.execute(of))
    with out_of_reach(repository):
        assert there.prepare(fork, tree).snapshot == tree
    assert (there.path(fork) / "a.py").read_text() == "2\n"


@pytest.mark.slow
def test_a_url_is_cloned_once_for_all_its_runs(
    hosts: Hosts, begin: Claim, remote: Made, store: Database
) -> None:
    here = hosts("here")
    leases = [begin(key, path=None, url=f"file://{remote.path}") for key in ("one", "two")]
    for lease in leases:
        here.prepare(lease)
        assert (here.path(lease) / "a.py").read_text() == "1\n"
    (clone,) = (here.home / "repositories").glob("*.git")
    commit = here.workspaces.deliver(leases[0], DONE, Interrupt())
    assert remote.git("-C", str(clone), "rev-parse", "runner/Mend-it/one") == commit


@pytest.mark.slow
def test_a_clone_learns_of_newer_commits(
    hosts: Hosts, begin: Claim, remote: Made, repository: Made
) -> None:
    here = hosts("here")
    here.prepare(begin(path=None, url=str(remote.path)))
    commit = repository.commit(c__py="3\n")
    repository.git("push", "-q", str(remote.path), "main")
    newer = begin("two", path=None, url=str(remote.path), commit=commit)
    here.prepare(newer)
    assert (here.path(newer) / "c.py").exists()


@pytest.mark.slow
def test_a_base_that_is_on_no_branch_is_cloned_by_its_ref(
    hosts: Hosts, begin: Claim, remote: Made, repository: Made
) -> None:
    here = hosts("here")
    commit = repository.commit(c__py="3\n")
    repository.git("push", "-q", str(remote.path), f"{commit}:refs/runner/bases/{commit}")
    lease = begin(remote=str(remote.path), commit=commit)
    repository.path.rename(repository.path.with_name("unreachable"))
    here.prepare(lease)
    assert (here.path(lease) / "c.py").exists()


@pytest.mark.slow
def test_a_url_without_the_base_is_told(hosts: Hosts, begin: Claim, remote: Made) -> None:
    lease = begin(path=None, url=str(remote.path), commit="1" * 40)
    with pytest.raises(WorkspaceError, match=f"remote.git has no commit {'1' * 40}"):
        hosts("here").prepare(lease)

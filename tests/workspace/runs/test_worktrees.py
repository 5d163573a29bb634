"""Runs in mode git: a worktree each, made ready once, beside a checkout that nobody touches."""

from __future__ import annotations

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from runner.core.run import Lease
from runner.errors import HostFaultError, LeaseLost, WorkspaceError
from runner.ports import Interrupt
from runner.store.database import Database
from tests.workspace.repository.made import Made

from .conftest import Claim, Host, claim_again, kept, row
from .dying import Deed, fails_without_room


def branch_of(repository: Made, host: Host, lease: Lease) -> str:
    head = repository.git("-C", str(host.path(lease)), "symbolic-ref", "HEAD")
    return head.removeprefix("refs/heads/")


@pytest.mark.slow
def test_a_run_gets_a_worktree_at_the_base_on_a_branch_of_its_own(
    host: Host, begin: Claim, repository: Made, store: Database
) -> None:
    lease = begin("src/a b.py")
    prepared = host.prepare(lease)
    path = host.path(lease)
    assert prepared.surroundings.workspace == path
    assert (prepared.cause, prepared.found) == ("created", None)
    assert (path / "a.py").read_text() == "1\n"
    assert branch_of(repository, host, lease) == "runner/Mend-it/src-a-b.py"
    assert repository.git("-C", str(path), "status", "--porcelain") == ""
    stored = kept(store, lease)
    base = repository.git("rev-parse", "HEAD")
    assert (stored.branch, stored.start_commit) == ("runner/Mend-it/src-a-b.py", base)
    assert row(store, lease).workspace_path == str(path)
    assert row(store, lease).workspace_id == f"snap_{stored.store_id}"


@pytest.mark.slow
def test_the_users_checkout_index_branches_and_stash_stay_as_they_are(
    host: Host, begin: Claim, repository: Made
) -> None:
    repository.write("stashed", "x")
    repository.git("add", "stashed")
    repository.git("stash")
    repository.write("a.py", "changed\n")
    repository.write("new", "x")
    repository.git("add", "new")
    repository.git("config", "core.hooksPath", ".git/hooks")
    hook = repository.write(".git/hooks/post-checkout", "#!/bin/sh\ntouch ../hook-ran\n")
    hook.chmod(0o755)
    before = repository.state()
    lease = begin(setup=("echo made > built.txt",))
    host.prepare(lease)
    (host.path(lease) / "a.py").write_text("by the agent\n")
    host.record(lease)
    after = repository.state()
    for part in ("head", "index", "config", "files"):
        assert after[part] == before[part], part
    new_refs = set(str(after["refs"]).splitlines()) - set(str(before["refs"]).splitlines())
    assert [ref.split("\t")[1] for ref in new_refs] == ["refs/heads/runner/Mend-it/one"]
    assert not (repository.path.parent / "hook-ran").exists()


@pytest.mark.slow
def test_what_setup_leaves_is_committed_first_and_ignored_files_stay(
    host: Host, begin: Claim, repository: Made, store: Database
) -> None:
    lease = begin(setup=("mkdir built && echo 1 > built/x", "echo lock > lockfile"))
    tree = host.prepare(lease).snapshot
    path = host.path(lease)
    start = kept(store, lease).start_commit
    assert (path / "built" / "x").exists()
    shown = repository.git("-C", str(host.path(lease)), "show", "--format=%s", "--name-only", start)
    assert shown.split() == ["Set", "up", "by", "job", "Mend", "it", "lockfile"]
    own = ("-C", str(path), "rev-parse")
    assert repository.git(*own, f"{start}^") == repository.git("rev-parse", "HEAD")
    assert repository.git(*own, f"{start}^{{tree}}") == tree, "patches hold no setup"


@pytest.mark.slow
def test_an_agents_git_changes_nothing_of_the_users_or_of_another_runs(
    host: Host, begin: Claim, repository: Made
) -> None:
    leases = [begin("one"), begin("two")]
    for lease in leases:
        host.prepare(lease)
    before = repository.state()
    for lease in leases:
        own = ("-C", str(host.path(lease)))
        (host.path(lease) / "a.py").write_text(lease.run_id)
        repository.git(*own, "stash", "-q")
        repository.git(*own, "branch", "-f", "main", "HEAD")
        repository.git(*own, "checkout", "-q", "-b", "feature")
        repository.git(*own, "tag", "v1")
        repository.git(*own, "config", "alias.x", "!touch ran")
        assert len(repository.git(*own, "stash", "list").splitlines()) == 1
    for part in ("head", "index", "config", "files", "refs"):
        assert repository.state()[part] == before[part], part
    for lease in leases:
        repository.git("-C", str(host.path(lease)), "stash", "pop", "-q")
        assert (host.path(lease) / "a.py").read_text() == lease.run_id


@pytest.mark.slow
def test_a_setup_command_that_fails_is_named_with_its_end(host: Host, begin: Claim) -> None:
    lease = begin(setup=("true", "seq 9000; echo no such package >&2; exit 7", "touch never"))
    with pytest.raises(WorkspaceError) as raised:
        host.prepare(lease)
    text = str(raised.value)
    assert text.startswith("the setup command 'seq 9000; echo no such")
    assert text.endswith("no such package / Exit code 7")
    assert "\n" not in text
    assert len(text) < 1_000
    assert not (host.path(lease) / "never").exists()


@pytest.mark.slow
def test_a_half_made_worktree_is_made_again_from_scratch(
    host: Host, begin: Claim, store: Database, repository: Made
) -> None:
    lease = begin(setup=("test -e again && exit 1; touch again",))
    host.prepare(lease)
    # As if the attempt had been killed before it could say that the workspace is whole.
    shutil.rmtree(host.path(lease).with_name(f".{lease.run_id}.made"))
    again = claim_again(store, lease)
    assert host.prepare(again).cause == "created"
    assert branch_of(repository, host, again) == "runner/Mend-it/one"
    branches = repository.git("branch", "--list", "runner/*")
    assert branches.split() == ["runner/Mend-it/one"]


@pytest.mark.slow
def test_a_branch_of_that_name_is_left_to_its_owner(
    host: Host, begin: Claim, repository: Made
) -> None:
    repository.git("branch", "runner/Mend-it/one")
    before = repository.git("rev-parse", "runner/Mend-it/one")
    lease = begin()
    host.prepare(lease)
    assert branch_of(repository, host, lease) == f"runner/Mend-it/one-{lease.run_id[-6:]}"
    assert repository.git("rev-parse", "runner/Mend-it/one") == before


@pytest.mark.slow
def test_two_runs_with_keys_that_git_cannot_tell_apart_have_two_branches(
    host: Host, begin: Claim, repository: Made
) -> None:
    first, second = begin("a b"), begin("a:b")
    host.prepare(first)
    host.prepare(second)
    assert branch_of(repository, host, first) == "runner/Mend-it/a-b"
    assert branch_of(repository, host, second) == f"runner/Mend-it/a-b-{second.run_id[-6:]}"


@pytest.mark.slow
def test_an_attempt_that_lost_its_run_notes_nothing(
    host: Host, begin: Claim, store: Database
) -> None:
    lease = begin()
    claim_again(store, lease)
    with pytest.raises(LeaseLost):
        host.prepare(lease)
    assert kept(store, lease) is None


def test_a_base_that_is_gone_is_told(host: Host, begin: Claim) -> None:
    lease = begin(commit="0" * 39 + "1")
    with pytest.raises(WorkspaceError, match="has no commit"):
        host.prepare(lease)


@pytest.mark.slow
def test_a_repository_that_is_gone_is_told(host: Host, begin: Claim, repository: Made) -> None:
    lease = begin()
    repository.path.rename(repository.path.with_name("elsewhere"))
    with pytest.raises(WorkspaceError, match="project"):
        host.prepare(lease)


@pytest.mark.slow
def test_a_run_without_room_for_its_files_fails_alone(
    host: Host, begin: Claim, repository: Made, store: Database
) -> None:
    base = repository.git("rev-parse", "HEAD")
    repository.write("large", os.urandom(1_000_000))
    repository.commit()
    large = begin("large")
    small = begin("small", commit=base)
    home, url = host.home.parent, str(store.url)
    said = fails_without_room(Deed("prepare", url, home, large), 500_000)
    assert said.startswith("git reset failed")
    assert "\n" not in said
    assert kept(store, large) is None
    host.prepare(small)


@pytest.mark.slow
def test_a_full_disk_is_told_whatever_git_says(host: Host, begin: Claim) -> None:
    workspaces = host.open(little_room=sys.maxsize)
    lease = begin(commit="0" * 39 + "1")
    with pytest.raises(HostFaultError, match=r"has no commit .*; there is no room on the"):
        workspaces.prepare(lease, None, Interrupt(), undo=False)


def test_a_disk_on_which_hardly_a_file_can_be_made_is_told(
    host: Host, begin: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.statvfs_result((4096, 4096, 10**9, 10**9, 10**9, 10**6, 7, 7, 0, 255))
    monkeypatch.setattr("os.statvfs", lambda path: full)
    with pytest.raises(HostFaultError, match=r"no room on the disk of .* \(7 files are free\)"):
        host.prepare(begin(commit="0" * 39 + "1"))


@pytest.mark.slow
def test_many_runs_of_two_jobs_get_their_worktrees_at_once(
    host: Host, begin: Claim, repository: Made, store: Database
) -> None:
    objects = repository.git("count-objects")
    leases = [begin(f"item {number % 6}") for number in range(12)]
    with ThreadPoolExecutor(12) as pool:
        prepared = list(pool.map(host.prepare, leases))
    assert {each.cause for each in prepared} == {"created"}
    branches = [kept(store, lease).branch for lease in leases]
    assert len(set(branches)) == 12
    for lease, branch in zip(leases, branches, strict=True):
        assert branch_of(repository, host, lease) == branch
    assert len(repository.git("worktree", "list").splitlines()) == 1
    assert repository.git("count-objects") == objects, "they are shared"

"""The commit that a run ends with, on its branch."""

from __future__ import annotations

import pytest

from runner.core.run import Ended, Lease
from runner.ports import Interrupt
from runner.store.database import Database
from tests.workspace.repository.made import Made

from .conftest import Claim, Host, claim_again, kept

DONE = Ended("succeeded", "end_turn")
FAILED = Ended("failed", "verify")


def deliver(host: Host, lease: Lease, outcome: Ended = DONE) -> str:
    return host.workspaces.deliver(lease, outcome, Interrupt())


def subjects(repository: Made, branch: str = "runner/Mend-it/one") -> list[str]:
    return repository.git("log", "--format=%s", branch).splitlines()


@pytest.mark.slow
def test_a_run_ends_with_a_commit_that_names_job_run_model_and_outcome(
    host: Host, begin: Claim, repository: Made, store: Database
) -> None:
    lease = begin("one", commit_message="Mend a.py\n\nBecause it was broken.\n")
    host.prepare(lease)
    (host.path(lease) / "a.py").write_text("2\n")
    (host.path(lease) / "built").mkdir()
    (host.path(lease) / "built" / "x").write_text("ignored")
    commit = deliver(host, lease)
    assert repository.git("rev-parse", "runner/Mend-it/one") == commit
    assert repository.git("show", "--format=", "--name-status", commit) == "M\ta.py"
    message = repository.git("log", "-1", "--format=%B", commit)
    assert message.startswith("Mend a.py\n\nBecause it was broken.\n\nRunner-Job: Mend it job_")
    trailers = repository.git("log", "-1", "--format=%(trailers:key=Runner-Run,valueonly)", commit)
    assert trailers.strip() == lease.run_id
    assert "Runner-Model: claude-test\nRunner-Outcome: succeeded end_turn" in message
    assert kept(store, lease).commit_id == commit
    assert repository.git("-C", str(host.path(lease)), "status", "--porcelain") == ""


@pytest.mark.slow
def test_without_a_message_the_job_and_the_item_name_it(
    host: Host, begin: Claim, repository: Made
) -> None:
    lease = begin("src/a.py\nRunner-Run: run_other")
    host.prepare(lease)
    commit = deliver(host, lease)
    assert repository.git("log", "-1", "--format=%s", commit) == (
        "Mend it: src/a.py Runner-Run: run_other"
    )


@pytest.mark.slow
def test_a_run_that_changed_nothing_ends_with_an_empty_commit(
    host: Host, begin: Claim, repository: Made
) -> None:
    lease = begin()
    host.prepare(lease)
    commit = deliver(host, lease, FAILED)
    assert repository.git("show", "--format=", "--name-status", commit) == ""
    assert "Runner-Outcome: failed verify" in repository.git("log", "-1", "--format=%B", commit)


@pytest.mark.slow
def test_done_twice_it_is_the_same_commit(
    host: Host, begin: Claim, repository: Made, store: Database
) -> None:
    lease = begin()
    tree = host.prepare(lease).snapshot
    commit = deliver(host, lease)
    again = claim_again(store, lease)
    host.prepare(again, tree)
    assert deliver(host, again) == commit
    assert len(subjects(repository)) == 2


@pytest.mark.slow
def test_another_end_is_another_commit_on_top(
    host: Host, begin: Claim, repository: Made, store: Database
) -> None:
    lease = begin()
    tree = host.prepare(lease).snapshot
    first = deliver(host, lease, FAILED)
    again = claim_again(store, lease)
    host.prepare(again, tree)
    second = deliver(host, again)
    assert repository.git("rev-parse", f"{second}^") == first


def test_commits_of_the_agent_stay_below(host: Host, begin: Claim, repository: Made) -> None:
    lease = begin()
    host.prepare(lease)
    path = host.path(lease)
    (path / "a.py").write_text("2\n")
    repository.git("-C", str(path), "commit", "-q", "-a", "-m", "by the agent")
    (path / "b.py").write_text("left\n")
    deliver(host, lease)
    assert subjects(repository)[1:] == ["by the agent", "work"]


@pytest.mark.slow
def test_commits_on_another_branch_or_on_none_come_along(
    host: Host, begin: Claim, repository: Made
) -> None:
    lease = begin()
    host.prepare(lease)
    path = str(host.path(lease))
    repository.git("-C", path, "checkout", "-q", "-b", "try")
    repository.git("-C", path, "commit", "-q", "--allow-empty", "-m", "on try")
    repository.git("-C", path, "checkout", "-q", "--detach")
    repository.git("-C", path, "commit", "-q", "--allow-empty", "-m", "on none")
    deliver(host, lease)
    assert subjects(repository)[1:] == ["on none", "on try", "work"]
    head = repository.git("-C", path, "symbolic-ref", "--short", "HEAD")
    assert head == "runner/Mend-it/one"


@pytest.mark.slow
def test_history_that_was_thrown_away_does_not_throw_the_branch_back(
    host: Host, begin: Claim, repository: Made
) -> None:
    lease = begin()
    host.prepare(lease)
    path = host.path(lease)
    repository.git("-C", str(path), "checkout", "-q", "--orphan", "empty")
    (path / "a.py").write_text("2\n")
    commit = deliver(host, lease)
    assert subjects(repository)[1:] == ["work"]
    assert repository.git("show", f"{commit}:a.py") == "2"


@pytest.mark.slow
def test_a_repository_inside_the_worktree_is_left_out(
    host: Host, begin: Claim, repository: Made
) -> None:
    lease = begin()
    host.prepare(lease)
    inner = host.path(lease) / "vendor" / "inner"
    inner.mkdir(parents=True)
    repository.git("-C", str(inner), "init", "-q")
    (inner / "file").write_text("x")
    (host.path(lease) / "vendor" / "note").write_text("x")
    commit = deliver(host, lease)
    shown = repository.git("show", "--format=", "--name-status", commit)
    assert shown == "A\tvendor/note"


@pytest.mark.slow
def test_files_are_committed_by_the_repositorys_own_rules(
    host: Host, begin: Claim, repository: Made
) -> None:
    repository.write(".gitattributes", "*.txt text eol=lf\n*.py filter=shout\n")
    repository.commit(c__txt="1\n")
    repository.git("config", "filter.shout.clean", "tr a-z A-Z")
    lease = begin()
    host.prepare(lease)
    (host.path(lease) / "c.txt").write_bytes(b"1\r\n2\r\n")
    (host.path(lease) / "a.py").write_text("loud\n")
    commit = deliver(host, lease)
    assert repository.git("show", f"{commit}:c.txt") == "1\n2"
    assert repository.git("show", f"{commit}:a.py") == "LOUD"


@pytest.mark.slow
def test_no_hook_runs(host: Host, begin: Claim, repository: Made) -> None:
    for name in ("pre-commit", "post-checkout", "reference-transaction", "post-index-change"):
        repository.write(f".git/hooks/{name}", f"#!/bin/sh\ntouch {repository.path}/ran-{name}\n")
        (repository.path / ".git" / "hooks" / name).chmod(0o755)
    lease = begin()
    host.prepare(lease)
    deliver(host, lease)
    assert not list(repository.path.glob("ran-*"))


@pytest.mark.slow
def test_whoever_the_settings_name_commits(host: Host, begin: Claim, repository: Made) -> None:
    lease = begin()
    host.prepare(lease)
    unnamed = deliver(host, lease, FAILED)
    assert repository.git("log", "-1", "--format=%an <%ae>", unnamed) == "Runner <runner@localhost>"
    repository.git("config", "user.name", "Grace")
    repository.git("config", "user.email", "grace@example.com")
    repository.git("config", "commit.gpgSign", "true")
    named = deliver(host, lease)
    assert repository.git("log", "-1", "--format=%an <%ae>", named) == "Grace <grace@example.com>"

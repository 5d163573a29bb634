"""What a run delivers: a commit of everything that it leaves, at the top of its branch."""

from __future__ import annotations

import os
import re
from pathlib import Path

from runner.workspace.git import REMOTE_SECONDS, Check, Git, GitError, no_check
from runner.workspace.repository import BRANCHES, NOWHERE, Repository, transfer
from runner.workspace.snapshot_store import store_git
from runner.workspace.worktree import Worktree

_RUN = "Runner-Run"
_BREAKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def commit_message(
    *,
    job_name: str,
    job_id: str,
    run_id: str,
    item_key: str,
    model: str,
    outcome: str = "",
    message: str | None = None,
) -> str:
    """Return the message of a run's commit, with its trailers
    (https://git-scm.com/docs/git-interpret-trailers).

    Args:
        outcome: how the run ended, like ``succeeded end_turn``; empty if it has not.
        message: the job's template filled in for the item; by default the job's name and the key.
    """
    text = (message or "").strip() or f"{_line(job_name)}: {_line(item_key)}"
    trailers = {
        "Runner-Job": f"{job_name} {job_id}",
        _RUN: run_id,
        "Runner-Model": model,
        "Runner-Outcome": outcome,
    }
    lines = [f"{name}: {_line(value)}" for name, value in trailers.items() if value]
    return "\n".join([text, "", *lines, ""])


def setup_message(job_name: str) -> str:
    """Return the message of the commit of what setup left, which is not the agent's work."""
    return f"Set up by job {_line(job_name)}\n"


def deliver(worktree: Worktree, branch: str, start_commit: str, message: str) -> str:
    """Commit what is in a run's worktree on its branch, on top of the agent's own commits there.

    Done again after it was cut off, it finds its commit.

    Args:
        start_commit: where the branch began, should it be gone.

    Returns:
        The commit's id.

    Raises:
        GitError, OSError: it cannot be committed; the branch is as it was.
    """
    worktree.unlock()
    own = worktree.own
    tip = own.tip(branch)
    tree = worktree.write_tree()
    parent = _parent(worktree, tip, start_commit)
    if tip is not None and parent == tip and _is_commit_of(own, tip, tree, message):
        commit = tip
    else:
        commit = worktree.commit(tree, parent, message)
        own.move(branch, commit, tip or NOWHERE, "runner: delivered")
    worktree.switch_to(branch)
    return commit


def hand_over(worktree: Worktree, branch: str, commit: str, base: str, run_id: str) -> None:
    """Move the branch in the repository that the worktree is of to the run's commit.

    Args:
        base: where the branch began there.

    Raises:
        GitError: someone else has moved the branch, or has it checked out; what to do.
    """
    source = worktree.repository
    before = source.tip(branch)
    if before == commit:
        return
    if (where := source.checked_out(branch)) != "":
        raise GitError(
            f"the branch {branch} is checked out in {where}: leave it, then retry the run"
        )
    transfer([commit], base, worktree.own.git, source.git)
    if before not in (None, base) and not is_delivery(source, before, run_id):
        raise GitError(f"someone else has moved the branch {branch}: rename it, then retry the run")
    source.move(branch, commit, before or NOWHERE, "runner: delivered")


def is_delivery(repository: Repository, commit: str, run_id: str) -> bool:
    """Return True if a run was delivered in a commit. Raises ``GitError``."""
    return _names(run_id, repository.git.text("log", "-1", "--format=%B", commit))


def publish(store: Path, remote: str, run_id: str, branch: str, commit: str) -> None:
    """Push a run's branch to a remote, and its commit to where its snapshots are.

    Args:
        store: the store of the run's snapshots, which sees the commit in its source.

    Raises:
        GitError: the remote does not take it, or someone else has moved the branch there.
    """
    git = store_git(store, os.environ, remote=True)
    before = tip_at(git, remote, branch)
    if before not in (None, commit):
        fetch = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance")
        git.run(*fetch, "--", remote, f"{BRANCHES}{branch}", seconds=REMOTE_SECONDS)
        if not _names(run_id, git.text("log", "-1", "--format=%B", before)):
            raise GitError(f"someone else has moved the branch {branch} at {remote}")
    ref = f"{BRANCHES}{branch}"
    lease = f"--force-with-lease={ref}:{before or ''}"
    refs = (f"{commit}:{ref}", f"+{commit}:refs/runner/runs/{run_id}/commit")
    push = ("push", "--quiet", "--no-verify", "--no-signed", lease)
    git.run(*push, "--", remote, *refs, seconds=REMOTE_SECONDS)


def tip_at(git: Git, remote: str, branch: str, check: Check = no_check) -> str | None:
    """Return the commit that a branch of a remote is at, None if it has no such branch. Raises
    ``GitError``."""
    named = ("ls-remote", "--heads", "--", remote, f"{BRANCHES}{branch}")
    listed = git.run(*named, check=check, seconds=REMOTE_SECONDS)
    return os.fsdecode(listed).split("\t")[0] or None


def _names(run_id: str, message: str) -> bool:
    """Return True if a commit's message has the trailer of a run."""
    return f"{_RUN}: {run_id}" in message.strip().rpartition("\n\n")[2].splitlines()


def _parent(worktree: Worktree, tip: str | None, start_commit: str) -> str:
    """Return the parent of the commit: HEAD, if it goes on from the branch."""
    head = worktree.head()
    if tip is None or head is None or head == tip:
        return head or tip or start_commit
    goes_on = worktree.own.git.answer("merge-base", "--is-ancestor", tip, head) is not None
    return head if goes_on else tip


def _is_commit_of(repository: Repository, commit: str, tree: str, message: str) -> bool:
    """Return True if a commit has that tree and message: a delivery was cut off after it."""
    text = repository.git.text("log", "-1", "--format=%T%n%B", commit)
    found_tree, _, said = text.partition("\n")
    return found_tree == tree and said.strip() == message.strip()


def _line(text: str) -> str:
    return _BREAKS.sub(" ", text).strip()

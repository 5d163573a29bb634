"""What a run delivers: a commit of everything that it leaves, at the top of its branch."""

from __future__ import annotations

import re

from runner.workspace.git import GitError
from runner.workspace.worktrees.repository import NOWHERE, Repository
from runner.workspace.worktrees.worktree import Worktree

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
    """The message of a run's commit, with its trailers
    (https://git-scm.com/docs/git-interpret-trailers).

    Args:
        outcome: how the run ended, ``succeeded end_turn``; empty: it has not.
        message: what the job's template says of the item; without it, the job's name and the key.
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
    """The message of the commit of what setup left, which is not the agent's work."""
    return f"Set up by job {_line(job_name)}\n"


def deliver(worktree: Worktree, branch: str, start_commit: str, message: str) -> str:
    """Commit what is in a run's worktree on its branch, on top of what the agent committed there
    itself. Done again after it was cut off, it finds its commit.

    Args:
        start_commit: where the branch began, should it be gone.

    Returns:
        The commit's id.

    Raises:
        GitError, OSError: it cannot be committed; the branch is as it was.
    """
    worktree.unlock(branch)
    tip = worktree.repository.tip(branch)
    tree = worktree.tree()
    parent = _parent(worktree, tip, start_commit)
    if tip is not None and parent == tip and _says(worktree.repository, tip, tree, message):
        commit = tip
    else:
        commit = worktree.commit(tree, parent, message)
        worktree.repository.move(branch, commit, tip or NOWHERE, "runner: delivered")
    worktree.stand_on(branch)
    return commit


def is_delivery(repository: Repository, commit: str, run_id: str) -> bool:
    """Whether a commit is one that a run was delivered in. Raises ``GitError``."""
    said = repository.git("log", "-1", "--format=%B", commit)
    return f"{_RUN}: {run_id}" in said.rpartition("\n\n")[2].splitlines()


def publish(
    repository: Repository,
    remote: str,
    run_id: str,
    branch: str,
    commit: str,
    before: str | None,
) -> None:
    """Push a run's branch to a remote, and its commit to where its snapshots are.

    Args:
        before: where the remote has the branch from an earlier end of the run, if there was one.

    Raises:
        GitError: the remote does not take it, or someone else has moved the branch there.
    """
    ref = f"refs/heads/{branch}"
    lease = f"--force-with-lease={ref}:{before or ''}"
    refs = (f"{commit}:{ref}", f"+{commit}:refs/runner/runs/{run_id}/commit")
    repository.git("push", "--quiet", "--no-verify", lease, "--", remote, *refs)


def _parent(worktree: Worktree, tip: str | None, start_commit: str) -> str:
    """The commit below: where the agent stands, when that goes on from the branch."""
    head = worktree.head()
    if tip is None or head is None or head == tip:
        return head or tip or start_commit
    try:
        worktree.repository.git("merge-base", "--is-ancestor", tip, head)
    except GitError:
        return tip
    return head


def _says(repository: Repository, commit: str, tree: str, message: str) -> bool:
    """Whether a commit is that of a delivery that was cut off after it."""
    found_tree, _, said = repository.git("log", "-1", "--format=%T%n%B", commit).partition("\n")
    return found_tree == tree and said.strip() == message.strip()


def _line(text: str) -> str:
    return _BREAKS.sub(" ", text).strip()

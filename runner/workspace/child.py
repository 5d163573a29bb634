"""A program that works on a run's own workspace below the tool host.

It ends with its worker, and the next attempt at the run begins only after it. It reads a request as
JSON from stdin and prints the answer, or an error, as JSON. The standard library is all that it
imports beside Runner's own code, so that it starts fast.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.errors import RunnerError
from runner.workspace.folders import remove_folder
from runner.workspace.git import REMOTE_SECONDS, GitError
from runner.workspace.repository import (
    BRANCHES,
    NOWHERE,
    Repository,
    names_run,
    tip_at,
    transfer,
    update_clone,
)
from runner.workspace.snapshot_store import store_git
from runner.workspace.snapshots import Snapshots
from runner.workspace.worktree import GitState, Worktree

Answer = dict[str, Any]


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    do = _ACTIONS[request.pop("do")]
    try:
        answer = do(**request)
    except (RunnerError, OSError) as error:
        answer = {"error": str(error) or type(error).__name__}
    print(json.dumps(answer))  # noqa: T201 - what this program is for


def open_snapshots(
    git_dir: str,
    work_tree: str,
    run_id: str,
    attempt: int,
    ignored: Sequence[str],
    largest_file: int,
    environment: Mapping[str, str] = os.environ,
) -> Snapshots:
    """Return the snapshots of an attempt, as a request names them."""
    return Snapshots(
        Path(git_dir),
        Path(work_tree),
        run_id,
        attempt,
        environment=environment,
        ignored=ignored,
        largest_file=largest_file,
    )


def _clone(clone: str, url: str, commit: str) -> Answer:
    update_clone(Path(clone), url, commit)
    return {}


def _add(repository: str, path: str, commit: str, begin: dict[str, Any] | None) -> Answer:
    """Make a worktree, and its branch if nothing is to be set up."""
    _worktree(repository, path).add(commit)
    return {} if begin is None else _begin(repository, path, commit, **begin)


def _discard(path: str) -> Answer:
    remove_folder(Path(path))
    return {}


def _begin(
    repository: str, path: str, base: str, branches: list[str], owner: str, message: str | None
) -> Answer:
    """Begin the run's branch, at a commit of what setup left if ``message`` says that there was any."""
    worktree = _worktree(repository, path)
    start = worktree.head() if message is None else worktree.commit_all(message)
    assert start is not None, "it was made of a commit"
    branch = worktree.repository.new_branch(branches, base, owner)
    worktree.own.move(branch, start, None, "runner: begins")
    worktree.switch_to(branch)
    return {"start_commit": start, "branch": branch}


def _go_on(
    repository: str,
    path: str,
    branches: list[str],
    owner: str,
    store: str,
    base: str,
    commits: list[str],
) -> Answer:
    """Put a worktree that was made again on its branch, at the first commit that can be had."""
    worktree = _worktree(repository, path)
    for commit in commits:
        if worktree.own.fetch_from_store(commit, base, Path(store)):
            branch = worktree.repository.new_branch(branches, base, owner)
            worktree.restore(GitState(commit, branch))
            return {"branch": branch}
    raise RunnerError(f"{repository} has none of the commits {', '.join(commits)}")


def _restore(
    snapshots: dict[str, Any], snapshot: str, state: dict[str, str] | None, leave_out: bool
) -> Answer:
    """Put files back, and then the git state, as far as its commits can be had."""
    if state is None:
        return {"snapshot": open_snapshots(**snapshots).restore(snapshot, leave_out=leave_out)}
    worktree = _worktree(state["repository"], snapshots["work_tree"])
    worktree.unlock()
    reached = open_snapshots(**snapshots).restore(snapshot, leave_out=leave_out)
    wanted = GitState.from_note(state["note"], state["branch"])
    own, base, store = worktree.own, state["base"], Path(snapshots["git_dir"])
    for commit in {each for _, each in wanted.refs.changed if each}:
        own.fetch_from_store(commit, base, store)
    if own.fetch_from_store(wanted.commit, base, store):
        worktree.restore(wanted)
    return {"snapshot": reached}


def _worktree(repository: str, path: str) -> Worktree:
    return Worktree(Repository(Path(repository)), Path(path))


# --- delivery ---------------------------------------------------------------------------------------


def _deliver(
    repository: str, path: str, branch: str, start_commit: str, message: str, base: str, owner: str
) -> Answer:
    worktree = _worktree(repository, path)
    commit = deliver(worktree, branch, start_commit, message)
    hand_over(worktree, branch, commit, base, owner)
    return {"commit": commit}


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
    if before not in (None, base) and not source.is_delivery(before, run_id):
        raise GitError(f"someone else has moved the branch {branch}: rename it, then retry the run")
    source.move(branch, commit, before or NOWHERE, "runner: delivered")


def _publish(store: str, remote: str, owner: str, branch: str, commit: str) -> Answer:
    """Push a run's branch to a remote, and its commit to where its snapshots are.

    The store of the run's snapshots sees the commit in its source.
    """
    git = store_git(Path(store), os.environ, remote=True)
    before = tip_at(git, remote, branch)
    if before not in (None, commit):
        fetch = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance")
        git.run(*fetch, "--", remote, f"{BRANCHES}{branch}", seconds=REMOTE_SECONDS)
        if not names_run(owner, git.text("log", "-1", "--format=%B", before)):
            raise GitError(f"someone else has moved the branch {branch} at {remote}")
    ref = f"{BRANCHES}{branch}"
    lease = f"--force-with-lease={ref}:{before or ''}"
    refs = (f"{commit}:{ref}", f"+{commit}:refs/runner/runs/{owner}/commit")
    push = ("push", "--quiet", "--no-verify", "--no-signed", lease)
    git.run(*push, "--", remote, *refs, seconds=REMOTE_SECONDS)
    return {}


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


_ACTIONS: dict[str, Callable[..., Answer]] = {
    "clone": _clone,
    "add": _add,
    "discard": _discard,
    "begin": _begin,
    "go_on": _go_on,
    "restore": _restore,
    "deliver": _deliver,
    "publish": _publish,
}

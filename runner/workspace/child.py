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
from runner.workspace.delivery import deliver, hand_over, publish
from runner.workspace.folders import remove_folder
from runner.workspace.repository import Repository, update_clone
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


def _deliver(
    repository: str, path: str, branch: str, start_commit: str, message: str, base: str, owner: str
) -> Answer:
    worktree = _worktree(repository, path)
    commit = deliver(worktree, branch, start_commit, message)
    hand_over(worktree, branch, commit, base, owner)
    return {"commit": commit}


def _publish(store: str, remote: str, owner: str, branch: str, commit: str) -> Answer:
    publish(Path(store), remote, owner, branch, commit)
    return {}


def _worktree(repository: str, path: str) -> Worktree:
    return Worktree(Repository(Path(repository)), Path(path))


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

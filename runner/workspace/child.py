"""A child that works on a run's own workspace below the tool host: it ends with its worker, and the
next attempt at the run does not begin before.

It reads what to do as JSON from stdin, and prints what came of it as JSON: the answer, or an error.
The standard library is all that it imports beside Runner's own code.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.errors import RunnerError
from runner.workspace.delivery import deliver, hand_over, publish
from runner.workspace.folders import remove_folder
from runner.workspace.repository import Repository, have_clone
from runner.workspace.snapshots import Snapshots
from runner.workspace.worktree import Head, Refs, Worktree

Answer = dict[str, Any]


def main() -> None:
    """The entry point."""
    request = json.load(sys.stdin)
    do = _ACTIONS[request.pop("do")]
    try:
        answer = do(**request)
    except (RunnerError, OSError) as error:
        answer = {"error": str(error) or type(error).__name__}
    print(json.dumps(answer))  # noqa: T201 - what this program is for


def opened(
    git_dir: str,
    work_tree: str,
    run_id: str,
    attempt: int,
    ignored: Sequence[str],
    largest_file: int,
    environment: Mapping[str, str] | None = None,
) -> Snapshots:
    """The snapshots of an attempt, as a request names them; git gets ``environment``, or that of this
    process."""
    return Snapshots(
        Path(git_dir),
        Path(work_tree),
        run_id,
        attempt,
        environment=os.environ if environment is None else environment,
        ignored=ignored,
        largest_file=largest_file,
    )


def _clone(clone: str, url: str, commit: str) -> Answer:
    have_clone(Path(clone), url, commit)
    return {}


def _add(repository: str, path: str, commit: str, begin: dict[str, Any] | None) -> Answer:
    """A worktree, and its branch if nothing is to be set up."""
    _worktree(repository, path).add(commit)
    return {} if begin is None else _begin(repository, path, commit, **begin)


def _discard(repository: str | None, path: str) -> Answer:
    if repository is None:
        remove_folder(Path(path))
    else:
        _worktree(repository, path).remove()
    return {}


def _begin(
    repository: str, path: str, base: str, branches: list[str], owner: str, message: str | None
) -> Answer:
    """What setup left is committed (without a message there was none), and the branch begins there."""
    worktree = _worktree(repository, path)
    start = worktree.head() if message is None else worktree.commit_all(message)
    assert start is not None, "it was made of a commit"
    branch = worktree.repository.new_branch(branches, base, owner)
    worktree.own.move(branch, start, None, "runner: begins")
    worktree.stand_on(branch)
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
    """A worktree that was made again stands on its branch, at the first commit that can be had."""
    worktree = _worktree(repository, path)
    for commit in commits:
        if worktree.own.have(commit, base, Path(store)):
            branch = worktree.repository.new_branch(branches, base, owner)
            worktree.stand_at(Head(commit, branch))
            return {"branch": branch}
    raise RunnerError(f"{repository} has none of the commits {', '.join(commits)}")


def _restore(
    snapshots: dict[str, Any], tree: str, standing: dict[str, Any] | None, leave_out: bool
) -> Answer:
    """Files first: they are what the run goes on with if a commit of its agent is not to be had."""
    if standing is None:
        return {"tree": opened(**snapshots).restore(tree, leave_out=leave_out)}
    worktree = _worktree(standing["repository"], snapshots["work_tree"])
    worktree.unlock()
    reached = opened(**snapshots).restore(tree, leave_out=leave_out)
    head, store = (
        Head(**{**standing["head"], "refs": _refs(standing["head"]["refs"])}),
        Path(snapshots["git_dir"]),
    )
    own, base = worktree.own, standing["base"]
    for commit in {each for _, each in head.refs.changed if each}:
        own.have(commit, base, store)
    if own.have(head.commit, base, store):
        if head.index is not None and not worktree.has_tree(head.index):
            head = replace(head, index=None)
        worktree.stand_at(head)
    return {"tree": reached}


def _refs(given: dict[str, Any]) -> Refs:
    changed = tuple((name, commit) for name, commit in given["changed"])
    return Refs(changed, tuple(given["commits"]), given["stash"])


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

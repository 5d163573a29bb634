"""A program that works on a run's own workspace below the tool host.

It ends with its worker, and the next attempt at the run begins only after it. It reads a request as
JSON from stdin and prints the answer, or an error, as JSON. The standard library is all that it
imports beside Runner's own code, so that it starts fast.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import RunnerError, host_fault
from runner.workspace.folders import remove_folder
from runner.workspace.git import REMOTE_SECONDS, GitError
from runner.workspace.repository import (
    BRANCHES,
    NOWHERE,
    Repository,
    is_delivery,
    tip_at,
    transfer,
    update_clone,
)
from runner.workspace.snapshot_store import store_git
from runner.workspace.snapshots import Snapshots
from runner.workspace.worktree import GitState, Worktree


def main() -> None:
    request = json.load(sys.stdin)
    try:
        answer = getattr(OwnFolder(**request["on"]), request["do"])(**request["with"]) or {}
    except (RunnerError, OSError, MemoryError) as error:
        fault = host_fault(error)
        answer = {"host_fault": fault} if fault else {"error": str(error) or type(error).__name__}
    print(json.dumps(answer))  # noqa: T201 - what this program is for


def open_snapshots(
    git_dir: str, work_tree: str, environment: Mapping[str, str] = os.environ, **options: Any
) -> Snapshots:
    return Snapshots(Path(git_dir), Path(work_tree), environment=environment, **options)


@dataclass(frozen=True, slots=True)
class OwnFolder:
    """A run's own workspace. A request names one of the methods."""

    path: str
    repository: str  # what the worktree is of; "" for a copy
    base: str  # the commit that the job names, which every branch is above
    owner: str  # the run

    @property
    def worktree(self) -> Worktree:
        return Worktree(Repository(Path(self.repository)), Path(self.path))

    def clone(self, url: str) -> None:
        update_clone(Path(self.repository), url, self.base)

    def discard(self) -> None:
        remove_folder(Path(self.path))

    def add(self, begin: dict[str, Any] | None) -> dict[str, str] | None:
        """Make the worktree, and its branch if nothing is to be set up. Half of one takes no room."""
        try:
            self.worktree.add(self.base)
        except (RunnerError, OSError):
            with suppress(RunnerError, OSError):
                self.worktree.remove()
            raise
        return begin and self.begin(**begin)

    def begin(self, branches: list[str], message: str | None) -> dict[str, str]:
        """Begin the run's branch, at a commit of setup's changes if there is a ``message``."""
        worktree = self.worktree
        start = worktree.head() if message is None else worktree.commit_all(message)
        assert start is not None, "it was made of a commit"
        branch = worktree.repository.new_branch(branches, self.base, self.owner)
        worktree.own.move(branch, start, None, "runner: begins")
        worktree.switch_to(branch)
        return {"start_commit": start, "branch": branch}

    def go_on(self, branches: list[str], store: str, commits: list[str]) -> dict[str, str]:
        """Put a worktree that was made again on its branch, at the first commit that can be had."""
        worktree = self.worktree
        for commit in commits:
            if worktree.own.fetch_from_store(commit, self.base, Path(store)):
                branch = worktree.repository.new_branch(branches, self.base, self.owner)
                worktree.restore(GitState(commit, branch))
                return {"branch": branch}
        raise RunnerError(f"{self.repository} has none of the commits {', '.join(commits)}")

    def restore(
        self, snapshots: dict[str, Any], snapshot: str, branch: str, note: str, leave_out: bool
    ) -> dict[str, str]:
        """Restore files, and then a worktree's git state where its commits are available."""
        worktree = self.worktree
        if self.repository:
            worktree.unlock()
        reached = open_snapshots(**snapshots).restore(snapshot, leave_out=leave_out)
        if self.repository:
            wanted, own = GitState.from_note(note, branch), worktree.own
            store = Path(snapshots["git_dir"])
            for commit in {each for _, each in wanted.refs.changed if each}:
                own.fetch_from_store(commit, self.base, store)
            if own.fetch_from_store(wanted.commit, self.base, store):
                worktree.restore(wanted)
        return {"snapshot": reached}

    def deliver(self, branch: str, start_commit: str, message: str) -> dict[str, str]:
        """Commit the worktree on the run's branch, on top of the agent's commits, and move the
        branch in the repository to it.

        Done again after it was cut off, it finds its commit.

        Args:
            start_commit: where the branch began, should it be gone.

        Raises:
            GitError, OSError: it cannot be committed (the branch did not move), or someone else has
                moved the branch or has it checked out.
        """
        worktree, own, source = self.worktree, self.worktree.own, self.worktree.repository
        worktree.unlock()
        tip, tree, head = own.tip(branch), worktree.write_tree(), worktree.head()
        parent = head or tip or start_commit
        if tip is not None and tip != parent:  # HEAD is the parent, if it goes on from the branch
            goes_on = own.git.answer("merge-base", "--is-ancestor", tip, parent) is not None
            parent = parent if goes_on else tip
        commit, delivered = parent, f"{tree}\n{message.strip()}"
        # If a delivery was cut off after its commit, that is the tip.
        told = own.git.text("log", "-1", "--format=%T%n%B", parent) if parent == tip else ""
        if told.strip() != delivered:
            commit = worktree.commit(tree, parent, message)
            own.move(branch, commit, tip or NOWHERE, "runner: delivered")
        worktree.switch_to(branch)
        before = source.tip(branch)
        if before == commit:
            return {"commit": commit}
        where = source.git.text("for-each-ref", "--format=%(worktreepath)", f"{BRANCHES}{branch}")
        if where:
            raise GitError(
                f"the branch {branch} is checked out in {where}: leave it, then retry the run"
            )
        transfer([commit], self.base, own.git, source.git)
        if before not in (None, self.base) and not is_delivery(source.git, before, self.owner):
            raise GitError(
                f"someone else has moved the branch {branch}: rename it, then retry the run"
            )
        source.move(branch, commit, before or NOWHERE, "runner: delivered")
        return {"commit": commit}

    def publish(self, store: str, remote: str, branch: str, commit: str) -> None:
        """Push the run's branch to a remote, and its commit to its snapshots there."""
        git = store_git(Path(store), os.environ, remote=True)
        before, ref = tip_at(git, remote, branch), f"{BRANCHES}{branch}"
        if before not in (None, commit):
            git.run(
                *("fetch", "--quiet", "--no-tags", "--no-write-fetch-head"),
                *("--no-auto-maintenance", "--", remote, ref),
                seconds=REMOTE_SECONDS,
            )
            if not is_delivery(git, before, self.owner):
                raise GitError(f"someone else has moved the branch {branch} at {remote}")
        lease = f"--force-with-lease={ref}:{before or ''}"
        refs = (f"{commit}:{ref}", f"+{commit}:refs/runner/runs/{self.owner}/commit")
        push = ("push", "--quiet", "--no-verify", "--no-signed", lease)
        git.run(*push, "--", remote, *refs, seconds=REMOTE_SECONDS)

"""What a run's own workspace is made from, and where its trees are kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from runner.core.files.workspace import Workspace
from runner.core.run import Lease
from runner.engine.workspaces.around import COPIES, Around, explained
from runner.errors import WorkspaceError
from runner.ports import Interrupt
from runner.store import workspaces
from runner.workspace.child import opened
from runner.workspace.snapshots import Snapshots
from runner.workspace.trees.stores import make_store
from runner.workspace.worktrees import Repository, Worktree
from runner.workspace.worktrees.clones import clone_of


@dataclass(slots=True)
class Material:
    """``repository`` is None for copies."""

    around: Around
    asked: Workspace
    lease: Lease
    repository: Repository | None
    _store: Path | None = field(default=None, init=False)
    _snapshots: Snapshots | None = field(default=None, init=False)

    @property
    def path(self) -> Path:
        """The folder of the workspace."""
        return self.around.home / COPIES / self.lease.run_id

    @property
    def repository_path(self) -> str | None:
        return None if self.repository is None else str(self.repository.folder)

    @property
    def worktree(self) -> Worktree | None:
        return None if self.repository is None else Worktree(self.repository, self.path)

    def store(self) -> Path:
        """The folder of the snapshots of everything that is made from the same source."""
        if self._store is None:
            repository, around = self.repository, self.around
            self._store = explained(
                lambda: make_store(
                    around.home,
                    self.asked.source,
                    repository.common_folder() if repository else None,
                    environment=around.environment,
                )
            )
        return self._store

    def snapshots(self) -> Snapshots:
        """Those of this attempt."""
        if self._snapshots is None:
            self._snapshots = opened(**self.request(), environment=self.around.environment)
        return self._snapshots

    def request(self) -> dict[str, Any]:
        """The snapshots, as a child is told of them."""
        return {
            "git_dir": str(self.store()),
            "work_tree": str(self.path),
            "run_id": self.lease.run_id,
            "attempt": self.lease.attempt,
            "ignored": list(self.asked.snapshot_ignored),
            "largest_file": self.asked.largest_file,
        }

    def have_tree(self, tree: str, interrupt: Interrupt) -> None:
        """Have a recorded tree here, from the remote if need be: one of the run's own, or of a run that
        it was forked from.

        Raises:
            WorkspaceError: it is neither here nor there.
        """
        remote, run_id = self.asked.remote, self.lease.run_id
        if self.snapshots().has(tree):
            return
        if remote is not None:
            for each in (run_id, *workspaces.origins(self.around.database, run_id)):
                request = {**self.request(), "run_id": each}
                theirs = opened(**request, environment=self.around.environment)
                self.around.insist(partial(theirs.fetch, remote, interrupt.check), interrupt)
                if theirs.has(tree):
                    return
        where = f"neither in {self.store()} nor at {remote}" if remote else f"not in {self.store()}"
        raise WorkspaceError(f"the recorded files of {run_id} (tree {tree}) are {where}")


def material_of(around: Around, asked: Workspace, lease: Lease, interrupt: Interrupt) -> Material:
    """What the workspace of a run is made from: for mode "git", the user's repository where it is on
    this host and has the base, else a clone.

    Raises:
        WorkspaceError: it cannot be cloned. Interrupted.
    """
    if asked.mode != "git":
        return Material(around, asked, lease, None)
    url = asked.url or asked.remote
    if asked.path is not None:
        here = Repository(Path(asked.path), around.environment)
        if url is None or here.has(asked.commit):
            return Material(around, asked, lease, here)
    assert url is not None, "a job in mode git has a path or a URL"
    clone = Repository(clone_of(around.home, url), around.environment)
    if not clone.has(asked.commit):
        request = {"clone": str(clone.folder), "url": url, "commit": asked.commit}
        around.insist(lambda: around.below("clone", lease.run_id, interrupt, **request), interrupt)
    return Material(around, asked, lease, clone)

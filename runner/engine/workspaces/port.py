"""Where a run works: nowhere, in the job's folder, or in a workspace of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from runner.core.agents.agent import lineage
from runner.core.files.workspace import Workspace
from runner.core.run import Ended, Lease
from runner.engine.workspaces.around import COPIES, Around, explained
from runner.engine.workspaces.material import material_of
from runner.engine.workspaces.own import OwnWorkspace
from runner.engine.workspaces.shared import record_from_below
from runner.errors import WorkspaceElsewhere, WorkspaceError
from runner.ports import Interrupt, Prepared, Surroundings
from runner.store import workspaces
from runner.store.connection.database import Database
from runner.store.job.cache import JobCache
from runner.store.workspaces import SNAPSHOTS, Assignment, Kept
from runner.tools.toolbox import LocalTools
from runner.workspace.identity import restore, visible
from runner.workspace.trees.stores import store_id
from runner.workspace.worktrees import Repository

REPOSITORY = "git_"  # what ids of workspaces begin with that are still to be made of a repository

LITTLE_ROOM = 50_000_000  # bytes

_MOST_OPEN = 256  # an older one is opened again when it is needed


class RunWorkspaces:
    """``runner.ports.Workspaces``.

    Args:
        home: RUNNER_HOME; runs' own workspaces, their snapshots and long outputs lie in it.
        tools: its host starts what writes in a workspace, and it runs the job's setup.
    """

    def __init__(self, database: Database, home: Path, tools: LocalTools) -> None:
        self._around = Around(database, home, tools)
        self._jobs = JobCache()
        self._seen: set[tuple[Path, str]] = set()
        self._open: dict[Lease, OwnWorkspace] = {}
        self._opening = Lock()  # attempts work side by side

    def visible(self, path: Path, workspace_id: str) -> bool:
        """Whether this host can have a workspace: its trees are here, or the repository that it is to be
        made of, or the folder itself. An agent may have removed the id's file of a folder (``git
        clean``): one that was seen here with this id gets it back."""
        if workspace_id.startswith(SNAPSHOTS):
            return workspace_id == f"{SNAPSHOTS}{self._store_id()}"
        if path.parent == self._around.home / COPIES:
            return path.is_dir()
        seen = (path, workspace_id) in self._seen
        if workspace_id.startswith(REPOSITORY):
            found = (seen and path.is_dir()) or self._has(path, workspace_id)
        else:
            found = visible(path, workspace_id) or (seen and restore(path, workspace_id))
        if found:
            self._seen.add((path, workspace_id))
        return found

    def prepare(
        self,
        lease: Lease,
        tree: str | None,
        interrupt: Interrupt,
        *,
        undo: bool,
        busy: bool = False,
    ) -> Prepared:
        """See ``runner.ports.Workspaces``."""
        assignment = self._assignment(lease)
        asked = assignment.asked
        if asked is None or not asked.is_recorded:
            shared = asked is not None and asked.mode == "shared" and assignment.path
            outputs = self._around.home / "outputs" / lease.run_id
            return Prepared(Surroundings(Path(shared) if shared else None, outputs))
        with self._telling_of_room():
            own = self._open_own(assignment, asked, lease, interrupt)
            return own.prepare(tree, interrupt, undo=undo, busy=busy)

    def record(self, lease: Lease, interrupt: Interrupt) -> str | None:
        """See ``runner.ports.Workspaces``."""
        own = self._own(lease, interrupt)
        if own is None:
            return None
        with self._telling_of_room():
            return own.record(interrupt)

    def record_shared(self, lease: Lease, interrupt: Interrupt) -> str | None:
        """See ``runner.ports.Workspaces``."""
        around = self._around
        if self._recorded(lease.run_id) is not None:
            return None
        for above in reversed(lineage(lease.run_id)[:-1]):
            if (found := self._recorded(above)) is not None:
                with self._telling_of_room():
                    return record_from_below(around, lease, above, *found, interrupt)
        return None

    def _recorded(self, run_id: str) -> tuple[Workspace, Kept] | None:
        """The workspace of its own that a run has, if it is recorded."""
        assignment = workspaces.assignment_of(self._around.database, run_id, self._jobs)
        asked, kept = assignment.asked, assignment.kept
        if asked is None or kept is None or not asked.is_recorded:
            return None
        return asked, kept

    def holds(self, lease: Lease, path: str) -> bool:
        """See ``runner.ports.Workspaces``."""
        own = self._own(lease, Interrupt())
        return own is not None and own.holds(path)

    def unrecorded(self, lease: Lease, tree: str, interrupt: Interrupt) -> Sequence[str]:
        """See ``runner.ports.Workspaces``."""
        own = self._own(lease, interrupt)
        return () if own is None else own.unrecorded(tree, interrupt)

    def restore(self, lease: Lease, tree: str, interrupt: Interrupt) -> None:
        """See ``runner.ports.Workspaces``."""
        own = self._own(lease, interrupt)
        if own is None:
            raise WorkspaceError(f"no tree is recorded of the workspace of {lease.run_id}")
        with self._telling_of_room():
            own.restore(tree, interrupt)

    def deliver(self, lease: Lease, outcome: Ended, interrupt: Interrupt) -> str:
        """See ``runner.ports.Workspaces``."""
        own = self._own(lease, interrupt)
        if own is None:
            raise WorkspaceError(f"{lease.run_id} has no branch to be delivered on")
        with self._telling_of_room():
            return own.deliver(outcome, interrupt)

    @contextmanager
    def _telling_of_room(self) -> Iterator[None]:
        """git does not always say that a disk is full when it cannot write."""
        try:
            yield
        except WorkspaceError as error:
            home = self._around.home
            free = shutil.disk_usage(home).free if home.is_dir() else LITTLE_ROOM
            if free >= LITTLE_ROOM:
                raise
            raise WorkspaceError(
                f"{error}; there is no room on the disk of {home} ({free:,} bytes are free): make some, "
                "`runner workspace prune` removes what is done with"
            ) from error

    def _own(self, lease: Lease, interrupt: Interrupt) -> OwnWorkspace | None:
        """The run's own workspace, as ``prepare`` left it; None when it has none."""
        with self._opening:
            own = self._open.get(lease)
        if own is not None:
            return own
        assignment = self._assignment(lease)
        if assignment.asked is None or not assignment.asked.is_recorded:
            return None
        return self._open_own(assignment, assignment.asked, lease, interrupt)

    def _assignment(self, lease: Lease) -> Assignment:
        return workspaces.assignment_of(self._around.database, lease.run_id, self._jobs)

    def _open_own(
        self, assignment: Assignment, asked: Workspace, lease: Lease, interrupt: Interrupt
    ) -> OwnWorkspace:
        here, kept = self._store_id(), assignment.kept
        if kept is not None and kept.store_id != here and asked.remote is None:
            raise WorkspaceElsewhere(f"the recorded files of {lease.run_id} are on another host")
        material = material_of(self._around, asked, lease, interrupt)
        own = OwnWorkspace(material, assignment, here)
        with self._opening:
            while len(self._open) >= _MOST_OPEN:
                del self._open[next(iter(self._open))]
            self._open[lease] = own
        return own

    def _store_id(self) -> str:
        return explained(lambda: store_id(self._around.home))

    def _has(self, path: Path, workspace_id: str) -> bool:
        commit = workspace_id.removeprefix(REPOSITORY)
        return Repository(path, self._around.environment).has(commit)

"""The workspaces of runs: none, the job's folder, or a workspace of the run's own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock

from runner.core.agents import lineage
from runner.core.run import Ended, Lease
from runner.core.workspace import Workspace
from runner.errors import HostFaultError, UsageError, WorkspaceElsewhere, WorkspaceError, host_fault
from runner.ports import Interrupt, Prepared, Surroundings
from runner.store import workspaces
from runner.store.database import Database
from runner.store.specs import JobCache
from runner.store.workspaces import SNAPSHOTS, RunWorkspace
from runner.tools.toolbox import LocalTools
from runner.workspace.folders import COPIES, has_id, restore_id
from runner.workspace.git import shown
from runner.workspace.hook_transcripts import Transcripts
from runner.workspace.host_check import find_host_fault
from runner.workspace.own_workspace import REMOTE_SECONDS, OwnWorkspace, Site, open_workspace
from runner.workspace.repository import Repository
from runner.workspace.snapshot_store import store_id

REPOSITORY = "git_"  # begins the id of a workspace that is still to be made of a repository

_LITTLE_ROOM = 50_000_000  # bytes
_FEW_FILES = 1_000  # that can still be made
_MOST_OPEN = 256  # an older one is opened again when it is needed


class RunWorkspaces:
    """``runner.ports.Workspaces``, which says what its methods do and raise."""

    def __init__(
        self,
        database: Database,
        home: Path,
        tools: LocalTools,
        *,
        remote_seconds: float = REMOTE_SECONDS,
        most_open: int = _MOST_OPEN,
        little_room: int = _LITTLE_ROOM,
    ) -> None:
        """
        Args:
            home: RUNNER_HOME, for runs' own workspaces, their snapshots and long outputs.
            tools: its host starts what writes in a workspace, and it runs the job's setup.
            remote_seconds: how long a remote that does not answer is asked again.
            most_open: how many workspaces are kept open.
            little_room: bytes; an error says if fewer are free on the disk of ``home``.
        """
        self._site = Site(database, home, tools, remote_seconds=remote_seconds)
        self._most_open = most_open
        self._little_room = little_room
        self._jobs = JobCache()
        self._seen: set[tuple[Path, str]] = set()
        self._open: dict[Lease, OwnWorkspace] = {}
        self._transcripts = Transcripts(database)
        self._opening = Lock()  # attempts work side by side

    def visible(self, path: Path, workspace_id: str) -> bool:
        """Return True if this host can have a workspace: its snapshots, its repository or the
        folder itself is here; one that was seen here gets a lost id (``git clean``) back. Raises
        ``HostFaultError``."""
        self._require_home()
        if workspace_id.startswith(SNAPSHOTS):
            return workspace_id == f"{SNAPSHOTS}{store_id(self._site.home)}"
        if path.parent == self._site.home / COPIES:
            return path.is_dir()
        seen = (path, workspace_id) in self._seen
        if workspace_id.startswith(REPOSITORY):
            commit = workspace_id.removeprefix(REPOSITORY)
            repository = Repository(path, self._site.tools.environment)
            found = (seen and path.is_dir()) or repository.has(commit)
        else:
            found = has_id(path, workspace_id) or (seen and restore_id(path, workspace_id))
        if found:
            self._seen.add((path, workspace_id))
        return found

    def surroundings(self, lease: Lease, folder: Path | None) -> Surroundings:
        return self._site.surroundings(lease.run_id, folder)

    def prepare(
        self,
        lease: Lease,
        snapshot: str | None,
        interrupt: Interrupt,
        *,
        undo: bool,
        busy: bool = False,
    ) -> Prepared:
        stored = self._stored(lease.run_id)
        asked = stored.asked
        if asked is None or not asked.is_recorded:
            shared = asked is not None and asked.mode == "shared" and stored.path
            return Prepared(self.surroundings(lease, Path(shared) if shared else None))
        with self._explained():
            own = self._open_own(stored, asked, lease, interrupt)
            return own.prepare(snapshot, interrupt, undo=undo, busy=busy)

    def transcript(self, lease: Lease) -> Path:
        folder = self.surroundings(lease, None).outputs
        with self._explained():
            return self._transcripts.update(lease.run_id, folder)

    def hide_originals(self, lease: Lease, calls: Iterable[str]) -> None:
        folder = self.surroundings(lease, None).outputs
        with self._explained():
            self._transcripts.hide_originals(lease.run_id, folder, calls)

    def record(self, lease: Lease, interrupt: Interrupt) -> str | None:
        with self._explained():
            own = self._own(lease, interrupt)
            return None if own is None else own.record(interrupt)

    def record_shared(self, lease: Lease, interrupt: Interrupt) -> str | None:
        for owner in reversed(lineage(lease.run_id)):
            stored = self._stored(owner)
            asked, record = stored.asked, stored.record
            if asked is not None and record is not None and asked.is_recorded:
                if owner == lease.run_id:
                    return None
                with self._explained():
                    theirs = replace(lease, run_id=owner)
                    own = open_workspace(self._site, stored, asked, theirs, interrupt)
                    return own.record_for(lease, record, interrupt)
        return None

    def holds(self, lease: Lease, path: str) -> bool:
        with self._explained():
            own = self._own(lease, Interrupt())
            return own is not None and own.snapshots.holds(path)

    def unrecorded(self, lease: Lease, snapshot: str, interrupt: Interrupt) -> Sequence[str]:
        with self._explained():
            own = self._own(lease, interrupt)
            if own is None:
                return ()
            own.fetch(snapshot, interrupt)
            return [*map(shown, own.snapshots.unrecorded(snapshot, interrupt.check))]

    def restore(self, lease: Lease, snapshot: str, interrupt: Interrupt) -> None:
        with self._explained():
            own = self._own(lease, interrupt)
            if own is None:
                raise WorkspaceError(f"{lease.run_id} has no recorded files")
            own.restore(snapshot, interrupt)

    def deliver(self, lease: Lease, outcome: Ended, interrupt: Interrupt) -> str:
        with self._explained():
            own = self._own(lease, interrupt)
            if own is None:
                raise WorkspaceError(f"{lease.run_id} has no branch for its delivery")
            return own.deliver(outcome, interrupt)

    def _require_home(self) -> None:
        """Raise ``HostFaultError`` if RUNNER_HOME is gone: another would be empty."""
        if not (home := self._site.home).is_dir():
            raise HostFaultError(f"RUNNER_HOME {home} is gone: put it back")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what is wrong with files into a ``WorkspaceError``, or a ``HostFaultError`` if it is
        the host's fault, which is looked at: git does not always say that a disk is full."""
        self._require_home()
        try:
            yield
        except (WorkspaceError, HostFaultError, OSError, UsageError, MemoryError) as error:
            home, environment = self._site.home, self._site.tools.environment
            fault = host_fault(error)
            if fault is None and (found := find_host_fault(home, environment)) is not None:
                fault = f"{error}; {found}"
            if home.is_dir() and (free := _little(os.statvfs(home), self._little_room)):
                fault = (
                    f"{fault or error}; there is no room on the disk of {home} ({free} are free): make "
                    "some, `runner workspace prune` removes what is done with"
                )
            if fault is not None:
                raise HostFaultError(fault) from error
            if isinstance(error, WorkspaceError):
                raise
            raise WorkspaceError(str(error)) from error

    def _own(self, lease: Lease, interrupt: Interrupt) -> OwnWorkspace | None:
        """Return the run's own workspace, as ``prepare`` left it, or None if it has none."""
        with self._opening:
            own = self._open.get(lease)
        if own is not None:
            return own
        stored = self._stored(lease.run_id)
        if stored.asked is None or not stored.asked.is_recorded:
            return None
        return self._open_own(stored, stored.asked, lease, interrupt)

    def _stored(self, run_id: str) -> RunWorkspace:
        return workspaces.workspace_of(self._site.database, run_id, self._jobs)

    def _open_own(
        self, stored: RunWorkspace, asked: Workspace, lease: Lease, interrupt: Interrupt
    ) -> OwnWorkspace:
        here, record = store_id(self._site.home), stored.record
        if record is not None and record.store_id != here and asked.remote is None:
            raise WorkspaceElsewhere(f"the recorded files of {lease.run_id} are on another host")
        own = open_workspace(self._site, stored, asked, lease, interrupt)
        with self._opening:
            while len(self._open) >= self._most_open:
                del self._open[next(iter(self._open))]
            self._open[lease] = own
        return own


def _little(disk: os.statvfs_result, little_room: int) -> str:
    """Return how little is free on a disk, in words; empty if that is enough."""
    room, is_limited = disk.f_bavail * disk.f_frsize, disk.f_files > 0
    if room < little_room:
        return f"{room:,} bytes"
    return f"{disk.f_favail:,} files" if is_limited and disk.f_favail < _FEW_FILES else ""

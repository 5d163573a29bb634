"""List runs' own workspaces on this host, and prune workspaces of ended runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.core.run import ENDED, UNKNOWN, Author
from runner.core.workspace import Workspace
from runner.errors import RunnerError
from runner.store import workspaces
from runner.store.database import Database
from runner.store.workspaces import RunWorkspace, WorkspaceRecord
from runner.workspace.folders import COPIES, remove_folder
from runner.workspace.git import shown
from runner.workspace.notes import MadeNotes
from runner.workspace.repository import Repository, clone_of
from runner.workspace.snapshot_store import make_store, store_id
from runner.workspace.snapshots import looking
from runner.workspace.worktree import GitStateReader, Worktree

_STRANGER = "no run of this database knows it: if it is no one's, remove the folder"
_NOT_RECORDED = "an earlier Runner made it, and nothing of it is recorded"
_GOES_ON = "its run has not ended: cancel it first"


@dataclass(frozen=True, slots=True)
class Leftover:
    run_id: str
    path: Path
    run: RunWorkspace | None  # None for a folder that no run of the database knows
    unsaved: str  # why its work would be lost with it, or ""

    @property
    def here(self) -> bool:
        return self.path.is_dir()

    def size(self) -> int:
        """Return the bytes of its files, looking at each of them."""
        size = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                with suppress(OSError):  # an agent at work removes files meanwhile
                    size += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 - thousands
        return size


@dataclass(frozen=True, slots=True)
class Pruned:
    leftover: Leftover
    removed: bool
    why_kept: str = ""


def list_workspaces(
    database: Database, home: Path, environment: Mapping[str, str], *, job_id: str | None = None
) -> list[Leftover]:
    """Return the workspaces on this host by run id, and the ones whose folders are missing.

    Each is compared with the last snapshot of it.

    Args:
        environment: the environment of git.
        job_id: only of this job's runs.

    Raises:
        UnreachableError: the database does not answer.
        WorkspaceError: nothing can be read in ``home``.
    """
    folder = home / COPIES
    names = [] if not folder.is_dir() else [entry.name for entry in os.scandir(folder)]
    folders = sorted(name for name in names if not name.startswith("."))
    known = workspaces.list_of_host(database, store_id(home), folders, job_id)
    found = {run.run_id: run for run in known if run.record is not None or run.run_id in folders}
    strangers = [] if job_id is not None else [name for name in folders if name not in found]
    files, leftovers = _Files(home, environment), []
    for name in sorted([*found, *strangers]):
        run, path = found.get(name), folder / name
        unsaved = _STRANGER if run is None else files.unsaved(run, path)
        leftovers.append(Leftover(name, path, run, unsaved))
    return leftovers


def prune(
    database: Database,
    home: Path,
    environment: Mapping[str, str],
    now: float,
    *,
    author: Author = UNKNOWN,
    job_id: str | None = None,
    force: bool = False,
) -> list[Pruned]:
    """Remove the workspaces of runs that have ended, except those with unsaved work.

    Branches and snapshots stay: a run that is taken up again finds its files. A folder that no run of
    this database knows may belong to a run of another: it stays.

    Args:
        now: seconds since the epoch.
        author: who removes them, for the event that is stored before.
        force: remove those with unsaved work too.

    Raises:
        UnreachableError: the database does not answer.
        WorkspaceError: nothing can be read in ``home``.
    """
    files = _Files(home, environment)
    pruned = []
    for leftover in list_workspaces(database, home, environment, job_id=job_id):
        if not leftover.here:
            continue
        has_ended = leftover.run is not None and leftover.run.state in ENDED
        why = "" if force and has_ended else leftover.unsaved
        lost = {"path": str(leftover.path), "unsaved": leftover.unsaved}
        if not why and not workspaces.record_removal(database, leftover.run_id, lost, author, now):
            why = _GOES_ON
        if not why:
            why = files.remove(leftover)
        pruned.append(Pruned(leftover, not why, why))
    return pruned


@dataclass(frozen=True, slots=True)
class _Files:
    home: Path
    environment: Mapping[str, str]

    def unsaved(self, run: RunWorkspace, path: Path) -> str:
        """Return why a run's work would be lost with its workspace, or ""."""
        if run.state not in ENDED:
            return _GOES_ON
        if run.asked is None or not path.is_dir():
            return ""
        if run.record is None:
            is_noted = MadeNotes.beside(path, run.attempt).folder.is_dir()
            return "" if is_noted else _NOT_RECORDED
        try:
            why = self._unrecorded(run, run.asked, run.record, path)
        except (RunnerError, OSError) as error:
            return f"it cannot be compared with what is recorded of it: {error}"
        if why:
            return why
        if run.asked.mode == "git" and run.commit is None:
            return "it was not delivered: no commit on its branch holds all of it"
        return ""

    def remove(self, leftover: Leftover) -> str:
        """Remove a workspace; return why that cannot be done, or ""."""
        try:
            repository = None if leftover.run is None else self._repository(leftover.run)
            if repository is None:
                remove_folder(leftover.path)
            else:
                Worktree(repository, leftover.path).remove()
            remove_folder(MadeNotes.beside(leftover.path, 0).folder)
        except (RunnerError, OSError) as error:
            return f"it cannot be removed: {error}"
        return ""

    def _unrecorded(
        self, run: RunWorkspace, asked: Workspace, record: WorkspaceRecord, path: Path
    ) -> str:
        """Return the paths that no snapshot of the workspace holds, or ""."""
        repository = self._repository(run)
        common = repository.common_folder() if repository else None
        store = make_store(self.home, asked.source, common, environment=self.environment)
        made = MadeNotes.beside(path, run.attempt).read()
        note = ""
        if repository is not None and made is not None:
            note, _ = made.note(GitStateReader(Worktree(repository, path)).read())
        options = {
            "ignored": asked.snapshot_ignored,
            "ignore": asked.ignore,
            "largest_file": asked.largest_file,
        }
        with looking(store, path, run.run_id, environment=self.environment, **options) as snapshots:
            snapshot = snapshots.take(note=note)
            known = {run.tree or snapshot}
            if record.store_id != store_id(self.home):
                known |= snapshots.history().trees  # another host went on from there
            if snapshot not in known:
                return "its files were changed since they were recorded last"
            names = ", ".join(map(shown, snapshots.unrecorded(snapshot)))
        return names and f"it holds what is recorded nowhere (a repository of its own): {names}"

    def _repository(self, run: RunWorkspace) -> Repository | None:
        asked = run.asked
        if asked is None or asked.mode != "git":
            return None
        urls = filter(None, (asked.url, asked.remote))
        folders = [Path(asked.path)] if asked.path else []
        folders += [clone_of(self.home, url) for url in urls]
        return Repository(next(filter(Path.is_dir, folders), folders[0]), self.environment)

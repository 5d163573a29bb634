"""Runs' own workspaces that are still on this host: what they hold, and removing those done with."""

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
from runner.store.workspaces import StoredWorkspace
from runner.workspace.folders import remove_folder
from runner.workspace.git import shown
from runner.workspace.making import COPIES, MadeNote, note_for
from runner.workspace.repository import Repository, clone_of
from runner.workspace.snapshot_store import make_store, store_id
from runner.workspace.snapshots import looking
from runner.workspace.worktree import Standing, Worktree


@dataclass(frozen=True, slots=True)
class Leftover:
    """A workspace. ``run`` is None for a folder that no run of the database knows. ``unsaved`` is why
    its work would be lost with it, or empty."""

    run_id: str
    path: Path
    run: StoredWorkspace | None
    unsaved: str

    @property
    def here(self) -> bool:
        """Whether its folder is there."""
        return self.path.is_dir()

    @property
    def has_ended(self) -> bool:
        """Whether it has a run that will not go on by itself."""
        return self.run is not None and self.run.state in ENDED

    def size(self) -> int:
        """The bytes of its files, which are all looked at for that."""
        size = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                with suppress(OSError):  # an agent at work removes files meanwhile
                    size += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 - thousands
        return size


@dataclass(frozen=True, slots=True)
class Pruned:
    """What became of one: removed, or why it was kept."""

    leftover: Leftover
    removed: bool
    why_kept: str = ""


def list_workspaces(
    database: Database, home: Path, environment: Mapping[str, str], *, job_id: str | None = None
) -> list[Leftover]:
    """The workspaces on this host, in order of their runs' ids; and those that should be, but whose
    folders are gone. Each is compared with what was recorded of it.

    Args:
        home: RUNNER_HOME.
        environment: the variables that git gets.
        job_id: only of this job's runs.

    Raises:
        UnreachableError: the database does not answer. WorkspaceError: nothing can be read in ``home``.
    """
    folder = home / COPIES
    names = [] if not folder.is_dir() else [entry.name for entry in os.scandir(folder)]
    folders = sorted(name for name in names if not name.startswith("."))
    known = workspaces.on_host(database, store_id(home), folders, job_id)
    found = {run.run_id: run for run in known if run.kept is not None or run.run_id in folders}
    strangers = [] if job_id is not None else [name for name in folders if name not in found]
    look = _Look(home, environment)
    return [
        Leftover(
            name,
            folder / name,
            found.get(name),
            look.unsaved(found[name], folder / name) if name in found else _STRANGER,
        )
        for name in sorted([*found, *strangers])
    ]


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
    """Remove the workspaces of runs that have ended, save those that hold unsaved work. Branches and
    snapshots stay: a run that is taken up again finds its files.

    Args:
        now: seconds since the epoch.
        author: who says so, for the record, which has it before anything is removed.
        force: remove those with unsaved work too. A folder that no run of this database knows may be
            at work for another: it stays.

    Raises:
        UnreachableError: the database does not answer. WorkspaceError: nothing can be read in ``home``.
    """
    look = _Look(home, environment)
    pruned = []
    for leftover in list_workspaces(database, home, environment, job_id=job_id):
        if not leftover.here:
            continue
        why = "" if force and leftover.has_ended else leftover.unsaved
        if not why and not _begin_removing(database, leftover, author, now):
            why = _GOES_ON
        if not why:
            why = look.remove(leftover)
        pruned.append(Pruned(leftover, not why, why))
    return pruned


_STRANGER = "no run of this database knows it: if it is no one's, remove the folder"


_NOT_RECORDED = "an earlier Runner made it, and nothing of it is recorded"


_GOES_ON = "its run has not ended: cancel it first"


def _begin_removing(database: Database, leftover: Leftover, author: Author, now: float) -> bool:
    lost = {"path": str(leftover.path), "unsaved": leftover.unsaved}
    return workspaces.begin_removing(database, leftover.run_id, lost, author, now)


@dataclass(frozen=True, slots=True)
class _Look:
    home: Path
    environment: Mapping[str, str]

    def unsaved(self, run: StoredWorkspace, path: Path) -> str:
        """What of a run's workspace, which is at ``path``, is saved nowhere else, or empty."""
        if run.state not in ENDED:
            return _GOES_ON
        if run.asked is None or not path.is_dir():
            return ""
        if run.kept is None:
            is_noted = MadeNote.beside(path, run.attempt).folder.is_dir()
            return "" if is_noted else _NOT_RECORDED
        try:
            is_recorded, found = self._compared(run, run.asked, path)
        except (RunnerError, OSError) as error:
            return f"it cannot be compared with what is recorded of it: {error}"
        within = [shown(each) for each in found]
        if not is_recorded:
            return "its files were changed since they were recorded last"
        if within:
            return (
                f"it holds what is recorded nowhere (a repository of its own): {', '.join(within)}"
            )
        if run.asked.mode == "git" and run.delivered is None:
            return "it was not delivered: no commit on its branch holds all of it"
        return ""

    def remove(self, leftover: Leftover) -> str:
        """Remove a workspace; why that cannot be done, or empty."""
        try:
            repository = None if leftover.run is None else self._repository(leftover.run)
            if repository is None:
                remove_folder(leftover.path)
            else:
                Worktree(repository, leftover.path).remove()
            remove_folder(MadeNote.beside(leftover.path, 0).folder)
        except (RunnerError, OSError) as error:
            return f"it cannot be removed: {error}"
        return ""

    def _compared(
        self, run: StoredWorkspace, asked: Workspace, path: Path
    ) -> tuple[bool, list[bytes]]:
        """Whether the workspace is as it was recorded, and what in it no tree holds."""
        repository = self._repository(run)
        common = repository.common_folder() if repository else None
        store = make_store(self.home, asked.source, common, environment=self.environment)
        made = MadeNote.beside(path, run.attempt).read()
        note = ""
        if repository is not None and made is not None:
            note, _ = note_for(Standing(Worktree(repository, path)).read(), made)
        with looking(
            store,
            path,
            run.run_id,
            environment=self.environment,
            ignored=asked.snapshot_ignored,
            largest_file=asked.largest_file,
        ) as snapshots:
            tree = snapshots.take(note=note)
            known = {run.tree or tree}
            if run.kept is None or run.kept.store_id != store_id(self.home):
                known |= snapshots.last_of_attempts()  # another host went on from there
            return tree in known, snapshots.unrecorded(tree)

    def _repository(self, run: StoredWorkspace) -> Repository | None:
        """Where a run's worktree is from; None for a copy."""
        asked = run.asked
        if asked is None or asked.mode != "git":
            return None
        folders = [Path(asked.path)] if asked.path else []
        folders += [clone_of(self.home, url) for url in (asked.url, asked.remote) if url]
        repositories = [Repository(folder, self.environment) for folder in folders]
        there = (repository for repository in repositories if repository.folder.is_dir())
        return next(there, repositories[0])

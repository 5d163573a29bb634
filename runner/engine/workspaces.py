"""Where a run works: the job's folder, or the run's own copy of it, made at its first attempt."""

from __future__ import annotations

from pathlib import Path

from runner.core.run import Lease
from runner.engine.ports import Interrupt, Surroundings
from runner.errors import Interrupted, RunnerError, WorkspaceError
from runner.store import runs
from runner.store.database import Database
from runner.workspace.copy import copy
from runner.workspace.identity import restore, visible

COPIES = "workspaces"


class RunWorkspaces:
    """``engine.ports.Workspaces``.

    Args:
        home: RUNNER_HOME; copies and long outputs lie in it.
    """

    def __init__(self, database: Database, home: Path) -> None:
        self._database = database
        self._home = home
        self._seen: set[tuple[Path, str]] = set()

    def visible(self, path: Path, workspace_id: str) -> bool:
        """Whether a workspace is here. An agent may have removed the id's file (``git clean``): a
        copy is named after its run, so its folder is proof enough, and a folder that was seen here
        with this id gets it back."""
        if path.parent == self._home / COPIES:
            return path.is_dir()
        found = visible(path, workspace_id)
        if not found and (path, workspace_id) in self._seen:
            found = restore(path, workspace_id)
        if found:
            self._seen.add((path, workspace_id))
        return found

    def prepare(self, lease: Lease, interrupt: Interrupt) -> Surroundings:
        """The folders of a run; see ``engine.ports.Workspaces``."""
        outputs = self._home / "outputs" / lease.run_id
        path, _, asked = runs.workspace_of(self._database, lease.run_id)
        if asked is None or path is None:
            return Surroundings(None, outputs)
        if asked["mode"] == "copy" and path == asked["path"]:
            target = self._home / COPIES / lease.run_id
            workspace_id = _copy(Path(path), target, self._home, interrupt)
            runs.set_workspace(self._database, lease, str(target), workspace_id)
            return Surroundings(target, outputs)
        return Surroundings(Path(path), outputs)


def _copy(source: Path, target: Path, home: Path, interrupt: Interrupt) -> str:
    try:
        return copy(source, target, [home], interrupt.check)
    except Interrupted:
        raise
    except RunnerError as error:
        raise WorkspaceError(str(error)) from error

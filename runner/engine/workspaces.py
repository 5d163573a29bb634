"""Where a run works: the job's folder, or the run's own copy of it, made at its first attempt."""

from __future__ import annotations

from pathlib import Path

from runner.core.run import Lease
from runner.engine.ports import Interrupt, Surroundings
from runner.errors import Interrupted, RunnerError, WorkspaceError
from runner.store import runs
from runner.store.database import Database
from runner.workspace.copy import copy


class RunWorkspaces:
    """``engine.ports.Workspaces``.

    Args:
        home: RUNNER_HOME; copies and long outputs lie in it.
    """

    def __init__(self, database: Database, home: Path) -> None:
        self._database = database
        self._home = home

    def prepare(self, lease: Lease, interrupt: Interrupt) -> Surroundings:
        """The folders of a run; see ``engine.ports.Workspaces``."""
        outputs = self._home / "outputs" / lease.run_id
        path, _, asked = runs.workspace_of(self._database, lease.run_id)
        if asked is None or path is None:
            return Surroundings(None, outputs)
        if asked["mode"] == "copy" and path == asked["path"]:
            target = self._home / "workspaces" / lease.run_id
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

"""Where a run of a job would make its calls, before there is a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.permissions import Request, ResolvedPath, paths_of
from runner.permissions.rules import READING, WRITING
from runner.ports import Surroundings
from runner.tools.failure import ToolFailure
from runner.tools.files.permission import locate
from runner.tools.files.places import Places, inside

if TYPE_CHECKING:
    from runner.core.files.workspace import Workspace

_RUN = "run"  # stands for the id of the run


@dataclass(frozen=True, slots=True)
class Scene:
    """``copy`` is where a run's own copy or worktree of the workspace would be, None when runs share
    the workspace. Links are looked at in the workspace: one that leads back into it by an
    absolute path leads out of a copy, which is not seen here."""

    surroundings: Surroundings
    home: Path
    copy: str | None

    @classmethod
    def of(cls, workspace: Workspace | None, home: Path) -> Scene:
        """The scene of a job's runs. Args: home: RUNNER_HOME."""
        from runner.workspace.making import COPIES

        outputs = home / "outputs" / _RUN
        own = str(home.resolve() / COPIES / _RUN)
        if workspace is not None and workspace.url is not None:  # there are no files of it here
            return cls(Surroundings(Path(own), outputs), home, None)
        path = Path(workspace.path) if workspace and workspace.path else None
        is_own = workspace is not None and workspace.is_recorded
        return cls(Surroundings(path, outputs), home, own if is_own else None)

    def request(self, tool: str, arguments: Mapping[str, Any]) -> Request:
        """The call as a run would make it."""
        places = Places.of(self.surroundings, self.home)
        context = locate(paths_of(tool, arguments), self.surroundings, places)
        if self.copy is not None:
            found = {text: self._in_copy(text, place) for text, place in context.places.items()}
            context = replace(context, workspace=self.copy, places=found)
        return Request(tool, arguments, context)

    def refusal(self, tool: str, arguments: Mapping[str, Any]) -> str | None:
        """Why a file tool would not go where the call leads, whatever rules there are."""
        if tool not in READING | WRITING:
            return None
        places = Places.of(self.surroundings, self.home)
        for path in paths_of(tool, arguments):
            if self.copy is not None and path.startswith("/"):
                return f"{path} is not in the run's own copy of the workspace"
            try:
                places.find(path, writing=tool in WRITING)
            except ToolFailure as failure:
                return str(failure)
        return None

    def _in_copy(self, text: str, place: ResolvedPath) -> ResolvedPath:
        """Where a place of the workspace is in the copy, unless it was named by an absolute path."""
        if text.startswith(("/", "~")):
            return place
        return ResolvedPath(self._copied(place.named), self._copied(place.real))

    def _copied(self, path: str) -> str:
        workspace = str(self.surroundings.workspace)
        if self.copy is None or not inside(path, workspace):
            return path
        return self.copy + path[len(workspace.rstrip("/")) :]

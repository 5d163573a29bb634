"""What a job's workspaces are made from, looked at: a folder, or a repository."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.core.workspace import Asked, LookAtRepository, Workspace
from runner.errors import Problem
from runner.jobfile.content import text_problem
from runner.jobfile.sections.workspace import WorkspaceDraft, is_url
from runner.permissions import Rule
from runner.permissions.copies import with_copies


@dataclass(frozen=True, slots=True)
class Source:
    """A job's workspace, None without one or with a problem; where ``items.glob`` looks: in a folder,
    or among ``files`` (None where there is nothing to look in); and notes for whoever submits."""

    workspace: Workspace | None
    folder: Path | None = None
    files: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


def look_at_source(
    draft: WorkspaceDraft | None,
    job: str,
    folder: Path,
    look_at: LookAtRepository,
    problems: list[Problem],
) -> Source:
    """Look at what the workspaces are made from, noting what is wrong with it.

    Args:
        job: the job's name.
        folder: the job file's, to which paths are relative.
    """
    if draft is None:
        return Source(None, folder)
    if draft.mode == "none":
        return Source(_workspace(draft), folder)
    if draft.mode == "git":
        return _look_at_repository(draft, job, folder, look_at, problems)
    if draft.path is None:
        return Source(None, folder)
    path = _folder(draft.path, folder, problems)
    return Source(_workspace(draft, path=path) if path else None, Path(path) if path else None)


def rules_in_copies(
    rules: Sequence[Rule], workspace: Workspace | None, draft: WorkspaceDraft | None, folder: Path
) -> tuple[Rule, ...]:
    """The rules, and what those about the workspace's own folder mean in a run's copy of it."""
    if workspace is None or draft is None or not workspace.is_recorded or workspace.path is None:
        return tuple(rules)
    written = os.path.normpath(folder / (draft.path or draft.repo or ""))
    home = os.path.expanduser("~")  # noqa: PTH111 (Path.expanduser raises where there is none)
    real_home = os.path.realpath(home) if Path(home).is_absolute() else None
    return tuple(with_copies(rules, (workspace.path, written), real_home))


def _folder(written: str, folder: Path, problems: list[Problem]) -> str | None:
    path = folder / written
    problem = None
    try:
        path = path.resolve()
        if not path.is_dir():
            problem = f"{path} {'is not a folder' if path.exists() else 'does not exist'}"
    except (OSError, RuntimeError) as error:
        problem = f"cannot look at {path}: {error}"
    if problem is None and (wrong := text_problem(str(path))):
        problem = f"the folder's whole path {wrong}"
    if problem is not None:
        problems.append(Problem("workspace.path", problem))
        return None
    return str(path)


def _look_at_repository(
    draft: WorkspaceDraft,
    job: str,
    folder: Path,
    look_at: LookAtRepository,
    problems: list[Problem],
) -> Source:
    if draft.repo is None or any(problem.place.startswith("workspace") for problem in problems):
        return Source(None)
    remote = draft.remote if draft.remote is None else _absolute(draft.remote, folder)
    asked = Asked(
        job=job,
        source=_absolute(draft.repo, folder),
        is_url=is_url(draft.repo),
        base=draft.base,
        uncommitted=draft.uncommitted,
        remote=remote,
        accepted=draft.accepted,
    )
    found = look_at(asked)
    problems += [Problem(f"workspace.{key}", message) for key, message in found.problems]
    if found.path is not None and (wrong := text_problem(found.path)):
        problems.append(Problem("workspace.repo", f"the folder's whole path {wrong}"))
        return Source(None)
    if found.problems:
        return Source(None)
    workspace = _workspace(
        draft,
        path=found.path,
        url=asked.source if asked.is_url else None,
        remote=remote,
        commit=found.commit,
    )
    return Source(workspace, files=found.files, notes=found.notes)


def _absolute(place: str, folder: Path) -> str:
    return place if is_url(place) else os.path.normpath(folder / place)


def _workspace(
    draft: WorkspaceDraft,
    *,
    path: str | None = None,
    url: str | None = None,
    remote: str | None = None,
    commit: str = "",
) -> Workspace:
    return Workspace(
        path=path,
        mode=draft.mode,
        url=url,
        base=draft.base or "HEAD",
        commit=commit,
        setup=draft.setup,
        setup_timeout=draft.setup_timeout,
        remote=remote,
        snapshot_ignored=draft.snapshot_ignored,
        largest_file=draft.largest_file,
        external=tuple(rule for _, rule in draft.external),
        on_unknown=draft.on_unknown,
    )

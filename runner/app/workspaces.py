"""The workspaces of runs on this host, and removing those that are done with."""

from __future__ import annotations

import os
from typing import Any

from runner.app.handle import App
from runner.core.run import Author
from runner.tools.environment import tool_environment
from runner.workspace import leftovers
from runner.workspace.leftovers import Leftover


def list_workspaces(app: App, job: str | None) -> list[dict[str, Any]]:
    """Return the workspaces on this host, of all jobs or of one."""
    job_id = None if job is None else app.find_job(job)
    environment = tool_environment(os.environ, app.settings.secrets())
    home = app.settings.home
    found = leftovers.list_workspaces(app.database, home, environment, job_id=job_id)
    return [_as_json(each) for each in found]


def prune_workspaces(
    app: App, job: str | None, author: Author, *, force: bool
) -> list[dict[str, Any]]:
    """Remove the workspaces of runs that have ended, and return all with why each was kept.

    Args:
        force: also those with work that is saved nowhere else.
    """
    job_id = None if job is None else app.find_job(job)
    pruned = leftovers.prune(
        app.database,
        app.settings.home,
        tool_environment(os.environ, app.settings.secrets()),
        app.now(),
        author=author,
        job_id=job_id,
        force=force,
    )
    return [
        {**_as_json(each.leftover), "removed": each.removed, "why_kept": each.why_kept}
        for each in pruned
    ]


def _as_json(leftover: Leftover) -> dict[str, Any]:
    run = leftover.run
    return {
        "run_id": leftover.run_id,
        "job_id": run and run.job_id,
        "job_name": run and run.job_name,
        "item_key": run and run.item_key,
        "state": run and run.state,
        "branch": run and run.record and run.record.branch,
        "path": str(leftover.path),
        "here": leftover.here,
        "bytes": leftover.size(),
        "unsaved": leftover.unsaved or None,
    }

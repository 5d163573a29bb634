"""The workspaces of runs: their folders on this host and their recorded files."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from runner.app.handle import App
from runner.core.run import ENDED, Author
from runner.errors import UsageError
from runner.queries.accesses import Action, Differences, SnapshotPair
from runner.queries.transcript import session_of_run
from runner.settings import tool_environment
from runner.store.workspaces import RunWorkspace, workspace_of
from runner.workspace import leftovers
from runner.workspace.diffs import Change, CommitText, RecordedChanges, Whereabouts
from runner.workspace.repository import RUNNER, RUNNERS_ADDRESS, Repository, commit_message


def list_workspaces(app: App, job: str | None) -> list[dict[str, Any]]:
    """Return the workspaces on this host, of all jobs or of one."""
    job_id = app.find_job(job) if job else None
    found = leftovers.list_workspaces(
        app.database, app.settings.home, environment(app), job_id=job_id
    )
    return [_as_json(each) for each in found]


def prune_workspaces(
    app: App, job: str | None, author: Author, *, force: bool
) -> list[dict[str, Any]]:
    """Remove the workspaces of runs that have ended, with ``force`` even those with work that is
    saved nowhere else, and return all with why each was kept."""
    options: Any = {"author": author, "job_id": app.find_job(job) if job else None, "force": force}
    home = app.settings.home
    pruned = leftovers.prune(app.database, home, environment(app), app.now(), **options)
    return [
        {**_as_json(each.leftover), "removed": each.removed, "why_kept": each.why_kept}
        for each in pruned
    ]


def _as_json(leftover: leftovers.Leftover) -> dict[str, Any]:
    run = leftover.run
    names = ("job_id", "job_name", "item_key", "state")
    return {
        "run_id": leftover.run_id,
        **{name: getattr(run, name, None) for name in names},
        "branch": run and run.branch,
        "path": str(leftover.path),
        "here": leftover.here,
        "bytes": leftover.size(),
        "unsaved": leftover.unsaved or None,
    }


def environment(app: App) -> Mapping[str, str]:
    """Return the environment of git: without secrets."""
    return tool_environment(os.environ, app.settings.secrets())


def recorded_in(app: App) -> RecordedChanges:
    """Return the snapshots that lie in the home."""
    return RecordedChanges(app.settings.home, environment(app))


def whereabouts(app: App, run: RunWorkspace) -> Whereabouts:
    """Return the location of a run's snapshots; a fork's first ones belong to its original."""
    line = [run]
    while (origin := line[-1].fork_of) is not None:
        line.append(workspace_of(app.database, origin))
    return Whereabouts(
        run_ids=tuple(each.run_id for each in line),
        source=run.asked.source if run.asked else "",
        store_id=next((each.record.store_id for each in line if each.record), None),
        hostname=next((each.hostname for each in line if each.hostname), None),
        remote=run.asked.remote if run.asked else None,
    )


def differences_in(app: App) -> Differences:
    """Return a function that compares snapshots in the home; it leaves out others."""
    recorded = recorded_in(app)

    def differences(
        pairs: Sequence[SnapshotPair],
    ) -> Mapping[SnapshotPair, Sequence[tuple[Action, str]]]:
        found: dict[SnapshotPair, Sequence[tuple[Action, str]]] = {}
        in_order = sorted(pairs, key=lambda pair: pair.run_id)
        for run_id, of_run in groupby(in_order, key=lambda pair: pair.run_id):
            by_change = {(pair.before, pair.after): pair for pair in of_run}
            where = whereabouts(app, workspace_of(app.database, run_id))
            known = recorded.touched(where, [*by_change])
            found |= {by_change[change]: touched for change, touched in known.items()}
        return found

    return differences


def refuse_unrecorded(app: App, run: RunWorkspace) -> None:
    """Raise ``UsageError`` if no snapshots are recorded of a run."""
    none = f"{run.run_id} has no recorded files"
    if not run.is_recorded:
        if session_of_run(app.database, run.run_id) is not None:
            how = f"`runner audit files --run {run.run_id}` lists the files that its calls name"
            raise UsageError(f"{none}: it is an imported session; {how}")
        mode = f'works in mode "{run.asked.mode}"' if run.asked else "has no workspace"
        raise UsageError(f'{none}: its job {mode}; only the modes "git" and "copy" record files')
    if run.start_tree is None or run.tree is None:
        raise UsageError(f"{none} yet: no worker has begun it")


def delivered_or_recorded(run: RunWorkspace) -> list[Change]:
    """Return a run's changes: from its base commit to its delivery, then, in case that is gone,
    from its first snapshot to its last. Empty before it has begun."""
    ends = ((run.start_commit, run.commit), (run.start_tree, run.tree))
    return [(before, after) for before, after in ends if before is not None and after is not None]


def commit_text(app: App, run: RunWorkspace) -> CommitText:
    """Return the author and message of a run's delivery, as it is or would be now."""
    if run.commit is not None:
        found = recorded_in(app).commit(whereabouts(app, run), run.commit)
        if found is not None:
            return found
    places = [run.record.path] if run.record else []
    places += [run.asked.source] if run.asked else []
    here = next((p for p in map(Path, places) if p.is_dir()), None)
    name, email = Repository(here).author() if here else (RUNNER, RUNNERS_ADDRESS)
    names = ("job_name", "job_id", "run_id", "item_key", "model")
    message = commit_message(
        **{name: getattr(run, name) for name in names},
        outcome=f"{run.state} {run.reason}" if run.state in ENDED else "",
        message=run.commit_message,
    )
    return CommitText(name, email, run.ended_at or time.time(), message)

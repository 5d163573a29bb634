"""Recorded snapshots of runs, where they lie and how they differ."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from runner.core.run import ENDED
from runner.errors import UsageError
from runner.queries.files import Action, Differences, SnapshotPair
from runner.queries.runs import RunSnapshots, snapshots_of_run
from runner.settings import Settings
from runner.store.database import Database
from runner.tools.environment import tool_environment
from runner.workspace.changes import Change, CommitText, RecordedChanges, Whereabouts
from runner.workspace.repository import RUNNER, RUNNERS_ADDRESS, Repository, commit_message


def recorded_in(settings: Settings) -> RecordedChanges:
    """The snapshots that lie in the home."""
    return RecordedChanges(settings.home, tool_environment(os.environ, settings.secrets()))


def whereabouts(database: Database, run: RunSnapshots) -> Whereabouts:
    """Where what is recorded of a run lies; a fork's first trees are those of the run that it was
    forked from."""
    line = [run]
    while (origin := line[-1].fork_of) is not None:
        line.append(snapshots_of_run(database, origin))
    return Whereabouts(
        run_ids=tuple(each.run_id for each in line),
        source=run.source or "",
        store_id=next((each.store_id for each in line if each.store_id), None),
        hostname=next((each.hostname for each in line if each.hostname), None),
        remote=run.remote,
    )


def differences_in(settings: Settings, database: Database) -> Differences:
    """Tells what lies between trees that are recorded in the home; of others it says nothing."""
    recorded = recorded_in(settings)

    def differences(pairs: Sequence[SnapshotPair]) -> dict[SnapshotPair, list[tuple[Action, str]]]:
        by_run: dict[str, list[SnapshotPair]] = {}
        for pair in pairs:
            by_run.setdefault(pair.run_id, []).append(pair)
        found: dict[SnapshotPair, list[tuple[Action, str]]] = {}
        for run_id, of_run in by_run.items():
            where = whereabouts(database, snapshots_of_run(database, run_id))
            known = recorded.touched(where, [(each.before, each.after) for each in of_run])
            for each in of_run:
                if (changed := known.get((each.before, each.after))) is not None:
                    found[each] = [*changed]
        return found

    return differences


def refuse_unrecorded(run: RunSnapshots) -> None:
    """Raise ``UsageError`` if no snapshots are recorded of a run."""
    if not run.is_recorded:
        mode = f'works in mode "{run.mode}"' if run.mode else "has no workspace"
        raise UsageError(
            f"no files are recorded of {run.run_id}: its job {mode}, and only those with "
            f'mode = "git" or "copy" are'
        )
    if run.start_tree is None or run.tree is None:
        raise UsageError(f"no files are recorded of {run.run_id} yet: no worker has begun it")


def delivered_or_recorded(run: RunSnapshots) -> list[Change]:
    """Return what a run leaves: the change from the commit that it began at to the one that delivered it,
    then, in case that is gone, from its first snapshot to its last. Empty before it has begun."""
    found: list[Change] = []
    if run.start_commit is not None and run.commit is not None:
        found.append((run.start_commit, run.commit))
    if run.start_tree is not None and run.tree is not None:
        found.append((run.start_tree, run.tree))
    return found


def commit_text(settings: Settings, database: Database, run: RunSnapshots) -> CommitText:
    """Return what the commit of a run says: the one that delivered it, or as it would be now."""
    if run.commit is not None:
        found = recorded_in(settings).commit(whereabouts(database, run), run.commit)
        if found is not None:
            return found
    here = next((p for p in map(Path, filter(None, (run.path, run.source))) if p.is_dir()), None)
    name, email = Repository(here).author() if here else (RUNNER, RUNNERS_ADDRESS)
    message = commit_message(
        job_name=run.job_name,
        job_id=run.job_id,
        run_id=run.run_id,
        item_key=run.item_key,
        model=run.model,
        outcome=f"{run.state} {run.reason}" if run.state in ENDED else "",
        message=run.commit_message,
    )
    return CommitText(name, email, run.ended_at or time.time(), message)

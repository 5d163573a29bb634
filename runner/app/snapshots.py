"""Recorded snapshots of runs, where they lie and how they differ."""

from __future__ import annotations

import os
from collections.abc import Sequence

from runner.queries.files import Action, Differences, RunSnapshots, SnapshotPair, snapshots_of_run
from runner.settings import Settings
from runner.store.database import Database
from runner.tools.environment import tool_environment
from runner.workspace.changes import RecordedChanges, Whereabouts


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

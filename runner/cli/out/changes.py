"""What runs have changed, found by what is stored of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from runner.core.run import ENDED
from runner.errors import UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.queries.files import RunSnapshots
    from runner.store.connection.database import Database
    from runner.workspace.changes import Change, CommitText, Recorded, Whereabouts


def recorded_in(settings: Settings) -> Recorded:
    """See ``runner.app.snapshots``."""
    from runner.app import snapshots

    return snapshots.recorded_in(settings)


def whereabouts(database: Database, run: RunSnapshots) -> Whereabouts:
    """See ``runner.app.snapshots``."""
    from runner.app import snapshots

    return snapshots.whereabouts(database, run)


def refuse_unrecorded(run: RunSnapshots) -> None:
    """Refuse to say what a run changed of which nothing is recorded. Raises ``UsageError``."""
    if not run.is_recorded:
        mode = f'works in mode "{run.mode}"' if run.mode else "has no workspace"
        raise UsageError(
            f"no files are recorded of {run.run_id}: its job {mode}, and only those with "
            f'mode = "git" or "copy" are'
        )
    if run.start_tree is None or run.tree is None:
        raise UsageError(f"no files are recorded of {run.run_id} yet: no worker has begun it")


def delivered_or_recorded(run: RunSnapshots) -> list[Change]:
    """What a run leaves: from the commit that it began at to the one that it was delivered in; where
    that cannot be had, between its first and its last tree. Nothing for a run that has not begun."""
    found: list[Change] = []
    if run.start_commit is not None and run.commit is not None:
        found.append((run.start_commit, run.commit))
    if run.start_tree is not None and run.tree is not None:
        found.append((run.start_tree, run.tree))
    return found


def commit_text(settings: Settings, database: Database, run: RunSnapshots) -> CommitText:
    """What the commit of a run says: the one that it was delivered in, or as it would be now."""
    from runner.workspace.changes import CommitText
    from runner.workspace.delivery import commit_message
    from runner.workspace.repository import RUNNER, RUNNERS_ADDRESS, Repository

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

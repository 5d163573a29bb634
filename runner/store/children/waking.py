"""Waking runs when their sub-agents have ended, and ending the sub-agents of runs that have.

A child does not touch its parent's row while it holds its own: runs are locked in the order of their
ids. So a parent is woken after the child's end is stored. Should nobody come to that, every worker's
dispatcher looks for such parents.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Row, select

from runner.core.author import RUNNERS_NAME, Author
from runner.core.journal.events import signed_event
from runner.core.run import ENDED, Lease
from runner.errors import LeaseLost
from runner.store.children.ready import IS_ORPHAN, IS_READY, is_unended
from runner.store.conditions import in_tree
from runner.store.connection.database import Database
from runner.store.steer.control import cancel_locked, locked_runs, store_change
from runner.store.tables import runs

_MOST_AT_ONCE = 200
_PARENT_ENDED = Author(RUNNERS_NAME, "its parent has ended")
_PARENT_ENDS = Author(RUNNERS_NAME, "its parent is about to end")

_ORPHANS = (
    select(runs.c.id, runs.c.parent_run, runs.c.job_id)
    .where(IS_ORPHAN)
    .order_by(runs.c.job_id, runs.c.id)
    .limit(_MOST_AT_ONCE)
)
_READY = select(runs.c.id).where(IS_READY).order_by(runs.c.id).limit(_MOST_AT_ONCE)

_RESUMED = signed_event(
    "resumed",
    Author(RUNNERS_NAME),
    {"reason": "children"},
    old={"state": "waiting", "reason": "children"},
    new={"state": "queued", "reason": ""},
)


def wake(database: Database, run_id: str, now: float) -> bool:
    """Queue a run again that waits for its sub-agents, if it has something to do by now.

    Args:
        now: seconds since the epoch.

    Returns:
        Whether it did.
    """

    def work(connection: Connection) -> bool:
        # What is looked at has to be newer than the lock: the run may have begun to wait before it.
        locked = locked_runs(connection, [run_id])
        ready = select(runs.c.id).where(runs.c.id == run_id, IS_READY)
        if not locked or connection.execute(ready).first() is None:
            return False
        goes_on = {"state": "queued", "reason": "", "detail": "", "due_at": now, "rung_at": None}
        store_change(connection, locked[0], now, [_RESUMED], **goes_on)
        return True

    return database.write(work)


def attend(database: Database, now: float) -> list[str]:
    """See to sub-agents whose parents have ended, and to parents whose sub-agents have.

    Args:
        now: seconds since the epoch.

    Returns:
        The ids of the runs that are queued again.
    """
    # Those of one job at a time: nobody has the purses of two jobs in the order of their runs.
    for _, orphans in groupby(database.find(_ORPHANS, {}), attrgetter("job_id")):
        database.write(partial(_cancel, orphans=list(orphans), now=now))
    return [row.id for row in database.find(_READY, {}) if wake(database, row.id, now)]


def end_children(database: Database, lease: Lease, now: float) -> None:
    """Cancel all below a run that has not ended: the run is about to end itself.

    Args:
        lease: the run's. now: seconds since the epoch.

    Raises:
        LeaseLost: its attempt no longer holds the run; nothing is cancelled.
    """
    below = select(runs.c.id).where(
        in_tree(lease.run_id), runs.c.id != lease.run_id, is_unended(runs)
    )

    def work(connection: Connection) -> bool:
        held = locked_runs(connection, [lease.run_id])
        if not any(run.state == "running" and run.attempt == lease.attempt for run in held):
            raise LeaseLost(f"attempt {lease.attempt} no longer holds {lease.run_id}")
        found = locked_runs(connection, connection.execute(below).scalars().all())
        for run in found:
            cancel_locked(connection, run, now, _PARENT_ENDS)
        return bool(found)

    # Who was not locked yet may have started another.
    while database.write(work):
        pass


def _cancel(connection: Connection, orphans: Sequence[Row[Any]], now: float) -> None:
    """Cancel those whose parent has still ended: it may have been taken up again since they were found,
    and is locked with them so that it is not now."""
    family = {id_ for row in orphans for id_ in (row.id, row.parent_run)}
    locked = {run.id: run for run in locked_runs(connection, sorted(family))}
    for row in orphans:
        if locked[row.parent_run].state in ENDED:
            cancel_locked(connection, locked[row.id], now, _PARENT_ENDED)

"""Which runs are of one tree, and what the tool calls of each are called in it."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from runner.core.agents.agent import lineage
from runner.core.agents.place import call_label
from runner.store.connection.database import Database
from runner.store.tables import runs, tool_calls

_BATCH = 200

IS_OF_ITEM = runs.c.parent_run.is_(None)
ROOT: ColumnElement[str] = func.coalesce(runs.c.root_run, runs.c.id)

Call = tuple[str, int, int]  # its run, its turn, its place there from 0


def within(run_id: str) -> ColumnElement[bool]:
    """Whether one of ``runs`` is this one or below it."""
    root = lineage(run_id)[0]
    if run_id == root:
        return or_(runs.c.id == run_id, runs.c.root_run == run_id)
    below = runs.c.id.startswith(f"{run_id}.", autoescape=True)
    return or_(runs.c.id == run_id, and_(runs.c.root_run == root, below))


def ids_below(database: Database, run_id: str) -> list[str]:
    """The runs below one."""
    query = select(runs.c.id).where(within(run_id), runs.c.id != run_id)
    return list(database.read(lambda connection: connection.execute(query).scalars().all()))


def call_labels(connection: Connection, run_ids: Collection[str]) -> dict[Call, str]:
    """What the tool calls of these runs are called: ``3.2`` is the second call of the third child.
    Calls count from a run's first, in a fork with those that it was copied with."""
    found: dict[Call, str] = {}
    ids = sorted(set(run_ids))
    for start in range(0, len(ids), _BATCH):
        query = (
            select(tool_calls.c.run_id, tool_calls.c.turn, tool_calls.c.position)
            .where(tool_calls.c.run_id.in_(ids[start : start + _BATCH]))
            .order_by(tool_calls.c.run_id, tool_calls.c.message, tool_calls.c.position)
        )
        run_id, number = "", 0
        for call in connection.execute(query):
            number = number + 1 if call.run_id == run_id else 1
            run_id = call.run_id
            found[run_id, call.turn, call.position] = call_label(run_id, number)
    return found

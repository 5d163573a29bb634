"""Of which types of sub-agents a run and those that it works for are."""

from __future__ import annotations

from sqlalchemy import Connection, select

from runner.core.agents.agent import lineage
from runner.store.tables import runs


def agent_types(connection: Connection, run_id: str) -> tuple[str, ...]:
    """The names of the types from the child of an item's run down to the run itself; empty for the run
    of an item. They never change."""
    ids = lineage(run_id)[1:]
    if not ids:
        return ()
    query = select(runs.c.id, runs.c.agent_type).where(runs.c.id.in_(ids))
    found = {row.id: row.agent_type for row in connection.execute(query)}
    return tuple(found[each] for each in ids)

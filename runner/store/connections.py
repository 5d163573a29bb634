"""Store connections of calls that were cut, and have no result to be stored with."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection as DatabaseConnection
from sqlalchemy import select

from runner.core.events import CONNECTION, connection_events
from runner.core.hosts import Connection
from runner.store.changes import locked_runs, store_change
from runner.store.database import Database
from runner.store.ids import parse_call_id
from runner.store.tables import events, tool_calls


def store_connections(
    database: Database, call_id: str, made: Iterable[Connection], now: float
) -> bool:
    """Store the connections of a call that its run has no events of. Returns False, and stores nothing,
    while the run is being worked on: its result may come."""
    parsed = parse_call_id(call_id)
    if parsed is None:
        return True
    run_id, turn, position = parsed

    def work(connection: DatabaseConnection) -> bool:
        for run in locked_runs(connection, [run_id]):
            if run.state == "running":
                return False
            of_run = select(events.c.data).where(
                events.c.run_id == run_id, events.c.type == CONNECTION
            )
            stored = [data for (data,) in connection.execute(of_run) if isinstance(data, dict)]
            known = {data.get("at") for data in stored}
            about = {"turn": turn, "call_index": position}
            call = select(tool_calls.c.tool_use_id, tool_calls.c.name).where(
                *(tool_calls.c.run_id == run_id, tool_calls.c.turn == turn),
                tool_calls.c.position == position,
            )
            about |= next((row._asdict() for row in connection.execute(call)), {})
            new = [each for each in made if each.at not in known]
            if new:
                store_change(connection, run, now, list(connection_events(about, new)))
        return True

    return database.write(work)

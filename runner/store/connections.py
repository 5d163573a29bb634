"""Store connections of calls, verify commands and hooks that were cut, and have no result to be stored
with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection as DatabaseConnection
from sqlalchemy import select

from runner.core.events import CONNECTION, connection_events
from runner.core.hosts import Connection
from runner.store.changes import locked_runs, store_change
from runner.store.database import Database
from runner.store.tables import events


def store_connections(
    database: Database, run_id: str, about: dict[str, Any], made: Iterable[Connection], now: float
) -> bool:
    """Store the connections that a run has no events of; ``about`` is who made them. Returns False, and
    stores nothing, while the run is being worked on: the result may come."""

    def work(connection: DatabaseConnection) -> bool:
        for run in locked_runs(connection, [run_id]):
            if run.state == "running":
                return False
            of_run = select(events.c.data).where(
                events.c.run_id == run_id, events.c.type == CONNECTION
            )
            stored = [data for (data,) in connection.execute(of_run) if isinstance(data, dict)]
            known = {data.get("at") for data in stored}
            new = [each for each in made if each.at not in known]
            if new:
                store_change(connection, run, now, list(connection_events(about, new)))
        return True

    return database.write(work)

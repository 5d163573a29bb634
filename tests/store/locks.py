"""Who waits for whom on Postgres."""

from __future__ import annotations

from sqlalchemy import text

from runner.store.database import Database


def waiting_for_locks(database: Database) -> int:
    """How many transactions of the database wait for a lock."""
    query = text(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    return int(database.read(lambda connection: connection.execute(query).scalar_one()))

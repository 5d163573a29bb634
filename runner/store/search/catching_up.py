"""Which index a database has."""

from __future__ import annotations

from sqlalchemy import Connection

from runner.store.database import Database
from runner.store.search.index import Progress, Search, Tell


def nobody(_line: str) -> None:
    """Tells nobody."""


def nothing(_done: int, _all: int) -> None:
    """Shows no progress."""


def searcher(database: Database, tell: Tell = nobody) -> Search:
    """The index of a database.

    Args:
        tell: is told in a line when it has to be made anew, or a text cannot be read.
    """
    if database.dialect == "sqlite":
        from runner.store.search.sqlite.catching_up import SqliteSearch

        return SqliteSearch(database, tell)
    from runner.store.search.postgres.catching_up import PostgresSearch

    return PostgresSearch(database, tell)


def look_again(connection: Connection, run_id: str) -> None:
    """Have all of a run looked at again, in the transaction that adds to what was looked at: where the
    index would not notice."""
    if connection.dialect.name == "postgresql":
        from runner.store.search.postgres.forgetting import forget

        forget(connection, run_id)


__all__ = ["Progress", "Search", "Tell", "look_again", "nobody", "nothing", "searcher"]

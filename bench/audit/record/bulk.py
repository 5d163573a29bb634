"""Rows straight into the tables, by the thousands: nobody else may use the database meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Protocol

import psycopg
from sqlalchemy import JSON, Boolean, Column, Integer, Table, make_url

from runner.store.database import to_json
from runner.store.tables import metadata

_ROWS_A_BATCH = 50_000


class Sink(Protocol):
    def write(self, table: str, columns: Sequence[str], rows: list[tuple[Any, ...]]) -> None: ...


class Bulk:
    """Collects rows by table; what a row does not say is as its column's default says."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._tables = {table.name: _Rows(table) for table in metadata.sorted_tables}
        self._count = 0

    def add(self, table: str, row: Mapping[str, Any]) -> None:
        """Store a row, sooner or later."""
        self._tables[table].add(row)
        self._count += 1

    def flush_when_full(self) -> None:
        """Write what there is, if it is much. Every row must be there that rows refer to."""
        if self._count >= _ROWS_A_BATCH:
            self.flush()

    def flush(self) -> None:
        """Write what there is."""
        self._count = 0
        for name, rows in self._tables.items():
            taken = rows.take()
            if taken:
                self._sink.write(name, rows.names, taken)


class _Rows:
    def __init__(self, table: Table) -> None:
        self.names = [column.name for column in table.columns]
        self._defaults = [(column.name, _default(column)) for column in table.columns]
        self._json = [
            at for at, column in enumerate(table.columns) if isinstance(column.type, JSON)
        ]
        self._rows: list[tuple[Any, ...]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        values = [row.get(name, default) for name, default in self._defaults]
        for at in self._json:
            if values[at] is not None:
                values[at] = to_json(values[at])
        self._rows.append(tuple(values))

    def take(self) -> list[tuple[Any, ...]]:
        taken, self._rows = self._rows, []
        return taken


def _default(column: Column[Any]) -> Any:
    if column.server_default is None:
        return None
    text = str(column.server_default.arg)  # type: ignore[attr-defined]
    if isinstance(column.type, Boolean):
        return text == "1"
    return int(text) if isinstance(column.type, Integer) else text


@contextmanager
def opened(url: str) -> Iterator[Bulk]:
    """Writes to the database at ``url``, which is up to date. Flushes at the end."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        assert parsed.database is not None
        with closing(sqlite3.connect(parsed.database, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("PRAGMA cache_size=-200000")
            bulk = Bulk(_Sqlite(connection))
            yield bulk
            bulk.flush()
            connection.execute("ANALYZE")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return
    plain = parsed.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as postgres:
        bulk = Bulk(_Postgres(postgres))
        yield bulk
        bulk.flush()
        postgres.execute("ANALYZE")
        postgres.execute("CHECKPOINT")


class _Sqlite:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def write(self, table: str, columns: Sequence[str], rows: list[tuple[Any, ...]]) -> None:
        marks = ", ".join("?" * len(columns))
        self._connection.execute("BEGIN")
        self._connection.executemany(
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows
        )
        self._connection.execute("COMMIT")


class _Postgres:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def write(self, table: str, columns: Sequence[str], rows: list[tuple[Any, ...]]) -> None:
        copied = psycopg.sql.SQL("COPY {} ({}) FROM STDIN").format(
            psycopg.sql.Identifier(table),
            psycopg.sql.SQL(", ").join(map(psycopg.sql.Identifier, columns)),
        )
        with self._connection.cursor() as cursor, cursor.copy(copied) as copy:
            for row in rows:
                copy.write_row(row)

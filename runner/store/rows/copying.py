"""Rows of a run, copied for another."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, insert, literal, select


def copy_rows(
    connection: Connection,
    table: Table,
    run_id: str,
    copy_id: str,
    *conditions: ColumnElement[bool],
    **changes: Any,
) -> None:
    """Copy the rows of a run that meet the conditions, in the database itself; ``changes`` are the
    columns that differ in the copies."""
    given = {"run_id": copy_id, **changes}
    columns = [
        literal(given[column.name], column.type) if column.name in given else column
        for column in table.c
    ]
    query = select(*columns).where(table.c.run_id == run_id, *conditions)
    connection.execute(insert(table).from_select(list(table.c.keys()), query))

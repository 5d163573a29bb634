"""Taking a job or a run out of the database, row by row, in one view of the data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, literal, or_, select, true, tuple_

from runner.core.agents.agent import lineage
from runner.core.agents.place import tree_order
from runner.errors import NotFoundError
from runner.exchange.lines import Header, Writing, encoded_row
from runner.store.conditions import in_tree
from runner.store.connection.database import Database
from runner.store.exchange.shapes import IMPORTED, JOB_TABLES, RUN_TABLES, SHAPES
from runner.store.tables import job_events, permission_rules, queued_messages, runs

_ROWS_AT_ONCE = 100

FileRow = dict[str, Any]


def export(
    database: Database,
    *,
    job_id: str | None = None,
    run_id: str | None = None,
    write: Callable[[bytes], object],
) -> list[str]:
    """Write a job with all of its runs, or one run with those that it came from, as Runner's own
    export: the same rows give the same bytes. A run comes with all that it has started, a sub-agent
    with those that it works for, too.

    Args:
        job_id, run_id: the whole id of one of them.
        write: takes the bytes, in order.

    Returns:
        The runs that were written.

    Raises:
        NotFoundError: there is no such job or run. UnreachableError: the database does not answer.
    """

    def work(connection: Connection) -> list[str]:
        of_job, run_ids = _meant(connection, job_id, run_id)
        writing = Writing(write, Header(of_job, run_id))
        for table, row in job_rows(connection, of_job):
            writing.row(table, row)
        for each in run_ids:
            for table, row in run_rows(connection, each):
                writing.row(table, row)
        writing.end()
        return run_ids

    return database.read(work)


def job_rows(connection: Connection, job_id: str) -> Iterator[tuple[str, FileRow]]:
    """The rows of a job as a whole, as a file has them, each with its table."""
    for table in JOB_TABLES:
        key = table.c.id if table.name == "jobs" else table.c.job_id
        conditions = [key == job_id]
        if table is permission_rules:
            conditions.append(permission_rules.c.run_id.is_(None))
        if table is job_events:
            conditions.append(job_events.c.type != IMPORTED)
        yield from _rows(connection, table, *conditions)


def run_rows(connection: Connection, run_id: str) -> Iterator[tuple[str, FileRow]]:
    """The rows of a run, as a file has them, each with its table."""
    for table in RUN_TABLES:
        key = table.c.id if table is runs else table.c.run_id
        yield from _rows(connection, table, key == run_id)


def digest_of(rows: Iterator[tuple[str, FileRow]]) -> str:
    """The SHA-256 of rows as lines of a file."""
    digest = hashlib.sha256()
    for table, row in rows:
        digest.update(encoded_row(table, row))
    return digest.hexdigest()


def _rows(
    connection: Connection, table: Table, *conditions: ColumnElement[bool]
) -> Iterator[tuple[str, FileRow]]:
    """In pages, as there may be many rows, and large ones."""
    shape = SHAPES[table.name]
    order = [table.c[name] for name in shape.key] or [queued_messages.c.id]
    columns = [table.c[column.name] for column in shape.columns]
    query = select(*columns, *(column.label(f"order_{column.name}") for column in order))
    query = query.where(*conditions).order_by(*order).limit(_ROWS_AT_ONCE)
    after: ColumnElement[bool] = true()
    while True:
        page = connection.execute(query.where(after)).mappings().all()
        for row in page:
            yield table.name, shape.to_file(row)  # type: ignore[arg-type]  # its keys are names
        if len(page) < _ROWS_AT_ONCE:
            return
        last = [row[f"order_{column.name}"] for column in order]
        after = tuple_(*order) > tuple_(*map(literal, last))


def _meant(connection: Connection, job_id: str | None, run_id: str | None) -> tuple[str, list[str]]:
    """The job, and the runs in the order of their ids: an older one comes before what came of it, and
    each before what it has started."""
    if run_id is None:
        query = select(runs.c.id).where(runs.c.job_id == job_id)
        return str(job_id), sorted(connection.execute(query).scalars(), key=tree_order)
    found: dict[str, str] = {}
    wanted = [run_id]
    while wanted:
        above = {each for one in wanted for each in lineage(one)[:-1]}
        query = select(runs.c.id, runs.c.job_id, runs.c.fresh_of, runs.c.fork_of).where(
            or_(*map(in_tree, wanted), *(runs.c.id == each for each in above))
        )
        rows = connection.execute(query).all()
        found |= {row.id: row.job_id for row in rows}
        origins = {each for row in rows for each in (row.fresh_of, row.fork_of)}
        wanted = [each for each in origins if each is not None and each not in found]
    if run_id not in found:
        raise NotFoundError(f"no run is named {run_id}: look with `runner list`")
    return found[run_id], sorted(found, key=tree_order)

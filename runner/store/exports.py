"""Taking a job or a run out of the database, row by row, in one view of the data.

The tables of an export, in their order, as files have them.

A run with all that other formats are made of, read in one view of the data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Float,
    Integer,
    LargeBinary,
    Table,
    Text,
    literal,
    or_,
    select,
    true,
    tuple_,
)
from sqlalchemy import Column as SqlColumn

from runner.core.agents import lineage, tree_order
from runner.core.prices import PriceList
from runner.errors import NotFoundError
from runner.exchange.checks import (
    NO_DEFAULT,
    Column,
    Kind,
    Shape,
)
from runner.exchange.lines import Header, Writing, encoded_row
from runner.exchange.recorded import Recorded
from runner.store.conditions import in_tree
from runner.store.database import Database
from runner.store.jobs import JobCache
from runner.store.tables import (
    approvals,
    blocks,
    compactions,
    events,
    hook_runs,
    job_events,
    jobs,
    model_calls,
    permission_rules,
    purses,
    queued_messages,
    run_instructions,
    run_items,
    run_workspaces,
    runs,
    tool_calls,
    tool_outputs,
    verifications,
)

# What is of the job as a whole; of its rules those that hold for all of its runs.
JOB_TABLES = (jobs, purses, permission_rules, job_events)
# What is of one run; of the rules those that are remembered for it alone. Calls come after the blocks
# that ask for them, and what belongs to calls after those.
RUN_TABLES = (
    runs,
    run_items,
    permission_rules,
    run_workspaces,
    blocks,
    tool_calls,
    tool_outputs,
    approvals,
    model_calls,
    compactions,
    verifications,
    hook_runs,
    run_instructions,
    events,
    queued_messages,
)
# A database gives its own.
_NUMBERED_HERE = frozenset({queued_messages.c.id})
# What each database says of a job for itself: that it was brought in.
IMPORTED = "imported"

# Tokens and sizes are summed over many rows, and what a job spent is in billionths of a USD: no sum of
# what someone writes into a file is to leave 64 bits.
_MOST_TOKENS = 2**50
_MOST = {purses.name: 2**60}
# The others hold no numbers below nothing: an exit code is negative for a signal.
_LEAST = {hook_runs.c.exit_code: -(2**31)}

_KINDS: tuple[tuple[type[Any], Kind], ...] = (
    (BigInteger, "long"),
    (Integer, "integer"),
    (Float, "real"),
    (Boolean, "boolean"),
    (JSON, "json"),
    (LargeBinary, "bytes"),
    (Text, "text"),
)


def _shape(table: Table) -> Shape:
    columns = tuple(_column(column) for column in table.c if column not in _NUMBERED_HERE)
    numbered = any(column in _NUMBERED_HERE for column in table.c)
    key = () if numbered else tuple(column.name for column in table.primary_key)
    return Shape(table.name, columns, key)


def _column(column: SqlColumn[Any]) -> Column:
    kind = next(kind for known, kind in _KINDS if isinstance(column.type, known))
    nullable = bool(column.nullable)
    most = 2**31 - 1 if kind == "integer" else _MOST.get(column.table.name, _MOST_TOKENS)
    return Column(column.name, kind, nullable, _default(column, kind), _LEAST.get(column, 0), most)


def _default(column: SqlColumn[Any], kind: Kind) -> Any:
    """What a row has that an older Runner wrote, which knew no such column."""
    if column.server_default is None:
        return None if column.nullable else NO_DEFAULT
    text = str(column.server_default.arg)  # type: ignore[attr-defined]  # all are plain values
    match kind:
        case "integer" | "long":
            return int(text)
        case "boolean":
            return text != "0"
        case _:
            return text


SHAPES: dict[str, Shape] = {
    table.name: _shape(table) for table in dict.fromkeys((*JOB_TABLES, *RUN_TABLES))
}
TABLES: dict[str, Table] = {table.name: table for table in (*JOB_TABLES, *RUN_TABLES)}


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


def load_recorded(database: Database, run_id: str, prices: PriceList) -> Recorded:
    """A run as it is recorded.

    Args:
        prices: what its model calls are priced by.

    Raises:
        NotFoundError: there is no such run. UnreachableError: the database does not answer.
    """

    def work(connection: Connection) -> Recorded:
        run = _one(connection, runs, runs.c.id == run_id)
        if run is None:
            raise NotFoundError(f"no run is named {run_id}: look with `runner list`")
        job = _one(connection, jobs, jobs.c.id == run["job_id"])
        item = _one(connection, run_items, run_items.c.run_id == run_id)
        assert job is not None
        return Recorded(
            run=run,
            item=None if item is None else item["item"],
            job_name=job["name"],
            spec=JobCache().on(connection).spec_of_run(run["job_id"], run_id),
            blocks=_all(connection, blocks, run_id),
            calls={
                (row["message"], row["position"]): row
                for row in _all(connection, tool_calls, run_id)
            },
            model_calls=_all(connection, model_calls, run_id),
            compactions=_all(connection, compactions, run_id),
            verifications=_all(connection, verifications, run_id),
            prices=prices,
            children=_children(connection, run_id),
        )

    return database.read(work)


def run_ids(database: Database, job_id: str) -> Sequence[tuple[str, str]]:
    """The ids of a job's runs with their keys, in order, each before those that it has started."""
    query = select(runs.c.id, runs.c.item_key).where(runs.c.job_id == job_id)
    rows = database.read(lambda connection: connection.execute(query).all())
    return sorted(((row.id, row.item_key) for row in rows), key=lambda run: tree_order(run[0]))


def _children(connection: Connection, run_id: str) -> dict[tuple[int, int] | None, tuple[str, ...]]:
    columns = (runs.c.id, runs.c.parent_message, runs.c.parent_position)
    query = select(*columns).where(runs.c.parent_run == run_id, in_tree(run_id))
    found: dict[tuple[int, int] | None, tuple[str, ...]] = {}
    for row in sorted(connection.execute(query).all(), key=lambda row: tree_order(row.id)):
        at = None if row.parent_position is None else (row.parent_message, row.parent_position)
        found[at] = (*found.get(at, ()), row.id)
    return found


def _one(connection: Connection, table: Table, condition: Any) -> dict[str, Any] | None:
    row = connection.execute(select(table).where(condition)).mappings().one_or_none()
    return None if row is None else dict(row)


def _all(connection: Connection, table: Table, run_id: str) -> tuple[dict[str, Any], ...]:
    columns = [column for column in table.c if column.name != "compressed"]
    query = select(*columns).where(table.c.run_id == run_id).order_by(*table.primary_key)
    return tuple(map(dict, connection.execute(query).mappings()))

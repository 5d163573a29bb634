"""Read jobs and runs for export in one transaction: a run as one value for other formats, and row by
row for Runner's own. That is a file of lines, each a JSON object:

    {"runner_export": 2, "job": "job_…", "run": null}     the header: a whole job, or one run of it
    {"table": "jobs", "row": {…}}                         the rows of the job, then of each run
    {"end": {"rows": 2731, "sha256": "…"}}                the digest of all bytes before this line

The same rows give the same bytes. A file without its last line was cut off.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from sqlalchemy import (
    JSON,
    ColumnElement,
    Connection,
    Row,
    Table,
    and_,
    literal,
    or_,
    select,
    true,
    tuple_,
)

from runner.core.agents import lineage, tree_order
from runner.core.media import with_bytes
from runner.core.text import json_line
from runner.errors import NotFoundError
from runner.exchange.recorded import Recorded
from runner.store.blobs import blob_of
from runner.store.conditions import in_tree
from runner.store.database import Database, reads
from runner.store.run_state import with_tools_of
from runner.store.specs import JobCache
from runner.store.tables import (
    job_events,
    jobs,
    metadata,
    permission_rules,
    runs,
    session_lines,
    sessions,
)

VERSION = 2


class TableFormat:
    """Writes the rows of a table to a file."""

    def __init__(self, table: Table) -> None:
        self.table = table
        # A database numbers some rows itself; those keep the order that they have in the file.
        self.columns = [column for column in table.c if column.autoincrement is not True]
        is_numbered = len(self.columns) < len(table.c)
        # The columns that order the rows; empty for rows that the database numbers.
        self.key = () if is_numbered else tuple(column.name for column in table.primary_key)
        self._json = {column.name for column in self.columns if isinstance(column.type, JSON)}

    def line(self, row: Mapping[str, Any]) -> bytes:
        """Return a row of the database as a line."""
        values = {column.name: row[column.name] for column in self.columns}
        for name, value in values.items():
            if isinstance(value, bytes):
                values[name] = base64.b64encode(value).decode("ascii")
            elif type(value) in (int, float) and name in self._json:
                values[name] = _as_sqlite_has_it(value)
        return json_line({"table": self.table.name, "row": values})


def _as_sqlite_has_it(number: float) -> float:
    """Return a JSON number that stands alone as SQLite has it, which makes it a 64-bit integer if it
    can, else a double. So another database exports the same bytes."""
    if isinstance(number, int):
        is_long = -(2**63) <= number < 2**63 or abs(number) > sys.float_info.max
        return number if is_long else int(float(number))
    return int(number) if number.is_integer() else number


# The tables of a job as a whole, in file order; only rules that hold for all runs.
JOB_TABLES = (jobs, metadata.tables["purses"], permission_rules, job_events)
# The tables of a run; only rules that hold for it alone. Tool calls follow the blocks that ask for
# them and precede what belongs to them.
_OF_RUN = (
    *("runs", "run_items", "permission_rules", "run_workspaces", "blocks", "tool_calls"),
    *("tool_outputs", "approvals", "model_calls", "compactions", "verifications", "hook_runs"),
    *("run_instructions", "tool_lists", "sessions", "session_lines", "events", "queued_messages"),
)
RUN_TABLES = tuple(metadata.tables[name] for name in _OF_RUN)
FORMATS = {table.name: TableFormat(table) for table in (*JOB_TABLES, *RUN_TABLES)}
# The type of the event that a database adds to a job that it imports. It is not exported again.
IMPORTED = "imported"

ROWS_AT_ONCE = 100


@reads
def export(
    connection: Connection,
    *,
    job_id: str | None = None,
    run_id: str | None = None,
    write: Callable[[bytes], object],
) -> list[str]:
    """Write a job, or a run with its origins, sub-agents and parents, in Runner's format to
    ``write``: the same rows give the same bytes. Return the runs' ids. Raises ``NotFoundError`` and
    ``UnreachableError``."""
    of_job, run_ids = _selected(connection, job_id, run_id)
    header = json_line({"runner_export": VERSION, "job": of_job, "run": run_id})
    rows = chain.from_iterable(section_lines(connection, each) for each in (of_job, *run_ids))
    digest, count = hashlib.sha256(), -1
    for line in chain((header,), rows):
        digest.update(line)
        write(line)
        count += 1
    write(json_line({"end": {"rows": count, "sha256": digest.hexdigest()}}))
    return run_ids


def section_lines(connection: Connection, id_: str) -> Iterator[bytes]:
    """Yield the rows of a job as a whole, or of a run, as lines of a file."""
    is_job = id_.startswith("job_")
    for table in JOB_TABLES if is_job else RUN_TABLES:
        key = "id" if table in (jobs, runs) else "job_id" if is_job else "run_id"
        conditions = [table.c[key] == id_]
        if is_job and table is permission_rules:
            conditions.append(permission_rules.c.run_id.is_(None))
        if table is job_events:
            conditions.append(job_events.c.type != IMPORTED)
        yield from _lines(connection, table, *conditions)


def _lines(
    connection: Connection, table: Table, *conditions: ColumnElement[bool]
) -> Iterator[bytes]:
    """Read the rows of a table in pages: there may be many, and large ones."""
    order = list(table.primary_key)
    query = select(table).where(*conditions).order_by(*order).limit(ROWS_AT_ONCE)
    after: ColumnElement[bool] = true()
    while True:
        page = connection.execute(query.where(after)).mappings().all()
        rows = [dict(row) for row in page]
        if table.name == "blocks":
            _add_bytes(connection, rows, "name")
        yield from map(FORMATS[table.name].line, rows)
        if len(page) < ROWS_AT_ONCE:
            return
        after = tuple_(*order) > tuple_(*(literal(page[-1][column]) for column in order))


def _add_bytes(connection: Connection, rows: Sequence[dict[str, Any]], *names: str) -> None:
    """Put the bytes of media into the blocks of rows, and keep the fields ``names`` of their sources."""
    for row in rows:
        row["content"] = with_bytes(row["content"], partial(blob_of, connection), *names)


def _selected(
    connection: Connection, job_id: str | None, run_id: str | None
) -> tuple[str, list[str]]:
    """Return the job, and its runs by id: each after its sources, a sub-agent after its parents."""
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


@reads
def load_recorded(connection: Connection, run_id: str) -> Recorded:
    """Return a run with all that is recorded of it. Raises ``NotFoundError`` and ``UnreachableError``."""
    found = _rows(connection, runs, runs.c.id == run_id)
    if not found:
        raise NotFoundError(f"no run is named {run_id}: look with `runner list`")
    run = found[0]
    (job,) = _rows(connection, jobs, jobs.c.id == run["job_id"])
    names = ("run_items", "blocks", "tool_calls", "model_calls", "compactions", "verifications")
    tables = [metadata.tables[name] for name in names]
    items, blocks, calls, model_calls, compactions, verifications = (
        _rows(connection, table, table.c.run_id == run_id) for table in tables
    )
    _add_bytes(connection, blocks)
    children: dict[tuple[int, int] | None, tuple[str, ...]] = {}
    below = _rows(connection, runs, and_(runs.c.parent_run == run_id, in_tree(run_id)))
    for child in sorted(below, key=lambda row: tree_order(row["id"])):
        at = (child["parent_message"], child["parent_position"])
        place = None if at[1] is None else at
        children[place] = (*children.get(place, ()), child["id"])
    spec = with_tools_of(
        connection, run_id, JobCache().on(connection).spec_of_run(job["id"], run_id)
    )
    session = _session(connection, run_id)
    if session is not None and session.system:
        spec = replace(spec, system=session.system)
    return Recorded(
        run=run,
        item=items[0]["item"] if items else None,
        job_name=job["name"],
        spec=spec,
        blocks=blocks,
        calls={(row["message"], row["position"]): row for row in calls},
        model_calls=model_calls,
        compactions=compactions,
        verifications=verifications,
        children=children,
        lines=tuple(_own_lines(connection, session)),
    )


def lines_of_sessions(connection: Connection, run_ids: Sequence[str]) -> dict[str, list[bytes]]:
    """Return the lines of the files that imported sessions were read from, by the file's name."""
    query = select(session_lines).where(session_lines.c.run_id.in_(run_ids))
    found: dict[str, list[bytes]] = {}
    for row in connection.execute(query.order_by(session_lines.c.file, session_lines.c.part)):
        found.setdefault(row.file, []).extend(zlib.decompress(row.compressed).split(b"\n"))
    return found


def _session(connection: Connection, run_id: str) -> Row[Any] | None:
    return connection.execute(select(sessions).where(sessions.c.run_id == run_id)).one_or_none()


def _own_lines(connection: Connection, session: Row[Any] | None) -> Sequence[bytes]:
    """Return the lines of the file of an imported session or agent; none if they are in another file or
    were not kept."""
    if session is None:
        return ()
    query = select(sessions.c.run_id).where(sessions.c.session_id == session.session_id)
    files = lines_of_sessions(connection, list(connection.scalars(query)))
    name = "" if session.agent_id is None else f"agent-{session.agent_id}.jsonl"
    return files.get(name, ())


@reads
def load_since(connection: Connection, recorded: Recorded, message: int) -> Recorded:
    """Return a recorded run with its rows from a message on. Raises ``UnreachableError``."""

    def rows(name: str, column: str, first: int) -> tuple[dict[str, Any], ...]:
        table = metadata.tables[name]
        since = table.c[column] >= first
        return _rows(connection, table, and_(table.c.run_id == recorded.id, since))

    blocks = rows("blocks", "message", message)
    _add_bytes(connection, blocks)
    calls = rows("tool_calls", "message", message - 1)
    return replace(
        recorded,
        blocks=blocks,
        calls={(row["message"], row["position"]): row for row in calls},
        model_calls=rows("model_calls", "turn", blocks[0]["turn"] if blocks else 0),
        compactions=rows("compactions", "number", 0),
    )


def run_ids(database: Database, job_id: str) -> Sequence[tuple[str, str]]:
    """Return the ids of a job's runs with their item keys, in order, sub-agents below their run."""
    query = select(runs.c.id, runs.c.item_key).where(runs.c.job_id == job_id)
    found = ((row.id, row.item_key) for row in database.rows(query))
    return sorted(found, key=lambda run: tree_order(run[0]))


def _rows(
    connection: Connection, table: Table, condition: ColumnElement[bool]
) -> tuple[dict[str, Any], ...]:
    columns = [column for column in table.c if column.name != "compressed"]
    query = select(*columns).where(condition).order_by(*table.primary_key)
    return tuple(map(dict, connection.execute(query).mappings()))

"""The tables of an export, in their order, as files have them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, Float, Integer, LargeBinary, Table, Text
from sqlalchemy import Column as SqlColumn

from runner.exchange.shapes import NO_DEFAULT, Column, Kind, Shape
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

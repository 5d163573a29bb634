"""What hooks said, and what the workspaces of runs say to agents."""

from __future__ import annotations

from sqlalchemy import Boolean, CheckConstraint, Column, Float, ForeignKey, Integer, Table, Text

from runner.store.tables.metadata import metadata

# ``hook`` is its place in the job's ``hooks``, ``name`` its command or function in short; ``message``
# and ``position`` are of the call that it is about. ``output`` and ``errors`` are what it printed, as
# far as that is kept. ``tree_after`` is None where it changed nothing.
hook_runs = Table(
    "hook_runs",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("hook", Integer, nullable=False),
    Column("event", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("message", Integer),
    Column("position", Integer),
    Column("attempt", Integer, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("duration", Float),
    Column("outcome", Text),
    Column("exit_code", Integer),
    Column("decision", Text),
    Column("reason", Text, nullable=False, server_default=""),
    Column("context", Text, nullable=False, server_default=""),
    Column("stops", Boolean, nullable=False, server_default="0"),
    Column("output", Text, nullable=False, server_default=""),
    Column("errors", Text, nullable=False, server_default=""),
    Column("tree_before", Text),
    Column("tree_after", Text),
    CheckConstraint(
        "event IN ('RunStart', 'PreToolUse', 'PostToolUse', 'TurnEnd', 'RunEnd')", name="event"
    ),
    CheckConstraint("decision IN ('allow', 'ask', 'deny', 'block')", name="decision"),
)

# Files of instructions as the run has read them: ``sha256`` is of the file's bytes, ``size`` of ``text`` in
# bytes, which has no byte order mark, line feeds alone, and control characters as escapes.
run_instructions = Table(
    "run_instructions",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("path", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("size", Integer, nullable=False),
    Column("text", Text, nullable=False),
)

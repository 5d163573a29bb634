"""Runs, where they work, what is to be said to them, and who works them."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
)

from runner.core.run import STATES
from runner.store.connection.naming import where
from runner.store.tables.metadata import metadata

_STATE_LIST = ", ".join(f"'{state}'" for state in STATES)

# Times are seconds since the epoch. ``attempt`` is the fencing token. ``progress`` is
# ``core.journal.Progress`` less the counters that have columns of their own. ``model`` is called in
# place of the job's. ``start_tree`` is the workspace's before the run's first turn. Of a child:
# ``parent_message`` and ``parent_position`` are of the call that started it, ``root_run`` is the run of
# the item, and ``deadline`` in seconds after ``created_at``.
runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    Column("item_key", Text, nullable=False),
    Column("fresh_of", Text, ForeignKey("runs.id")),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False, server_default=""),
    Column("detail", Text, nullable=False, server_default=""),
    Column("created_at", Float, nullable=False),
    Column("started_at", Float),
    Column("ended_at", Float),
    Column("due_at", Float),
    Column("rung_at", Float),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("worker_id", Text),
    Column("last_worker_id", Text),
    Column("lost_leases", Integer, nullable=False, server_default="0"),
    Column("bugs", Integer, nullable=False, server_default="0"),
    Column("pause_requested", Boolean, nullable=False, server_default="0"),
    Column("max_turns", Integer, nullable=False),
    Column("token_ceiling", BigInteger, nullable=False),
    Column("workspace_path", Text),
    Column("workspace_id", Text),
    Column("revision", Integer, nullable=False, server_default="0"),
    Column("event_count", Integer, nullable=False, server_default="0"),
    Column("message_count", Integer, nullable=False, server_default="0"),
    Column("queued_count", Integer, nullable=False, server_default="0"),
    Column("turns", Integer, nullable=False, server_default="0"),
    Column("denials", Integer, nullable=False, server_default="0"),
    Column("input_tokens", BigInteger, nullable=False, server_default="0"),
    Column("cache_read_tokens", BigInteger, nullable=False, server_default="0"),
    Column("cache_creation_tokens", BigInteger, nullable=False, server_default="0"),
    Column("output_tokens", BigInteger, nullable=False, server_default="0"),
    Column("charged_tokens", BigInteger, nullable=False, server_default="0"),
    Column("progress", JSON, nullable=False),
    Column("answer_count", Integer, nullable=False, server_default="0"),
    Column("cost_ceiling_usd", Float),
    Column("working_time", Float),
    Column("compaction_count", Integer, nullable=False, server_default="0"),
    Column("model", Text),
    Column("fork_of", Text),
    Column("fork_turn", Integer),
    Column("start_tree", Text),
    Column("parent_run", Text),
    Column("parent_message", Integer),
    Column("parent_position", Integer),
    Column("root_run", Text),
    Column("depth", Integer, nullable=False, server_default="0"),
    Column("child_number", Integer),
    Column("agent_type", Text),
    Column("deadline", Float),
    CheckConstraint(f"state IN ({_STATE_LIST})", name="state"),
    CheckConstraint("(state = 'running') = (worker_id IS NOT NULL)", name="held"),
    CheckConstraint("(state = 'queued') = (due_at IS NOT NULL)", name="due"),
    Index(None, "job_id", "state"),
    Index(None, "state", "due_at"),
    Index(None, "worker_id"),
    Index(None, "root_run", **where("root_run IS NOT NULL")),
    # What workers look for in each pass: only among children, of which few have not ended.
    Index(None, "state", "parent_run", **where("parent_run IS NOT NULL")),
)

# Apart from its run, whose row is written anew at every step: an item can be large.
run_items = Table(
    "run_items",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    Column("item", JSON, nullable=False),
    Column("commit_message", Text),
)

# A run's own worktree or copy. ``store_id`` names the folder of snapshots that holds its trees,
# ``start_commit`` is what its branch began at, and ``commit_id`` the last one it was delivered in.
run_workspaces = Table(
    "run_workspaces",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    Column("store_id", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("branch", Text),
    Column("start_commit", Text),
    Column("commit_id", Text),
    Column("created_at", Float, nullable=False),
)

queued_messages = Table(
    "queued_messages",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("run_id", Text, ForeignKey("runs.id"), nullable=False),
    Column("text", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("delivered_message", Integer),
    Index(None, "run_id"),
)

# One row renews all of a worker's leases. ``host_id`` names the folder of locks that it shares with
# the other workers of its host.
workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("host_id", Text, nullable=False),
    Column("hostname", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("lease_expires_at", Float, nullable=False),
    Column("ended_at", Float),
    Index(None, "ended_at"),
)

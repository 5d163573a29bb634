"""The tables, as the newest migration leaves them.

Small tables that are read by run have no rowid on SQLite: their rows lie together in one tree, so a
turn writes one page a table and not two. ``blocks`` and ``tool_outputs`` can be large and keep theirs.

How what belongs to a table is called, and which of its rows an index has.

What the tables are registered in.

Jobs, what holds for all runs of one, and what models cost.

Runs, where they work, what is to be said to them, and who works them.

What happens in a run: its conversation, its calls, and its events.

What hooks said, and what the workspaces of runs say to agents.
"""

from __future__ import annotations

from typing import Any

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
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)

from runner.core.run import STATES

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


def where(condition: str) -> dict[str, Any]:
    """An index of only the rows that meet a condition, as both databases have them."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


metadata = MetaData(naming_convention=NAMES)


jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("key", Text, unique=True),
    Column("name", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("spec_text", Text, nullable=False),
    Column("spec_digest", Text, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("workspace_id", Text),
    Column("created_at", Float, nullable=False),
    Column("rules_snapshot", Integer, nullable=False, server_default="1"),
    Index(None, "rules_snapshot", **where("rules_snapshot > 1")),
)

# Of jobs with a budget only: what their runs may use together, have used and have reserved (costs in
# billionths of a USD). Apart from the job, whose row is large: this one is written in every turn.
purses = Table(
    "purses",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id"), primary_key=True),
    Column("budget_usd", Float),
    Column("budget_tokens", BigInteger),
    Column("spent_tokens", BigInteger, nullable=False, server_default="0"),
    Column("spent_cost", BigInteger, nullable=False, server_default="0"),
    Column("reserved_tokens", BigInteger, nullable=False, server_default="0"),
    Column("reserved_cost", BigInteger, nullable=False, server_default="0"),
)

# Snapshot N of a job's rules is what was added in it or before, and not revoked by then. Its newest
# is ``jobs.rules_snapshot``. ``author`` and ``revoked_by`` name people.
permission_rules = Table(
    "permission_rules",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("effect", Text, nullable=False),
    Column("rule", Text, nullable=False),
    Column("why", Text, nullable=False, server_default=""),
    Column("origin", Text, nullable=False, server_default="job"),
    Column("run_id", Text, ForeignKey("runs.id")),
    Column("author", Text, nullable=False, server_default=""),
    Column("created_at", Float),
    Column("added_in", Integer, nullable=False, server_default="1"),
    Column("revoked_in", Integer),
    Column("revoked_by", Text),
    Column("revoked_at", Float),
    CheckConstraint("effect IN ('allow', 'ask', 'deny')", name="effect"),
)

# What happened to a job as a whole, as ``events`` has what happened to each of its runs.
job_events = Table(
    "job_events",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("type", Text, nullable=False),
    Column("data", JSON, nullable=False),
    sqlite_with_rowid=False,
)

# USD for a million tokens, by the price list that the record was last asked with in SQL: of calls in
# fast mode or not, whose prompt has more than ``above`` tokens and not more than ``up_to``.
prices = Table(
    "prices",
    metadata,
    Column("model", Text, primary_key=True),
    Column("fast", Integer, primary_key=True),
    Column("above", BigInteger, primary_key=True),
    Column("up_to", BigInteger),
    Column("input", Float, nullable=False),
    Column("cache_write_5m", Float, nullable=False),
    Column("cache_write_1h", Float, nullable=False),
    Column("cache_read", Float, nullable=False),
    Column("output", Float, nullable=False),
    Column("us_inference", Float, nullable=False),
)


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


# A message is the blocks that share (run_id, message); its role is theirs.
blocks = Table(
    "blocks",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    Column("message", Integer, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("role", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("content", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
    CheckConstraint("role IN ('user', 'assistant')", name="role"),
)

# ``message`` is the reply that asked; the input is in its block, the result in the next message's.
# ``denial`` is why a call was denied that neither its decision nor the answer had denied: by where a
# path led when it ran. ``tree_before`` and ``tree_after`` are the workspace's, of calls that may write.
# ``updated_input`` is what a hook made of the input.
tool_calls = Table(
    "tool_calls",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    Column("message", Integer, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("turn", Integer, nullable=False),
    Column("tool_use_id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("decision", Text),
    Column("rule", Text),
    Column("started_attempt", Integer),
    Column("started_at", Float),
    Column("ended_at", Float),
    Column("duration", Float),
    Column("outcome", Text),
    Column("interrupted", Boolean, nullable=False, server_default="0"),
    Column("decision_snapshot", Integer),
    Column("rule_position", Integer),
    Column("matched", Text),
    Column("decision_reason", Text),
    Column("denial", Text),
    Column("tree_before", Text),
    Column("tree_after", Text),
    Column("asked_again", Boolean, nullable=False, server_default="0"),
    Column("updated_input", JSON(none_as_null=True)),
    sqlite_with_rowid=False,
)

# A question about a tool call, and its answer. ``setting`` is where the call would run, as it was
# when it was asked about, and ``checked_snapshot`` the newest rules that were tried on it.
# ``remembered`` is the position of the rule that the answer stored, or that answered; ``by_hook``: a
# hook wants it asked, so that no rule answers it.
approvals = Table(
    "approvals",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    Column("message", Integer, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    Column("id", Text, nullable=False, unique=True),
    Column("turn", Integer, nullable=False),
    Column("tool", Text, nullable=False),
    Column("input_digest", Text, nullable=False),
    Column("setting", JSON, nullable=False),
    Column("checked_snapshot", Integer, nullable=False),
    Column("summary", Text, nullable=False),
    Column("group_key", Text, nullable=False),
    Column("suggested_rule", Text, nullable=False),
    Column("asked_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("notified_at", Float),
    Column("answer", Text),
    Column("answered_at", Float),
    Column("answered_by", Text),
    Column("answered_via", Text),
    Column("reason", Text, nullable=False, server_default=""),
    Column("edited_input", JSON(none_as_null=True)),
    Column("remembered", Integer),
    Column("by_hook", Boolean, nullable=False, server_default="0"),
    CheckConstraint("answer IN ('approved', 'denied', 'expired', 'cancelled')", name="answer"),
    CheckConstraint("answered_via IN ('person', 'rule', 'timeout', 'cancel', 'end')", name="via"),
    CheckConstraint("(answer IS NULL) = (answered_at IS NULL)", name="answered"),
    # What workers look for in each pass: only in what is open, of which there is little.
    Index(None, "job_id", "checked_snapshot", **where("answer IS NULL")),
    Index(None, "expires_at", **where("answer IS NULL")),
    Index(None, "asked_at", **where("answer IS NULL AND notified_at IS NULL")),
)

tool_outputs = Table(
    "tool_outputs",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    Column("message", Integer, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("compressed", LargeBinary, nullable=False),
)

# ``cut`` keeps the blocks of a reply that did not enter the conversation.
model_calls = Table(
    "model_calls",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("model", Text, nullable=False),
    Column("max_tokens", Integer, nullable=False),
    Column("worst_case", BigInteger, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("latency", Float),
    Column("request_id", Text),
    Column("stop_reason", Text),
    Column("input_tokens", BigInteger),
    Column("cache_read_tokens", BigInteger),
    Column("cache_creation_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("charged_tokens", BigInteger),
    Column("error", Text),
    Column("cut", JSON(none_as_null=True)),
    Column("purpose", Text, nullable=False, server_default="turn"),
    Column("hour_cache", Boolean),
    sqlite_with_rowid=False,
)

# What the model is sent instead of messages, which stay as they are: ``core.context.compaction``.
# ``turn`` is the one that comes next, ``made_by_call`` the model call that wrote a summary, and
# ``first_sent_in`` the first that is sent it. ``text`` is JSON: a column of text takes no "\\u0000".
compactions = Table(
    "compactions",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("first_message", Integer, nullable=False),
    Column("last_message", Integer, nullable=False),
    Column("text", JSON, nullable=False),
    Column("clips", JSON, nullable=False),
    Column("tokens_before", BigInteger, nullable=False),
    Column("tokens_after", BigInteger, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("made_by_call", Integer),
    Column("first_sent_in", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
    CheckConstraint("kind IN ('clip', 'summary', 'prune')", name="kind"),
)

# ``turn`` is the one after which it began, ``command`` the one that ran last. ``content`` is what the
# model is shown, and ``compressed`` the whole output where that is longer.
verifications = Table(
    "verifications",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("turn", Integer, nullable=False),
    Column("tree", Text),
    Column("attempt", Integer, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("duration", Float),
    Column("outcome", Text),
    Column("command", Text),
    Column("content", JSON(none_as_null=True)),
    Column("size", BigInteger),
    Column("compressed", LargeBinary),
)

events = Table(
    "events",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("type", Text, nullable=False),
    Column("data", JSON, nullable=False),
    # Which limits were reached, also of runs that went on: without reading all events.
    Index(None, "at", **where("type = 'limit_reached'")),
    sqlite_with_rowid=False,
)


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


__all__ = [
    "approvals",
    "blocks",
    "compactions",
    "events",
    "hook_runs",
    "job_events",
    "jobs",
    "metadata",
    "model_calls",
    "permission_rules",
    "prices",
    "purses",
    "queued_messages",
    "run_instructions",
    "run_items",
    "run_workspaces",
    "runs",
    "tool_calls",
    "tool_outputs",
    "verifications",
    "workers",
]

"""What happens in a run: its conversation, its calls, and its events."""

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
    LargeBinary,
    Table,
    Text,
)

from runner.store.connection.naming import where
from runner.store.tables.metadata import metadata

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

"""The tables, as the newest migration leaves them. Views and the search index are in migrations/.

Times are seconds since the epoch, durations seconds. A small table that is read by run has no rowid on
SQLite: the rows of a run lie together, so a turn writes one page of it and not two. ``blocks`` and
``tool_outputs`` can be large and keep their rowid.
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
)
from sqlalchemy.schema import SchemaItem

from runner.core.conversation import Usage
from runner.core.run import STATES

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _table(name: str, *items: SchemaItem, **options: Any) -> Table:
    return Table(name, metadata, *items, **options)


def _table_of_run(name: str, *items: SchemaItem, **options: Any) -> Table:
    """A table whose rows belong to runs: their key begins with the run's id."""
    run_id = Column("run_id", Text, ForeignKey("runs.id"), primary_key=True)
    return Table(name, metadata, run_id, *items, **options)


def _counts(*names: str, type_: type[Integer] = Integer) -> list[Column[int]]:
    return [Column(name, type_, nullable=False, server_default="0") for name in names]


def _columns(names: str, type_: Any, **options: Any) -> list[Column[Any]]:
    return [Column(name, type_, **options) for name in names.split()]


def _where(condition: str) -> dict[str, Any]:
    """The option of an index of only the rows that meet a condition. Dialect options would import both
    dialects at the start of every command; migrations make the indexes."""
    return {"info": {"where": condition}}


# --- Jobs ---

jobs = _table(
    "jobs",
    Column("id", Text, primary_key=True),
    Column("key", Text, unique=True),  # given by the user, so that a job is submitted only once
    Column("name", Text, nullable=False),
    Column("source", Text, nullable=False),  # the path of the job file
    Column("spec_text", Text, nullable=False),  # the job file's text
    Column("spec_digest", Text, nullable=False),
    Column("spec", JSON, nullable=False),  # the job file as parsed and completed
    Column("workspace_id", Text),  # identifies the folder of the workspace on a host
    Column("created_at", Float, nullable=False),
    Column("rules_snapshot", Integer, nullable=False, server_default="1"),  # the newest one
    Column("finish_by", Float),  # from then on none of its model calls begins
    Column("finish_by_text", Text),  # the same as written, with its time zone
    Column("lane", Text),  # NULL: realtime
    Index(None, "rules_snapshot", **_where("rules_snapshot > 1")),
    Index(None, "finish_by", **_where("finish_by IS NOT NULL")),
)

# The budget of a job that has one. Apart from the job, whose row is large: this one is written in every
# turn. Costs are in billionths of a USD.
job_budgets = _table(
    "purses",
    Column("job_id", Text, ForeignKey("jobs.id"), primary_key=True),
    Column("budget_usd", Float),
    Column("budget_tokens", BigInteger),
    *_counts("spent_tokens", "spent_cost", "reserved_tokens", "reserved_cost", type_=BigInteger),
)

# The cap on what all calls that begin on a day cost together, in one row once somebody has set it. Each
# call that begins or ends while it is set locks this row last. Costs are in billionths of a USD.
day_cap = _table(
    "day_cap",
    Column("id", Integer, primary_key=True, autoincrement=False),  # always 1
    Column("usd", Float),  # NULL: it was removed
    Column("zone", Text, nullable=False),
    Column("day", Text, nullable=False),  # the date and the zone; the sums are of this day
    *_counts("spent_cost", "reserved_cost", type_=BigInteger),
    Column("changes", JSON, nullable=False),  # by people
)

# The days before, as they ended.
capped_days = _table(
    "capped_days",
    Column("day", Text, primary_key=True),
    Column("usd", Float),
    *_counts("spent_cost", "reserved_cost", type_=BigInteger),
)

# A job's share of the workers' slots. Apart from the job, whose row is large: workers read it in each pass.
job_shares = _table(
    "job_shares",
    Column("job_id", Text, ForeignKey("jobs.id"), primary_key=True),
    Column("weight", Float, nullable=False),
    Column("max_concurrency", Integer),  # runs that are worked on at once
    Column("workspace_id", Text),  # of a folder in which
    Column("workspace_concurrency", Integer),  # the most runs at once
    Index(None, "workspace_id", **_where("workspace_id IS NOT NULL")),
)

# The pauses of jobs by Runner, for a pilot too, and from when on a job's breaker counts.
job_pauses = _table(
    "job_pauses",
    Column("job_id", Text, ForeignKey("jobs.id"), primary_key=True),
    Column("reason", Text),  # pilot, breaker, spend_limit or person; NULL: none now
    Column("detail", Text, nullable=False, server_default=""),  # the reason in words
    Column("at", Float, nullable=False),  # since when
    # The next thing to do about it: decide (when the pilot has ended), pause or resume (its runs).
    Column("pending", Text),
    Column("counted_from", Float, nullable=False, server_default="0"),
    Index(None, "pending", **_where("pending IS NOT NULL")),
)

# What people are told of a job: see ``store.notices``.
notices = _table(
    "notices",
    Column("job_id", Text, ForeignKey("jobs.id"), primary_key=True),
    Column("event", Text, primary_key=True),  # done, failed, needs_approval, budget or breaker
    Column("subject", Text, primary_key=True),  # what comes more than once: the first new question
    Column("channel", Text, primary_key=True),  # command, webhook or desktop; empty while armed
    Column("state", Text, nullable=False),  # armed, due, sent or failed
    Column("data", JSON),  # the notice
    *_columns("at due_at sent_at", Float),
    Column("tries", Integer, nullable=False, server_default="0"),
    Column("error", Text),  # of the last try
    # Workers look for both in each pass; there are few.
    Index(None, "job_id", **_where("at IS NULL")),
    Index(None, "due_at", **_where("due_at IS NOT NULL")),
)

# Snapshot N of the rules of a job has the rules with ``added_in`` <= N that are not revoked in N or before.
permission_rules = _table(
    "permission_rules",
    Column("job_id", Text, ForeignKey("jobs.id"), primary_key=True),
    Column("position", Integer, primary_key=True),
    *_columns("effect rule", Text, nullable=False),
    Column("why", Text, nullable=False, server_default=""),
    Column("origin", Text, nullable=False, server_default="job"),
    Column("run_id", Text, ForeignKey("runs.id")),  # of a rule that holds for one run only
    Column("author", Text, nullable=False, server_default=""),  # a person
    Column("created_at", Float),
    Column("added_in", Integer, nullable=False, server_default="1"),
    Column("revoked_in", Integer),
    Column("revoked_by", Text),  # a person
    Column("revoked_at", Float),
    CheckConstraint("effect IN ('allow', 'ask', 'deny')", name="effect"),
)

# Rules that are copied into each new job, with their authors. Removed ones stay on record.
standing_rules = _table(
    "standing_rules",
    Column("id", Integer, primary_key=True),
    *_columns("effect rule why author", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("call_id", Text),  # the tool call that it answered, if it was remembered with an answer
    Column("removed_at", Float),
    *_columns("removed_by removed_why", Text),
    CheckConstraint("effect IN ('allow', 'ask', 'deny')", name="effect"),
    Index(
        "ix_standing_rules_in_force",
        *("effect", "rule"),
        unique=True,
        **_where("removed_at IS NULL"),
    ),
)

# What happened to a job as a whole. What happened to one of its runs is in ``events``.
job_events = _table(
    "job_events",
    Column("job_id", Text, ForeignKey("jobs.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("type", Text, nullable=False),
    Column("data", JSON, nullable=False),
    sqlite_with_rowid=False,
)

# The price list that the view ``v_costs`` uses: USD for a million tokens.
prices = _table(
    "prices",
    Column("model", Text, primary_key=True),
    Column("fast", Integer, primary_key=True),  # 1: of calls in fast mode
    Column("above", BigInteger, primary_key=True),  # of prompts with more tokens than this
    Column("up_to", BigInteger),  # and prompts of at most this many tokens
    *_columns("input cache_write_5m cache_write_1h cache_read output", Float, nullable=False),
    Column("us_inference", Float, nullable=False),  # the factor for calls bound to the US
    Column("batch", Float, nullable=False, server_default="0.5"),  # that for calls in a batch
)

# A job that is submitted at the times of a cron expression, stored when the schedule was added.
schedules = _table(
    "schedules",
    Column("id", Text, primary_key=True),
    *_columns("name source cron zone", Text, nullable=False),
    Column("author", Text),
    Column("created_at", Float, nullable=False),
    Column("next_at", Float, nullable=False),
    *_columns("paused_at removed_at fired_at", Float),
    Column("fired_job", Text),  # the last one
    Column("detail", Text, nullable=False, server_default=""),  # what went wrong with that
    Column("changes", JSON, nullable=False),  # what people did to it, in the form of events
    Column("workspace_id", Text),  # these as in ``jobs``
    Column("spec_text", Text, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("runs", JSON, nullable=False),  # items with their prompts
)

# The people who may log in to `runner web`.
people = _table(
    "people",
    Column("name", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("token_hash", Text, unique=True),  # SHA-256 in base 16; NULL: a proxy vouches for them
    Column("created_at", Float, nullable=False),
    Column("removed_at", Float),
    Column("changes", JSON, nullable=False),  # by other people, in the form of events
    CheckConstraint("role IN ('look', 'answer', 'operate')", name="role"),
)

# --- Runs ---

_STATES = ", ".join(f"'{state}'" for state in STATES)

runs = _table(
    "runs",
    Column("id", Text, primary_key=True),
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    Column("item_key", Text, nullable=False),
    Column("fresh_of", Text, ForeignKey("runs.id")),  # the run that this one starts anew
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False, server_default=""),
    Column("detail", Text, nullable=False, server_default=""),
    Column("created_at", Float, nullable=False),
    *_columns("started_at ended_at due_at", Float),
    Column("rung_at", Float),  # of a queued run: when workers were notified that it is due
    Column("attempt", Integer, nullable=False, server_default="0"),  # the fencing token
    Column("worker_id", Text),  # holds the lease
    Column("last_worker_id", Text),
    *_counts("lost_leases", "bugs"),  # in a row; a bug is an attempt that raised an error
    # In a row, by host id: how many attempts met a fault of that host, and when the last did.
    Column("host_faults", JSON(none_as_null=True)),
    Column("pause_requested", Boolean, nullable=False, server_default="0"),
    Column("max_turns", Integer, nullable=False),
    Column("token_ceiling", BigInteger, nullable=False),
    Column("workspace_path", Text),
    Column("workspace_id", Text),  # identifies that folder on a host
    *_counts("revision"),  # commits of its attempts
    *_counts("event_count", "message_count"),
    *_counts("queued_count"),  # of ``queued_messages``
    *_counts("turns", "denials"),
    *_counts(*Usage.__slots__, "charged_tokens", type_=BigInteger),
    Column("progress", JSON, nullable=False),  # the rest of the run state
    Column("answer_count", Integer, nullable=False, server_default="0"),  # answers to approvals
    Column("cost_ceiling_usd", Float),
    Column("working_time", Float),  # the limit on it
    Column("compaction_count", Integer, nullable=False, server_default="0"),
    Column("model", Text),  # replaces the job's
    Column("fork_of", Text),
    Column("fork_turn", Integer),  # the last turn that the fork copied
    Column("start_tree", Text),  # the snapshot before the first turn
    Column("parent_run", Text),  # of a sub-agent: the run that started it,
    Column("parent_message", Integer),  # and the tool call that did
    Column("parent_position", Integer),
    Column("root_run", Text),  # of a sub-agent: the run of the item
    Column("depth", Integer, nullable=False, server_default="0"),
    Column("child_number", Integer),
    Column("agent_type", Text),
    Column("deadline", Float),  # of a sub-agent: seconds after ``created_at``
    Column("rank", Integer, nullable=False, server_default="2"),  # see ``core.run``
    CheckConstraint(f"state IN ({_STATES})", name="state"),
    CheckConstraint("(state = 'running') = (worker_id IS NOT NULL)", name="held"),
    CheckConstraint("(state = 'queued') = (due_at IS NOT NULL)", name="due"),
    Index(None, "job_id", "state"),
    # Not with ``due_at``: Postgres would look for due runs in it, by statistics of an idle time.
    Index(None, "state", "reason"),
    Index(None, "worker_id", **_where("worker_id IS NOT NULL")),
    # Without it a job's summary takes time with the square of its runs: few are begun afresh.
    Index(None, "fresh_of", **_where("fresh_of IS NOT NULL")),
    Index(None, "root_run", **_where("root_run IS NOT NULL")),
    # The runs in progress, to see if what is left lets others begin.
    Index("ix_runs_begun", "job_id", **_where("started_at IS NOT NULL AND ended_at IS NULL")),
    # The lines that workers choose the next run from, one for each job and rank.
    Index(
        None,
        *("job_id", "rank", "due_at", "id"),
        **_where("due_at IS NOT NULL AND rung_at IS NULL"),
    ),
    Index(None, "rung_at", **_where("rung_at IS NOT NULL")),
    # A breaker looks at the newest ended runs of its job.
    Index(None, "job_id", "ended_at", **_where("ended_at IS NOT NULL")),
    # Workers look for unfinished sub-agents in each pass; there are few.
    Index(None, "state", "parent_run", **_where("parent_run IS NOT NULL")),
)

# Apart from the run, whose row is written in every step: an item can be large.
run_items = _table_of_run(
    "run_items",
    Column("item", JSON, nullable=False),
    Column("commit_message", Text),  # for the delivery of the run's changes
)

# The worktree or copy that a run has of its own.
run_workspaces = _table_of_run(
    "run_workspaces",
    Column("store_id", Text, nullable=False),  # identifies the folder of its snapshots
    Column("path", Text, nullable=False),
    Column("branch", Text),
    Column("start_commit", Text),  # where the branch began
    Column("commit_id", Text),  # the last one that was delivered
    Column("created_at", Float, nullable=False),
)

# The instruction files of the workspace, as the run read them.
run_instructions = _table_of_run(
    "run_instructions",
    Column("position", Integer, primary_key=True),
    Column("path", Text, nullable=False),
    Column("sha256", Text, nullable=False),  # of the bytes of the file
    Column("size", Integer, nullable=False),  # of ``text`` in bytes
    Column("text", Text, nullable=False),  # no byte order mark, line feeds only, controls escaped
)

# The tools of a run from a model call on, where MCP servers have changed theirs. Before: those of its job.
tool_lists = _table_of_run(
    "tool_lists",
    Column("number", Integer, primary_key=True),
    Column("turn", Integer, nullable=False),  # the one that they changed in
    Column("first_sent_in", Integer, nullable=False),  # the first model call that may have them
    Column("sha256", Text, nullable=False),  # of ``tools``
    Column("tools", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
)

# Messages from people that the run has not taken into its conversation yet, or has.
queued_messages = _table(
    "queued_messages",
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("run_id", Text, ForeignKey("runs.id"), nullable=False),
    Column("text", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("delivered_message", Integer),  # the message that has it
    Index(None, "run_id"),
)

# What an imported session of Claude Code, or an agent in it, says beside its conversation.
sessions = _table_of_run(
    "sessions",
    Column("session_id", Text, nullable=False),
    *_columns("agent_id title", Text),
    *_columns("system notes", JSON, nullable=False),  # strings, empty if there is nothing to say
    Column("stated_usd", Float),  # what Claude Code says that it cost
    Column("under_reported", Integer, nullable=False, server_default="0"),  # replies
    Column("files_digest", Text),  # of the files that it was read from last
    Index(None, "session_id"),
    Index(None, "files_digest"),
)

# The lines of a session's files as they were, in the order in which imports brought them.
session_lines = _table_of_run(
    "session_lines",
    Column("file", Text, primary_key=True),  # empty: the session's own
    Column("part", Integer, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("compressed", LargeBinary, nullable=False),
)

workers = _table(
    "workers",
    Column("id", Text, primary_key=True),
    Column("host_id", Text, nullable=False),  # identifies the folder of locks that a host shares
    Column("hostname", Text, nullable=False),
    *_columns("pid slots", Integer, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("lease_expires_at", Float, nullable=False),  # of all the leases that the worker holds
    Column("ended_at", Float),
    Column("version", Text),  # of Runner and of the schema that it knows: ``0.1.0/r02``
    Column("draining_at", Float),  # since when it takes nothing new because it was told to end
    Column("fault", Text),  # what is wrong with its host, so that it takes nothing new; else NULL
    Column("fault_at", Float),  # since when
    Column("job_id", Text),  # the only job that it works; NULL: it works all
    Index(None, "ended_at"),
)

# The rate limits that workers share: of an organisation's group of models, or (organisation "") of a job.
rate_pools = _table(
    "rate_pools",
    *_columns("organisation model_group", Text, primary_key=True),
    Column("pool", JSON, nullable=False),
    Column("changed_at", Float, nullable=False),
)

# What each worker holds of a pool and wants of it; it counts while the worker's leases are good.
rate_permits = _table(
    "rate_permits",
    *_columns("organisation model_group worker_id", Text, primary_key=True),
    Column("report", JSON, nullable=False),
    Column("changed_at", Float, nullable=False),
)

# What happened to the pools: the newest.
rate_events = _table(
    "rate_events",
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("at", Float, nullable=False),
    *_columns("organisation model_group type", Text, nullable=False),
    Column("data", JSON, nullable=False),
)

# What is left of jobs that ``runner prune`` has deleted.
pruned_jobs = _table(
    "pruned_jobs",
    Column("job_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("runs", Integer, nullable=False),
    *_columns("ended_at pruned_at", Float, nullable=False),
    Column("pruned_by", Text, nullable=False),  # a person
    Column("why", Text, nullable=False),
)

# --- Conversations ---

# A message is the blocks with the same (run_id, message); they share a role.
blocks = _table_of_run(
    "blocks",
    Column("message", Integer, primary_key=True),
    Column("position", Integer, primary_key=True),
    *_columns("role type", Text, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("content", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
    # Of a user's words in an imported session: a person, a machine, or a peer (another agent).
    Column("spoken_by", Text),
    CheckConstraint("role IN ('user', 'assistant')", name="role"),
)

# What the model is sent in place of messages, which stay as they are.
compactions = _table_of_run(
    "compactions",
    Column("number", Integer, primary_key=True),
    Column("kind", Text, nullable=False),
    *_columns("first_message last_message", Integer, nullable=False),
    Column("text", JSON, nullable=False),  # a string; as JSON because a column of text takes no NUL
    Column("clips", JSON, nullable=False),  # the tool results that are sent truncated
    *_columns("tokens_before tokens_after", BigInteger, nullable=False),
    Column("turn", Integer, nullable=False),  # the next one
    Column("made_by_call", Integer),  # the model call that wrote a summary
    Column("first_sent_in", Integer, nullable=False),  # the first model call that is sent it
    Column("created_at", Float, nullable=False),
    CheckConstraint("kind IN ('clip', 'summary', 'prune')", name="kind"),
)

# --- Calls ---

# The input is in the block of the reply, the result in the next message.
tool_calls = _table_of_run(
    "tool_calls",
    Column("message", Integer, primary_key=True),  # the reply that asks for the call
    Column("position", Integer, primary_key=True),
    Column("turn", Integer, nullable=False),
    *_columns("tool_use_id name", Text, nullable=False),
    *_columns("decision rule", Text),
    Column("started_attempt", Integer),
    *_columns("started_at ended_at duration", Float),
    Column("outcome", Text),
    Column("interrupted", Boolean, nullable=False, server_default="0"),  # by a cancellation
    Column("decision_snapshot", Integer),  # of the rules
    Column("rule_position", Integer),  # in ``permission_rules``
    Column("matched", Text),  # the part of the call that the rule matched
    Column("decision_reason", Text),
    Column("denial", Text),  # why it was denied when it ran, because of where a path led by then
    Column("tree_before", Text),  # snapshots of the workspace, for a call that may write
    Column("tree_after", Text),
    Column("asked_again", Boolean, nullable=False, server_default="0"),  # its outcome is unknown
    Column("updated_input", JSON(none_as_null=True)),  # as a hook changed it
    Column("original", Text),  # its result's text before a hook replaced it for the model
    Column("containment", Text),  # what contained its processes; NULL: it started none
    # The details that its tool gave beside the result, in a job with hooks.
    Column("details", JSON(none_as_null=True)),
    sqlite_with_rowid=False,
)

# Whole outputs of tool calls whose results are shortened.
tool_outputs = _table_of_run(
    "tool_outputs",
    Column("message", Integer, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("compressed", LargeBinary, nullable=False),
)

# The bytes of images and documents in conversations, stored once for each digest.
blobs = _table(
    "blobs",
    Column("sha256", Text, primary_key=True),
    Column("data", LargeBinary, nullable=False),
    Column("used_at", Float, nullable=False),  # when a job last stored it
)

# The jobs whose conversations name the digest. A job is pruned as a whole.
job_blobs = _table(
    "job_blobs",
    Column("job_id", Text, ForeignKey("jobs.id"), primary_key=True),
    Column("sha256", Text, ForeignKey("blobs.sha256"), primary_key=True),
    Index(None, "sha256"),
)

# A question about a tool call, and its answer.
approvals = _table_of_run(
    "approvals",
    Column("message", Integer, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    Column("id", Text, nullable=False, unique=True),
    Column("turn", Integer, nullable=False),
    *_columns("tool input_digest", Text, nullable=False),
    Column("setting", JSON, nullable=False),  # where the call would run, when it was asked about
    Column("checked_snapshot", Integer, nullable=False),  # the newest rules that were tried on it
    *_columns("summary group_key suggested_rule", Text, nullable=False),
    Column("asked_at", Float, nullable=False),
    *_columns("expires_at notified_at", Float),
    Column("answer", Text),
    Column("answered_at", Float),
    *_columns("answered_by answered_via", Text),
    Column("reason", Text, nullable=False, server_default=""),
    Column("edited_input", JSON(none_as_null=True)),
    Column("remembered", Integer),  # position of the rule that the answer stored, or that answered
    Column("by_hook", Boolean, nullable=False, server_default="0"),  # a hook asks: no rule answers
    CheckConstraint("answer IN ('approved', 'denied', 'expired', 'cancelled')", name="answer"),
    CheckConstraint("answered_via IN ('person', 'rule', 'timeout', 'cancel', 'end')", name="via"),
    CheckConstraint("(answer IS NULL) = (answered_at IS NULL)", name="answered"),
    # Workers look for open questions in each pass; there are few.
    Index(None, "job_id", "checked_snapshot", **_where("answer IS NULL")),
    Index(None, "expires_at", **_where("answer IS NULL")),
    Index(None, "asked_at", **_where("answer IS NULL AND notified_at IS NULL")),
)

model_calls = _table_of_run(
    "model_calls",
    Column("number", Integer, primary_key=True),
    *_columns("attempt turn", Integer, nullable=False),
    Column("model", Text, nullable=False),
    Column("max_tokens", Integer, nullable=False),
    Column("worst_case", BigInteger, nullable=False),  # the tokens reserved for the call
    Column("started_at", Float, nullable=False),
    *_columns("ended_at latency", Float),
    *_columns("request_id stop_reason", Text),
    *_columns("input_tokens cache_read_tokens cache_creation_tokens output_tokens", BigInteger),
    Column("charged_tokens", BigInteger),
    Column("error", Text),
    Column("cut", JSON(none_as_null=True)),  # blocks of a reply that stayed out of the conversation
    Column("purpose", Text, nullable=False, server_default="turn"),
    Column("hour_cache", Boolean),  # its cache writes live for an hour
    Column("written_off_tokens", BigInteger),  # of its charge, by a person
    Column(
        "batch", Boolean, nullable=False, server_default="0"
    ),  # in a Message Batch, at its prices
    Column("message_id", Text),  # of an imported reply, as the API names it
    Index(None, "message_id", **_where("message_id IS NOT NULL")),
    sqlite_with_rowid=False,
)

# A Message Batch of the API, from its intent on.
batches = _table(
    "batches",
    Column("id", Text, primary_key=True),
    Column("account", Text, nullable=False),  # the API's id of the organization
    Column("workspace", Text, nullable=False),  # of the API, if the job names one
    Column("count", Integer, nullable=False),  # of its calls
    Column("digest", Text, nullable=False),  # SHA-256 of what was to be sent
    Column("asked_at", Float, nullable=False),  # when the intent was stored
    Column("api_id", Text),  # NULL: it may not have been made
    *_columns("created_at expires_at", Float),  # by the API
    Column("checked_at", Float, nullable=False),  # when the API was last asked about it
    Column("adopted", Boolean, nullable=False, server_default="0"),  # found in the API's list
    Column("not_ours", JSON, nullable=False),  # the API's ids of batches adopted by mistake
    Column("cancelled_at", Float),
    Column("ended_at", Float),  # no result is to come
    Column("outcome", Text),  # ended, lost or refused
    Column("detail", Text, nullable=False, server_default=""),
    Index(None, "account", **_where("ended_at IS NULL")),
)

# The worker that sends and reads the batches of an organization, while it is alive.
batch_collectors = _table(
    "batch_collectors",
    Column("account", Text, primary_key=True),
    Column("worker_id", Text, nullable=False),
)

# A model call that goes into a batch, and its result until the run takes it.
batch_calls = _table_of_run(
    "batch_calls",
    Column("number", Integer, primary_key=True),
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    Column("asked_at", Float, nullable=False),
    Column("batch_id", Text, ForeignKey("batches.id")),  # NULL: it waits for others
    Column("result", JSON(none_as_null=True)),
    Column("seconds", Float),  # that the batch took
    Column("ended_at", Float),  # its run took the result, or ended without
    Index(None, "asked_at", **_where("batch_id IS NULL AND ended_at IS NULL")),
    Index(None, "batch_id", **_where("batch_id IS NOT NULL")),
    Index("ix_batch_calls_result", "run_id", **_where("result IS NOT NULL")),
)

# --- Records of a run ---

events = _table_of_run(
    "events",
    Column("number", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("type", Text, nullable=False),
    Column("data", JSON, nullable=False),
    # `runner audit limits` reads the limits that were reached, and not all events.
    Index(None, "at", **_where("type = 'limit_reached'")),
    Index("ix_events_connections", "at", **_where("type = 'connection'")),
    sqlite_with_rowid=False,
)

verifications = _table_of_run(
    "verifications",
    Column("number", Integer, primary_key=True),
    Column("turn", Integer, nullable=False),  # the one that ended before it
    Column("tree", Text),  # the snapshot that was verified
    Column("attempt", Integer, nullable=False),
    Column("started_at", Float, nullable=False),
    *_columns("ended_at duration", Float),
    Column("outcome", Text),
    Column("command", Text),  # the last one that ran
    Column("content", JSON(none_as_null=True)),  # the output that the model is shown
    Column("size", BigInteger),
    Column("compressed", LargeBinary),  # the whole output, if it is longer
)

hook_runs = _table_of_run(
    "hook_runs",
    Column("number", Integer, primary_key=True),
    Column("hook", Integer, nullable=False),  # its index in the job's hooks
    Column("event", Text, nullable=False),
    Column("name", Text, nullable=False),  # its command or function, shortened
    Column("turn", Integer, nullable=False),
    Column("message", Integer),  # the tool call that the event is about
    Column("position", Integer),
    Column("attempt", Integer, nullable=False),
    Column("started_at", Float, nullable=False),
    *_columns("ended_at duration", Float),
    Column("outcome", Text),
    Column("exit_code", Integer),
    Column("decision", Text),
    Column("reason", Text, nullable=False, server_default=""),
    Column("context", Text, nullable=False, server_default=""),  # text for the model
    Column("stops", Boolean, nullable=False, server_default="0"),  # it ends the run
    Column("output", Text, nullable=False, server_default=""),  # its stdout, truncated
    Column("errors", Text, nullable=False, server_default=""),  # its stderr, truncated
    Column("tree_before", Text),
    Column("tree_after", Text),  # NULL if it changed nothing
    CheckConstraint(
        "event IN ('RunStart', 'PreToolUse', 'PostToolUse', 'TurnEnd', 'RunEnd')", name="event"
    ),
    CheckConstraint("decision IN ('allow', 'ask', 'deny', 'block')", name="decision"),
)

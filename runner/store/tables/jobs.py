"""Jobs, what holds for all runs of one, and what models cost."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
)

from runner.store.connection.naming import where
from runner.store.tables.metadata import metadata

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

"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _jobs()
    _runs()
    _conversations()
    _tool_calls()
    _model_calls()
    _events()
    _workers()


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text()),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("spec_text", sa.Text(), nullable=False),
        sa.Column("spec_digest", sa.Text(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("workspace_id", sa.Text()),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("key", name=op.f("uq_jobs_key")),
    )
    op.create_table(
        "permission_rules",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("effect", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.CheckConstraint("effect IN ('allow', 'deny')", name=op.f("ck_permission_rules_effect")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_permission_rules_job_id")),
        sa.PrimaryKeyConstraint("job_id", "position", name=op.f("pk_permission_rules")),
    )


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("item_key", sa.Text(), nullable=False),
        sa.Column("fresh_of", sa.Text()),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("detail", sa.Text(), server_default="", nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float()),
        sa.Column("ended_at", sa.Float()),
        sa.Column("due_at", sa.Float()),
        sa.Column("rung_at", sa.Float()),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("worker_id", sa.Text()),
        sa.Column("last_worker_id", sa.Text()),
        sa.Column("lost_leases", sa.Integer(), server_default="0", nullable=False),
        sa.Column("bugs", sa.Integer(), server_default="0", nullable=False),
        sa.Column("pause_requested", sa.Boolean(), server_default="0", nullable=False),
        sa.Column("max_turns", sa.Integer(), nullable=False),
        sa.Column("token_ceiling", sa.BigInteger(), nullable=False),
        sa.Column("workspace_path", sa.Text()),
        sa.Column("workspace_id", sa.Text()),
        *_run_counters(),
        sa.Column("progress", sa.JSON(), nullable=False),
        sa.CheckConstraint("(state = 'queued') = (due_at IS NOT NULL)", name=op.f("ck_runs_due")),
        sa.CheckConstraint(
            "(state = 'running') = (worker_id IS NOT NULL)", name=op.f("ck_runs_held")
        ),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'waiting', 'succeeded', 'failed', 'cancelled', "
            "'stopped')",
            name=op.f("ck_runs_state"),
        ),
        sa.ForeignKeyConstraint(["fresh_of"], ["runs.id"], name=op.f("fk_runs_fresh_of")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_runs_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index(op.f("ix_runs_job_id_state"), "runs", ["job_id", "state"])
    op.create_index(op.f("ix_runs_state_due_at"), "runs", ["state", "due_at"])
    op.create_index(op.f("ix_runs_worker_id"), "runs", ["worker_id"])
    op.create_table(
        "run_items",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("item", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_run_items_run_id")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run_items")),
    )


def _run_counters() -> list[sa.Column[int]]:
    return [
        sa.Column("revision", sa.Integer(), server_default="0", nullable=False),
        sa.Column("event_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("message_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("queued_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("turns", sa.Integer(), server_default="0", nullable=False),
        sa.Column("denials", sa.Integer(), server_default="0", nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cache_read_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cache_creation_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("charged_tokens", sa.BigInteger(), server_default="0", nullable=False),
    ]


def _conversations() -> None:
    op.create_table(
        "blocks",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("message", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.CheckConstraint("role IN ('user', 'assistant')", name=op.f("ck_blocks_role")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_blocks_run_id")),
        sa.PrimaryKeyConstraint("run_id", "message", "position", name=op.f("pk_blocks")),
    )
    op.create_table(
        "queued_messages",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("delivered_message", sa.Integer()),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_queued_messages_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_queued_messages")),
    )
    op.create_index(op.f("ix_queued_messages_run_id"), "queued_messages", ["run_id"])


def _tool_calls() -> None:
    op.create_table(
        "tool_calls",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("message", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("tool_use_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("decision", sa.Text()),
        sa.Column("rule", sa.Text()),
        sa.Column("started_attempt", sa.Integer()),
        sa.Column("started_at", sa.Float()),
        sa.Column("ended_at", sa.Float()),
        sa.Column("duration", sa.Float()),
        sa.Column("outcome", sa.Text()),
        sa.Column("interrupted", sa.Boolean(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_tool_calls_run_id")),
        sa.PrimaryKeyConstraint("run_id", "message", "position", name=op.f("pk_tool_calls")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tool_outputs",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("message", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("compressed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_tool_outputs_run_id")),
        sa.PrimaryKeyConstraint("run_id", "message", "position", name=op.f("pk_tool_outputs")),
    )


def _model_calls() -> None:
    op.create_table(
        "model_calls",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("max_tokens", sa.Integer(), nullable=False),
        sa.Column("worst_case", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float()),
        sa.Column("latency", sa.Float()),
        sa.Column("request_id", sa.Text()),
        sa.Column("stop_reason", sa.Text()),
        sa.Column("input_tokens", sa.BigInteger()),
        sa.Column("cache_read_tokens", sa.BigInteger()),
        sa.Column("cache_creation_tokens", sa.BigInteger()),
        sa.Column("output_tokens", sa.BigInteger()),
        sa.Column("charged_tokens", sa.BigInteger()),
        sa.Column("error", sa.Text()),
        sa.Column("cut", sa.JSON(none_as_null=True)),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_model_calls_run_id")),
        sa.PrimaryKeyConstraint("run_id", "number", name=op.f("pk_model_calls")),
        sqlite_with_rowid=False,
    )


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_events_run_id")),
        sa.PrimaryKeyConstraint("run_id", "number", name=op.f("pk_events")),
        sqlite_with_rowid=False,
    )


def _workers() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("host_id", sa.Text(), nullable=False),
        sa.Column("hostname", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("lease_expires_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_index(op.f("ix_workers_ended_at"), "workers", ["ended_at"])

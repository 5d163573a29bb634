"""Compactions, what model calls are for, and budgets of jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table, column in (
        ("runs", sa.Column("cost_ceiling_usd", sa.Float())),
        ("runs", sa.Column("working_time", sa.Float())),
        ("runs", sa.Column("compaction_count", sa.Integer(), server_default="0", nullable=False)),
        ("model_calls", sa.Column("purpose", sa.Text(), server_default="turn", nullable=False)),
        ("model_calls", sa.Column("hour_cache", sa.Boolean())),
    ):
        op.add_column(table, column)
    op.create_table(
        "purses",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("budget_usd", sa.Float()),
        sa.Column("budget_tokens", sa.BigInteger()),
        _sum("spent_tokens"),
        _sum("spent_cost"),
        _sum("reserved_tokens"),
        _sum("reserved_cost"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_purses_job_id")),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_purses")),
    )
    op.create_table(
        "compactions",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("first_message", sa.Integer(), nullable=False),
        sa.Column("last_message", sa.Integer(), nullable=False),
        sa.Column("text", sa.JSON(), nullable=False),
        sa.Column("clips", sa.JSON(), nullable=False),
        sa.Column("tokens_before", sa.BigInteger(), nullable=False),
        sa.Column("tokens_after", sa.BigInteger(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("made_by_call", sa.Integer()),
        sa.Column("first_sent_in", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.CheckConstraint(
            "kind IN ('clip', 'summary', 'prune')", name=op.f("ck_compactions_kind")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_compactions_run_id")),
        sa.PrimaryKeyConstraint("run_id", "number", name=op.f("pk_compactions")),
    )


def _sum(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), server_default="0", nullable=False)

"""Hooks that ran, and the instructions that runs read in their workspaces."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tool_calls", sa.Column("updated_input", sa.JSON(none_as_null=True)))
    op.add_column(
        "approvals", sa.Column("by_hook", sa.Boolean(), server_default="0", nullable=False)
    )
    op.create_table(
        "hook_runs",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("hook", sa.Integer(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("message", sa.Integer()),
        sa.Column("position", sa.Integer()),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float()),
        sa.Column("duration", sa.Float()),
        sa.Column("outcome", sa.Text()),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("decision", sa.Text()),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("context", sa.Text(), server_default="", nullable=False),
        sa.Column("stops", sa.Boolean(), server_default="0", nullable=False),
        sa.Column("output", sa.Text(), server_default="", nullable=False),
        sa.Column("errors", sa.Text(), server_default="", nullable=False),
        sa.Column("tree_before", sa.Text()),
        sa.Column("tree_after", sa.Text()),
        sa.CheckConstraint(
            "event IN ('RunStart', 'PreToolUse', 'PostToolUse', 'TurnEnd', 'RunEnd')",
            name=op.f("ck_hook_runs_event"),
        ),
        sa.CheckConstraint(
            "decision IN ('allow', 'ask', 'deny', 'block')", name=op.f("ck_hook_runs_decision")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_hook_runs_run_id")),
        sa.PrimaryKeyConstraint("run_id", "number", name=op.f("pk_hook_runs")),
    )
    op.create_table(
        "run_instructions",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_run_instructions_run_id")),
        sa.PrimaryKeyConstraint("run_id", "position", name=op.f("pk_run_instructions")),
    )

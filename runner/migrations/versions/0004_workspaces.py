"""Runs' own workspaces with their trees, verifications, and runs forked from others."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table, column in (
        ("runs", sa.Column("model", sa.Text())),
        ("runs", sa.Column("fork_of", sa.Text())),
        ("runs", sa.Column("fork_turn", sa.Integer())),
        ("runs", sa.Column("start_tree", sa.Text())),
        ("run_items", sa.Column("commit_message", sa.Text())),
        ("tool_calls", sa.Column("tree_before", sa.Text())),
        ("tool_calls", sa.Column("tree_after", sa.Text())),
        (
            "tool_calls",
            sa.Column("asked_again", sa.Boolean(), server_default="0", nullable=False),
        ),
    ):
        op.add_column(table, column)
    op.create_table(
        "run_workspaces",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("store_id", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("branch", sa.Text()),
        sa.Column("start_commit", sa.Text()),
        sa.Column("commit_id", sa.Text()),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_run_workspaces_run_id")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run_workspaces")),
    )
    op.create_table(
        "verifications",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("tree", sa.Text()),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float()),
        sa.Column("duration", sa.Float()),
        sa.Column("outcome", sa.Text()),
        sa.Column("command", sa.Text()),
        sa.Column("content", sa.JSON(none_as_null=True)),
        sa.Column("size", sa.BigInteger()),
        sa.Column("compressed", sa.LargeBinary()),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_verifications_run_id")),
        sa.PrimaryKeyConstraint("run_id", "number", name=op.f("pk_verifications")),
    )

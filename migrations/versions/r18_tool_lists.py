"""The tools of runs whose MCP servers have changed theirs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r18"
down_revision = "r17"


def upgrade() -> None:
    op.create_table(
        "tool_lists",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("turn", sa.Integer, nullable=False),
        sa.Column("first_sent_in", sa.Integer, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("tools", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_tool_lists_run_id"),
        sa.PrimaryKeyConstraint("run_id", "number", name="pk_tool_lists"),
    )

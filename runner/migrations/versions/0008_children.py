"""Runs that another run has started: sub-agents."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column in (
        sa.Column("parent_run", sa.Text()),
        sa.Column("parent_message", sa.Integer()),
        sa.Column("parent_position", sa.Integer()),
        sa.Column("root_run", sa.Text()),
        sa.Column("depth", sa.Integer(), server_default="0", nullable=False),
        sa.Column("child_number", sa.Integer()),
        sa.Column("agent_type", sa.Text()),
        sa.Column("deadline", sa.Float()),
    ):
        op.add_column("runs", column)
    of_children = sa.text("root_run IS NOT NULL")
    op.create_index(
        op.f("ix_runs_root_run"),
        "runs",
        ["root_run"],
        sqlite_where=of_children,
        postgresql_where=of_children,
    )
    with_parents = sa.text("parent_run IS NOT NULL")
    op.create_index(
        op.f("ix_runs_state_parent_run"),
        "runs",
        ["state", "parent_run"],
        sqlite_where=with_parents,
        postgresql_where=with_parents,
    )

"""Tables for the rate limits that workers share."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r08"
down_revision = "r07"


def upgrade() -> None:
    def key() -> list[sa.Column[str]]:
        return [
            sa.Column(name, sa.Text, nullable=False) for name in ("organisation", "model_group")
        ]

    op.create_table(
        "rate_pools",
        *key(),
        sa.Column("pool", sa.JSON, nullable=False),
        sa.Column("changed_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("organisation", "model_group", name="pk_rate_pools"),
    )
    op.create_table(
        "rate_permits",
        *key(),
        sa.Column("worker_id", sa.Text, nullable=False),
        sa.Column("report", sa.JSON, nullable=False),
        sa.Column("changed_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("organisation", "model_group", "worker_id", name="pk_rate_permits"),
    )
    op.create_table(
        "rate_events",
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        *key(),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_rate_events"),
    )

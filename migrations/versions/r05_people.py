"""A table for the people who may log in to ``runner web``."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r05"
down_revision = "r04"


def upgrade() -> None:
    op.create_table(
        "people",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("token_hash", sa.Text),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("removed_at", sa.Float),
        sa.Column("changes", sa.JSON, nullable=False),
        sa.CheckConstraint("role IN ('look', 'answer', 'operate')", name="role"),
        sa.PrimaryKeyConstraint("name", name="pk_people"),
        sa.UniqueConstraint("token_hash", name="uq_people_token_hash"),
    )

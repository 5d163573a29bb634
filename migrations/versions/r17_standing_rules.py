"""Standing rules: permission rules that each new job gets a copy of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r17"
down_revision = "r15"


def upgrade() -> None:
    op.create_table(
        "standing_rules",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("effect", sa.Text, nullable=False),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("call_id", sa.Text),
        sa.Column("removed_at", sa.Float),
        sa.Column("removed_by", sa.Text),
        sa.Column("removed_why", sa.Text),
        sa.CheckConstraint("effect IN ('allow', 'ask', 'deny')", name="effect"),
        sa.PrimaryKeyConstraint("id", name="pk_standing_rules"),
    )
    in_force = sa.text("removed_at IS NULL")
    op.create_index(
        "ix_standing_rules_in_force",
        "standing_rules",
        ["effect", "rule"],
        unique=True,
        sqlite_where=in_force,
        postgresql_where=in_force,
    )

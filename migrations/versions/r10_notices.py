"""Notices of jobs: what people want to be told of, and what was sent."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r10"
down_revision = "r09"


def upgrade() -> None:
    op.create_table(
        "notices",
        *(
            sa.Column(name, sa.Text, nullable=False)
            for name in ("job_id", "event", "subject", "channel", "state")
        ),
        sa.Column("data", sa.JSON),
        *(sa.Column(name, sa.Float) for name in ("at", "due_at", "sent_at")),
        sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
        sa.Column("error", sa.Text),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_notices_job_id"),
        sa.PrimaryKeyConstraint("job_id", "event", "subject", "channel", name="pk_notices"),
    )
    for column, condition in (("job_id", "at IS NULL"), ("due_at", "due_at IS NOT NULL")):
        where = sa.text(condition)
        op.create_index(
            f"ix_notices_{column}", "notices", [column], sqlite_where=where, postgresql_where=where
        )

"""Columns and tables for a fleet: worker states, the order of work, and working times."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r02"
down_revision = "r01"


def upgrade() -> None:
    _add_state_of_workers()
    _add_index_of_fresh_runs()


def _add_state_of_workers() -> None:
    op.add_column("workers", sa.Column("version", sa.Text))
    for name in ("draining_at", "fault_at"):
        op.add_column("workers", sa.Column(name, sa.Float))
    op.add_column("workers", sa.Column("fault", sa.Text))


def _add_index_of_fresh_runs() -> None:
    is_fresh = sa.text("fresh_of IS NOT NULL")
    op.create_index(
        "ix_runs_fresh_of", "runs", ["fresh_of"], sqlite_where=is_fresh, postgresql_where=is_fresh
    )

"""Tables and columns for money."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r04"
down_revision = "r03"


def upgrade() -> None:
    _add_index_of_begun_runs()


def _add_index_of_begun_runs() -> None:
    is_begun = sa.text("started_at IS NOT NULL AND ended_at IS NULL")
    op.create_index(
        "ix_runs_begun", "runs", ["job_id"], sqlite_where=is_begun, postgresql_where=is_begun
    )

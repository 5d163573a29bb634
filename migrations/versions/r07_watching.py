"""Workers that work one job alone name it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r07"
down_revision = "r06"


def upgrade() -> None:
    op.add_column("workers", sa.Column("job_id", sa.Text))

"""The text of a tool's result before a hook replaced it for the model."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r11"
down_revision = "r10"


def upgrade() -> None:
    op.add_column("tool_calls", sa.Column("original", sa.Text))

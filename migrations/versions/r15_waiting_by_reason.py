"""Runs that wait are found by their reason: with 100,000 runs in batches each pass read them all."""

from __future__ import annotations

from alembic import op

revision = "r15"
down_revision = "r16"


def upgrade() -> None:
    op.create_index("ix_runs_state_reason", "runs", ["state", "reason"])
    op.drop_index("ix_runs_state", "runs")

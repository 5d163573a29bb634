"""The bytes of images and documents, by their digest, and the jobs that they are of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r16"
down_revision = "r13"


def upgrade() -> None:
    op.create_table(
        "blobs",
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("used_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("sha256", name="pk_blobs"),
    )
    op.create_table(
        "job_blobs",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_blobs_job_id"),
        sa.ForeignKeyConstraint(["sha256"], ["blobs.sha256"], name="fk_job_blobs_sha256"),
        sa.PrimaryKeyConstraint("job_id", "sha256", name="pk_job_blobs"),
    )
    op.create_index("ix_job_blobs_sha256", "job_blobs", ["sha256"])

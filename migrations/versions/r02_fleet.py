"""Columns and tables for a fleet: worker states, the order of work, and working times."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r02"
down_revision = "r01"


def upgrade() -> None:
    _add_state_of_workers()
    _add_order_of_work()
    _add_index_of_fresh_runs()
    _add_times_of_jobs()
    _add_schedules()
    _add_pruned_jobs()
    _add_host_faults()


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


def _add_times_of_jobs() -> None:
    op.add_column("jobs", sa.Column("finish_by", sa.Float))
    op.add_column("jobs", sa.Column("finish_by_text", sa.Text))
    is_set = sa.text("finish_by IS NOT NULL")
    op.create_index(
        "ix_jobs_finish_by", "jobs", ["finish_by"], sqlite_where=is_set, postgresql_where=is_set
    )


def _add_schedules() -> None:
    texts = [
        sa.Column(name, sa.Text, nullable=False) for name in ("name", "source", "cron", "zone")
    ]
    op.create_table(
        "schedules",
        sa.Column("id", sa.Text, nullable=False),
        *texts,
        sa.Column("author", sa.Text),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("next_at", sa.Float, nullable=False),
        *(sa.Column(name, sa.Float) for name in ("paused_at", "removed_at", "fired_at")),
        sa.Column("fired_job", sa.Text),
        sa.Column("detail", sa.Text, nullable=False, server_default=""),
        sa.Column("changes", sa.JSON, nullable=False),
        sa.Column("workspace_id", sa.Text),
        sa.Column("spec_text", sa.Text, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("runs", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_schedules"),
    )


def _add_order_of_work() -> None:
    op.create_table(
        "job_shares",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("weight", sa.Float, nullable=False),
        sa.Column("max_concurrency", sa.Integer),
        sa.Column("workspace_id", sa.Text),
        sa.Column("workspace_concurrency", sa.Integer),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_shares_job_id"),
        sa.PrimaryKeyConstraint("job_id", name="pk_job_shares"),
    )
    op.add_column("runs", sa.Column("rank", sa.Integer, nullable=False, server_default="2"))
    op.execute("UPDATE runs SET rank = 1 WHERE state = 'queued' AND attempt > 0")
    for name in ("ix_runs_worker_id", "ix_runs_state_due_at"):
        op.drop_index(name, "runs")
    op.create_index("ix_runs_state", "runs", ["state"])
    for table, columns, condition in (
        ("runs", ["worker_id"], "worker_id IS NOT NULL"),
        ("job_shares", ["workspace_id"], "workspace_id IS NOT NULL"),
        ("runs", ["job_id", "rank", "due_at", "id"], "due_at IS NOT NULL AND rung_at IS NULL"),
        ("runs", ["rung_at"], "rung_at IS NOT NULL"),
    ):
        name, where = f"ix_{table}_{'_'.join(columns)}", sa.text(condition)
        op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)


def _add_pruned_jobs() -> None:
    op.create_table(
        "pruned_jobs",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("runs", sa.Integer, nullable=False),
        sa.Column("ended_at", sa.Float, nullable=False),
        sa.Column("pruned_at", sa.Float, nullable=False),
        sa.Column("pruned_by", sa.Text, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("job_id", name="pk_pruned_jobs"),
    )


def _add_host_faults() -> None:
    op.add_column("runs", sa.Column("host_faults", sa.JSON))

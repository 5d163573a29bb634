"""Tables and columns for Message Batches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from alembic.script import ScriptDirectory

revision = "r06"
down_revision = "r05"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("lane", sa.Text))
    in_batch = sa.Column("batch", sa.Boolean, nullable=False, server_default="0")
    op.add_column("model_calls", in_batch)
    op.add_column("prices", sa.Column("batch", sa.Float, nullable=False, server_default="0.5"))
    _show_in_costs()
    _add_batches()


def _show_in_costs() -> None:
    """Price calls in batches in ``v_costs``, and say which these are."""
    connection = op.get_bind()
    is_sqlite = connection.dialect.name == "sqlite"
    script = op.get_context().script
    assert isinstance(script, ScriptDirectory)
    view = str(script.get_revision("r04").module._costs(is_sqlite))
    flag = "c.batch" if is_sqlite else "c.batch::integer"
    of_lane = "(CASE WHEN k.batch = 1 THEN p.batch ELSE 1.0 END)"
    factor = "(CASE WHEN k.us_only = 1 THEN p.us_inference ELSE 1.0 END)"
    changes = (
        ("t.scripted, t.us_only,", f"t.scripted, t.us_only, {flag} AS batch,", 1),
        (factor, f"{factor} * {of_lane}", 2),
        ("k.agent_type, k.label\n", "k.agent_type, k.label, k.batch\n", 1),
    )
    for old, new, count in changes:
        assert view.count(old) == count, old
        view = view.replace(old, new)
    if is_sqlite:
        connection.exec_driver_sql("DROP VIEW v_costs")
    create = "CREATE VIEW" if is_sqlite else "CREATE OR REPLACE VIEW"
    connection.exec_driver_sql(f"{create} v_costs AS {view}")


def _add_batches() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("account", sa.Text, nullable=False),
        sa.Column("workspace", sa.Text, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("asked_at", sa.Float, nullable=False),
        sa.Column("api_id", sa.Text),
        sa.Column("created_at", sa.Float),
        sa.Column("expires_at", sa.Float),
        sa.Column("checked_at", sa.Float, nullable=False),
        sa.Column("adopted", sa.Boolean, nullable=False, server_default="0"),
        sa.Column("not_ours", sa.JSON, nullable=False),
        sa.Column("cancelled_at", sa.Float),
        sa.Column("ended_at", sa.Float),
        sa.Column("outcome", sa.Text),
        sa.Column("detail", sa.Text, nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("id", name="pk_batches"),
    )
    op.create_table(
        "batch_collectors",
        sa.Column("account", sa.Text, nullable=False),
        sa.Column("worker_id", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("account", name="pk_batch_collectors"),
    )
    op.create_table(
        "batch_calls",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("asked_at", sa.Float, nullable=False),
        sa.Column("batch_id", sa.Text),
        sa.Column("result", sa.JSON),
        sa.Column("seconds", sa.Float),
        sa.Column("ended_at", sa.Float),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_batch_calls_run_id"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_batch_calls_job_id"),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name="fk_batch_calls_batch_id"),
        sa.PrimaryKeyConstraint("run_id", "number", name="pk_batch_calls"),
    )
    for table, name, column, condition in (
        ("batches", "account", "account", "ended_at IS NULL"),
        ("batch_calls", "asked_at", "asked_at", "batch_id IS NULL AND ended_at IS NULL"),
        ("batch_calls", "batch_id", "batch_id", "batch_id IS NOT NULL"),
        ("batch_calls", "result", "run_id", "result IS NOT NULL"),
    ):
        where = sa.text(condition)
        op.create_index(
            f"ix_{table}_{name}", table, [column], sqlite_where=where, postgresql_where=where
        )

"""Rules in snapshots, and approvals."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "jobs", sa.Column("rules_snapshot", sa.Integer(), server_default="1", nullable=False)
    )
    op.add_column(
        "runs", sa.Column("answer_count", sa.Integer(), server_default="0", nullable=False)
    )
    op.add_column("tool_calls", sa.Column("decision_snapshot", sa.Integer()))
    op.add_column("tool_calls", sa.Column("rule_position", sa.Integer()))
    op.add_column("tool_calls", sa.Column("matched", sa.Text()))
    op.add_column("tool_calls", sa.Column("decision_reason", sa.Text()))
    op.add_column("tool_calls", sa.Column("denial", sa.Text()))
    _index("jobs", ["rules_snapshot"], "rules_snapshot > 1")
    _permission_rules()
    _approvals()


def _permission_rules() -> None:
    """SQLite changes a CHECK only by recreating the table, which nothing refers to."""
    name = op.f("ck_permission_rules_effect")
    with op.batch_alter_table("permission_rules") as table:
        table.drop_constraint(name, type_="check")
        table.create_check_constraint(name, "effect IN ('allow', 'ask', 'deny')")
        table.add_column(sa.Column("why", sa.Text(), server_default="", nullable=False))
        table.add_column(sa.Column("origin", sa.Text(), server_default="job", nullable=False))
        table.add_column(sa.Column("run_id", sa.Text()))
        table.add_column(sa.Column("author", sa.Text(), server_default="", nullable=False))
        table.add_column(sa.Column("created_at", sa.Float()))
        table.add_column(sa.Column("added_in", sa.Integer(), server_default="1", nullable=False))
        table.add_column(sa.Column("revoked_in", sa.Integer()))
        table.add_column(sa.Column("revoked_by", sa.Text()))
        table.add_column(sa.Column("revoked_at", sa.Float()))
        table.create_foreign_key(op.f("fk_permission_rules_run_id"), "runs", ["run_id"], ["id"])


def _approvals() -> None:
    op.create_table(
        "approvals",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("message", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("input_digest", sa.Text(), nullable=False),
        sa.Column("setting", sa.JSON(), nullable=False),
        sa.Column("checked_snapshot", sa.Integer(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("group_key", sa.Text(), nullable=False),
        sa.Column("suggested_rule", sa.Text(), nullable=False),
        sa.Column("asked_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float()),
        sa.Column("notified_at", sa.Float()),
        sa.Column("answer", sa.Text()),
        sa.Column("answered_at", sa.Float()),
        sa.Column("answered_by", sa.Text()),
        sa.Column("answered_via", sa.Text()),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("edited_input", sa.JSON()),
        sa.Column("remembered", sa.Integer()),
        sa.CheckConstraint(
            "answer IN ('approved', 'denied', 'expired', 'cancelled')",
            name=op.f("ck_approvals_answer"),
        ),
        sa.CheckConstraint(
            "answered_via IN ('person', 'rule', 'timeout', 'cancel', 'end')",
            name=op.f("ck_approvals_via"),
        ),
        sa.CheckConstraint(
            "(answer IS NULL) = (answered_at IS NULL)", name=op.f("ck_approvals_answered")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_approvals_run_id")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_approvals_job_id")),
        sa.PrimaryKeyConstraint("run_id", "message", "position", name=op.f("pk_approvals")),
        sa.UniqueConstraint("id", name=op.f("uq_approvals_id")),
    )
    _index("approvals", ["job_id", "checked_snapshot"], "answer IS NULL")
    _index("approvals", ["expires_at"], "answer IS NULL")
    _index("approvals", ["asked_at"], "answer IS NULL AND notified_at IS NULL")


def _index(table: str, columns: list[str], condition: str) -> None:
    """An index of only the rows that meet the condition."""
    op.create_index(
        op.f(f"ix_{table}_{'_'.join(columns)}"),
        table,
        columns,
        sqlite_where=sa.text(condition),
        postgresql_where=sa.text(condition),
    )

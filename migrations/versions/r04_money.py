"""Tables and columns for money."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from alembic.script import ScriptDirectory

revision = "r04"
down_revision = "r03"


def upgrade() -> None:
    _add_index_of_begun_runs()
    _add_charges()
    _add_pauses_of_jobs()
    _add_cap_of_days()


def _add_index_of_begun_runs() -> None:
    is_begun = sa.text("started_at IS NOT NULL AND ended_at IS NULL")
    op.create_index(
        "ix_runs_begun", "runs", ["job_id"], sqlite_where=is_begun, postgresql_where=is_begun
    )


def _add_charges() -> None:
    """Add written-off charges, and show in ``v_costs`` the known tokens of calls of unknown usage."""
    op.add_column("model_calls", sa.Column("written_off_tokens", sa.BigInteger))
    connection = op.get_bind()
    is_sqlite = connection.dialect.name == "sqlite"
    if is_sqlite:
        connection.exec_driver_sql("DROP VIEW v_costs")
    create = "CREATE VIEW" if is_sqlite else "CREATE OR REPLACE VIEW"
    connection.exec_driver_sql(f"{create} v_costs AS {_costs(is_sqlite)}")


def _costs(sqlite: bool) -> str:
    """Return the query of the view: the first one, with the known parts of calls of unknown usage."""
    kinds = ("input_tokens", "cache_read_tokens", "cache_creation_tokens", "output_tokens")
    known = " + ".join(f"c.{kind}" for kind in kinds)
    bound = "c.worst_case - c.max_tokens"
    changes = {
        "c.input_tokens IS NULL AND c.charged_tokens > 0": f"c.charged_tokens > coalesce({known}, 0)",
        "c.worst_case, c.max_tokens, t.scripted": (
            f"CASE WHEN c.input_tokens IS NULL THEN {bound} ELSE 0 END AS unknown_prompt, "
            f"c.charged_tokens - coalesce({known}, {bound}) AS unknown_output, t.scripted"
        ),
        "(k.worst_case - k.max_tokens)": "k.unknown_prompt",
        "p.output * k.max_tokens": "p.output * k.unknown_output",
        "WHEN k.unknown = 0 THEN (": "WHEN k.unknown = 0 OR k.input_tokens IS NOT NULL THEN (",
    }
    script = op.get_context().script
    assert isinstance(script, ScriptDirectory)
    first = script.get_revision("r01")
    view = str(first.module._Views(sqlite).costs())
    for old, new in changes.items():
        assert view.count(old) == 1, old
        view = view.replace(old, new)
    return view


def _add_pauses_of_jobs() -> None:
    op.create_table(
        "job_pauses",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("detail", sa.Text, nullable=False, server_default=""),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("pending", sa.Text),
        sa.Column("counted_from", sa.Float, nullable=False, server_default="0"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_pauses_job_id"),
        sa.PrimaryKeyConstraint("job_id", name="pk_job_pauses"),
    )
    for table, columns, name in (
        ("job_pauses", ["pending"], "pending"),
        ("runs", ["job_id", "ended_at"], "ended_at"),
    ):
        is_there = sa.text(f"{name} IS NOT NULL")
        op.create_index(
            f"ix_{table}_{'_'.join(columns)}",
            table,
            columns,
            sqlite_where=is_there,
            postgresql_where=is_there,
        )


def _add_cap_of_days() -> None:
    def sums() -> list[sa.Column[int]]:
        names = ("spent_cost", "reserved_cost")
        return [sa.Column(n, sa.BigInteger, nullable=False, server_default="0") for n in names]

    op.create_table(
        "day_cap",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("usd", sa.Float),
        sa.Column("zone", sa.Text, nullable=False),
        sa.Column("day", sa.Text, nullable=False),
        *sums(),
        sa.Column("changes", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_day_cap"),
    )
    op.create_table(
        "capped_days",
        sa.Column("day", sa.Text, nullable=False),
        sa.Column("usd", sa.Float),
        *sums(),
        sa.PrimaryKeyConstraint("day", name="pk_capped_days"),
    )

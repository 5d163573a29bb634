"""Columns for what contained tool calls."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r03"
down_revision = "r02"


def upgrade() -> None:
    _add_containment_of_calls()


def _add_containment_of_calls() -> None:
    op.add_column("tool_calls", sa.Column("containment", sa.Text))
    _add_to_view("v_tool_calls", after="updated_input", columns="c.containment")


def _add_to_view(name: str, *, after: str, columns: str) -> None:
    """Add columns at the end of a view, behind its last one. Its definition is what the database has
    stored: as it was written, or as Postgres writes it again."""
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        kept = "SELECT sql FROM sqlite_master WHERE type = 'view' AND name = :name"
        drop, create = f"DROP VIEW {name}", ""
    else:
        kept = "SELECT pg_get_viewdef(CAST(:name AS regclass), true)"
        drop, create = "", f"CREATE OR REPLACE VIEW {name} AS "
    text = connection.execute(sa.text(kept), {"name": name}).scalar_one()
    first, rest = text.rsplit(f"AS {after}", 1)
    if drop:
        connection.exec_driver_sql(drop)
    connection.exec_driver_sql(f"{create}{first}AS {after}, {columns}{rest}")

"""How what belongs to a table is called, and which of its rows an index has."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


def where(condition: str) -> dict[str, Any]:
    """An index of only the rows that meet a condition, as both databases have them."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}

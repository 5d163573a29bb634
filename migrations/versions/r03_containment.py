"""Columns for what contained tool calls."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r03"
down_revision = "r02"


def upgrade() -> None:
    _add_containment_of_calls()
    _add_connections()
    _add_details_of_calls()


def _add_containment_of_calls() -> None:
    op.add_column("tool_calls", sa.Column("containment", sa.Text))
    _add_to_view("v_tool_calls", after="updated_input", columns="c.containment")


def _add_details_of_calls() -> None:
    op.add_column("tool_calls", sa.Column("details", sa.JSON))


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


def _add_connections() -> None:
    is_one = sa.text("type = 'connection'")
    op.create_index(
        "ix_events_connections", "events", ["at"], sqlite_where=is_one, postgresql_where=is_one
    )
    connection = op.get_bind()
    view = _connections(connection.dialect.name == "sqlite")
    connection.exec_driver_sql(f"CREATE VIEW v_connections AS {view}")


class _Data:
    """Values of an event's data, in the SQL of SQLite or of Postgres. An imported event may have data of
    any shape: a value of another type is NULL, and a NUL or a lone surrogate is its escape, as in the
    first views."""

    def __init__(self, sqlite: bool) -> None:
        data = "e.data" if sqlite else "(e.data)::text"
        for old, new in (("\\\\", "\\u005c"), ("\\u0000", "\\u005cu0000"), ("\\ud", "\\u005cud")):
            data = f"replace({data}, '{old}', '{new}')"
        self._sqlite = sqlite
        self._data = data if sqlite else f"({data})::json"

    def has(self, name: str) -> str:
        return f"({self._data} -> '{name}') IS NOT NULL"

    def text(self, name: str) -> str:
        if self._sqlite:
            at = f"{self._data}, '$.{name}'"
            return f"CASE WHEN json_type({at}) = 'text' THEN json_extract({at}) END"
        is_text = f"json_typeof({self._data} -> '{name}') = 'string'"
        return f"CASE WHEN {is_text} THEN {self._data} ->> '{name}' END"

    def integer(self, name: str) -> str:
        return self._number(name, "integer", "[0-9]{1,18}", "bigint")

    def real(self, name: str) -> str:
        return self._number(name, "real", r"[0-9]{1,10}\.[0-9]{1,7}", "double precision")

    def _number(self, name: str, sqlite_type: str, pattern: str, as_type: str) -> str:
        if self._sqlite:
            at = f"{self._data}, '$.{name}'"
            is_short = f"length({self._data} -> '$.{name}') < 19"
            is_number = f"json_type({at}) = '{sqlite_type}' AND {is_short}"
            return f"CASE WHEN {is_number} THEN json_extract({at}) END"
        value = f"({self._data} ->> '{name}')"
        return f"CASE WHEN {value} ~ '^{pattern}$' THEN CAST({value} AS {as_type}) END"


def _connections(sqlite: bool) -> str:
    """Return the query of the view."""
    data = _Data(sqlite)
    at = f"coalesce({data.real('at')}, e.at)"
    iso = f"strftime('%Y-%m-%dT%H:%M:%SZ', CAST({at} AS INTEGER), 'unixepoch')"
    if not sqlite:
        utc = f"to_timestamp(floor({at})) AT TIME ZONE 'UTC'"
        iso = f"""to_char({utc}, 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"""
    of_run = "CASE WHEN r.depth > 0 THEN substr(r.id, length(r.root_run) + 2) ELSE '' END"
    of_call = f"""CASE WHEN r.depth > 0 THEN {of_run} || '.' ELSE '' END
        || CAST((SELECT count(*) FROM tool_calls n WHERE n.run_id = c.run_id
            AND (n.message, n.position) <= (c.message, c.position)) AS TEXT)"""
    call_id = "replace(c.run_id, 'run_', 'call_') || '_' || c.turn || '_' || (c.position + 1)"
    return f"""SELECT e.run_id, r.job_id, r.item_key AS item, e.number,
        CASE WHEN {data.has("hook_run")} THEN 'hook' WHEN {data.has("verification")} THEN 'verify'
            ELSE 'call' END AS made_by,
        {data.integer("turn")} AS turn, {call_id} AS call_id, c.name AS tool,
        {at} AS at, {iso} AS at_text, {data.text("host")} AS host, {data.integer("port")} AS port,
        {data.text("outcome")} AS outcome, {data.text("why")} AS why,
        {data.integer("count")} AS connections, {data.integer("sent")} AS sent_bytes,
        {data.integer("received")} AS received_bytes,
        coalesce(r.root_run, r.id) AS root_run, r.parent_run, r.depth, r.agent_type,
        CASE WHEN c.run_id IS NULL THEN {of_run} ELSE {of_call} END AS label
    FROM events e JOIN runs r ON r.id = e.run_id
    LEFT JOIN tool_calls c ON c.run_id = e.run_id AND c.turn = {data.integer("turn")}
        AND c.position = {data.integer("call_index")}
    WHERE e.type = 'connection'"""

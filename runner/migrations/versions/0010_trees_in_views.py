"""Views say which tree of sub-agents a row is of, and there is one of the hooks that ran.

What stays of the views is migration 0006's. New columns come last: Postgres replaces a view only so,
and one that is dropped would lose the rights that were granted on it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_ROOT = "coalesce(r.root_run, r.id) AS root_run"
_TREE = f"{_ROOT}, r.parent_run, r.depth, r.agent_type"
_RUN_LABEL = "CASE WHEN r.depth > 0 THEN substr(r.id, length(r.root_run) + 2) ELSE '' END"
_OF_RUN = f"{_TREE}, {_RUN_LABEL} AS label"
_CALL_LABEL = """CASE WHEN r.depth > 0 THEN substr(r.id, length(r.root_run) + 2) || '.' ELSE '' END
    || CAST((SELECT count(*) FROM tool_calls n WHERE n.run_id = c.run_id
        AND (n.message, n.position) <= (c.message, c.position)) AS TEXT)"""
_OF_CALL = f"{_TREE}, {_CALL_LABEL} AS label"
_OF_NONE = """CAST(NULL AS TEXT) AS root_run, CAST(NULL AS TEXT) AS parent_run,
    CAST(NULL AS INTEGER) AS depth, CAST(NULL AS TEXT) AS agent_type, CAST(NULL AS TEXT) AS label"""
# Of what a child's conversation began with, only the last block is its own.
_FROM_PARENT = """(r.depth > 0 AND b.turn = 0 AND EXISTS (SELECT 1 FROM blocks later
    WHERE later.run_id = b.run_id AND later.turn = 0
        AND (later.message, later.position) > (b.message, b.position)))"""


def upgrade() -> None:
    connection = op.get_bind()
    is_sqlite = connection.dialect.name == "sqlite"
    views = import_module("runner.migrations.versions.0006_views")._Views(is_sqlite)
    create = "CREATE VIEW" if is_sqlite else "CREATE OR REPLACE VIEW"
    for name, query in (
        ("v_runs", _runs(views)),
        ("v_turns", _insert(views.turns(), _OF_RUN, "FROM (\n            SELECT run_id, turn")),
        ("v_messages", _messages(views)),
        ("v_tool_calls", _tool_calls(views)),
        ("v_decisions", _decisions(views)),
        ("v_costs", _costs(views)),
        ("v_events", _events(views)),
    ):
        if is_sqlite:
            connection.exec_driver_sql(f"DROP VIEW {name}")
        connection.exec_driver_sql(f"{create} {name} AS {query}")
    connection.exec_driver_sql(f"CREATE VIEW v_hooks AS {_hooks(views)}")


def _insert(query: str, columns: str, before: str) -> str:
    """The query with these columns last: they go before this FROM."""
    head, found, tail = query.partition(before)
    assert found, before
    assert before not in tail, before
    return f"{head.rstrip()}, {columns} {before}{tail}"


def _runs(views: Any) -> str:
    asked = f"""(SELECT {views._call_id("p")} FROM tool_calls p WHERE p.run_id = r.parent_run
        AND p.message = r.parent_message AND p.position = r.parent_position) AS parent_call"""
    query = _insert(views.runs(), f"{_OF_RUN}, {asked}", "FROM runs r JOIN jobs ")
    head, own, tail = query.partition("coalesce(r.model, ")
    assert own
    return f"{head}{own}{_model_of_type(views)}, {tail}"


def _model_of_type(views: Any) -> str:
    """The model that a sub-agent's type has of its own."""
    each = "json_each(s.readable, '$.agents')"
    if not views._sqlite:
        each = "json_array_elements(s.readable::json -> 'agents')"
    name, model = views._string("a.value", "name"), views._string("a.value", "model")
    spec = f"SELECT {views._readable('j.spec')} AS readable FROM jobs j WHERE j.id = r.job_id"
    found = f"SELECT {model} FROM ({spec}) AS s, {each} AS a WHERE {name} = r.agent_type"
    return f"CASE WHEN r.agent_type IS NOT NULL THEN ({found}) END"


def _messages(views: Any) -> str:
    query = _insert(views.messages(), _OF_RUN, "FROM blocks b JOIN runs r ")
    head, is_copied, tail = query.partition(" THEN 1 ELSE 0 END AS copied")
    assert is_copied
    return f"{head} OR {_FROM_PARENT}{is_copied}{tail}"


def _tool_calls(views: Any) -> str:
    updated = f"{views._plain('c.updated_input')} AS updated_input"
    return _insert(views.tool_calls(), f"{_OF_CALL}, {updated}", "FROM tool_calls c JOIN runs r ")


def _decisions(views: Any) -> str:
    by_hook = f"{views._flag('a.by_hook')} AS asked_by_hook"
    updated = f"{views._plain('c.updated_input')} AS updated_input"
    columns = f"{_OF_CALL}, {updated}, {by_hook}"
    return _insert(views.decisions(), columns, "FROM tool_calls c JOIN runs r ")


def _costs(views: Any) -> str:
    query = _insert(views.costs(), _OF_RUN, "FROM model_calls c JOIN runs r ")
    names = ("root_run", "parent_run", "depth", "agent_type", "label")
    return _insert(query, ", ".join(f"k.{name}" for name in names), "FROM calls k ")


def _events(views: Any) -> str:
    of_runs = _insert(views.events(), _OF_RUN, "FROM events e JOIN runs r ")
    return _insert(of_runs, _OF_NONE, "FROM job_events e ")


def _hooks(views: Any) -> str:
    label = f"CASE WHEN c.run_id IS NULL THEN {_RUN_LABEL} ELSE {_CALL_LABEL} END AS label"
    return f"""
    SELECT h.run_id, r.job_id, r.item_key AS item, h.number, h.event, h.name, h.turn,
        {views._call_id("c")} AS call_id, c.name AS tool, h.attempt,
        {views._time("h.started_at", "started_at")}, {views._time("h.ended_at", "ended_at")},
        h.duration AS seconds, h.outcome, h.exit_code, h.decision, h.reason, h.context,
        {views._flag("h.stops")} AS stops, h.output, h.errors, h.tree_before, h.tree_after,
        {_TREE}, {label}
    FROM hook_runs h JOIN runs r ON r.id = h.run_id
    LEFT JOIN tool_calls c ON c.run_id = h.run_id AND c.message = h.message
        AND c.position = h.position
    """

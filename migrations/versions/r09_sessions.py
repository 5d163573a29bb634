"""Tables and columns for imported sessions of Claude Code."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from alembic.script import ScriptDirectory

revision = "r09"
down_revision = "r08"

_SESSIONS = "claude-code"


def upgrade() -> None:
    _add_tables()
    op.add_column("model_calls", sa.Column("message_id", sa.Text))
    has_id = sa.text("message_id IS NOT NULL")
    op.create_index(
        "ix_model_calls_message_id",
        "model_calls",
        ["message_id"],
        sqlite_where=has_id,
        postgresql_where=has_id,
    )
    _add_speakers()
    _note_sessions()


def _add_tables() -> None:
    op.create_table(
        "sessions",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text),
        sa.Column("title", sa.Text),
        sa.Column("system", sa.JSON, nullable=False),
        sa.Column("notes", sa.JSON, nullable=False),
        sa.Column("stated_usd", sa.Float),
        sa.Column("under_reported", sa.Integer, nullable=False, server_default="0"),
        sa.Column("files_digest", sa.Text),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_sessions_run_id"),
        sa.PrimaryKeyConstraint("run_id", name="pk_sessions"),
    )
    for name in ("session_id", "files_digest"):
        op.create_index(f"ix_sessions_{name}", "sessions", [name])
    op.create_table(
        "session_lines",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("file", sa.Text, nullable=False),
        sa.Column("part", sa.Integer, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("compressed", sa.LargeBinary, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_session_lines_run_id"),
        sa.PrimaryKeyConstraint("run_id", "file", "part", name="pk_session_lines"),
    )


def _add_speakers() -> None:
    """Add who said a block, to the table and at the end of its view."""
    op.add_column("blocks", sa.Column("spoken_by", sa.Text))
    connection = op.get_bind()
    is_sqlite = connection.dialect.name == "sqlite"
    script = op.get_context().script
    assert isinstance(script, ScriptDirectory)
    first = script.get_revision("r01")
    view = str(first.module._Views(is_sqlite).messages())
    last = "FROM blocks b JOIN runs r"
    assert view.count(last) == 1
    view = view.replace(last, f", b.spoken_by {last}")
    if is_sqlite:
        connection.exec_driver_sql("DROP VIEW v_messages")
    create = "CREATE VIEW" if is_sqlite else "CREATE OR REPLACE VIEW"
    connection.exec_driver_sql(f"{create} v_messages AS {view}")


def _note_sessions() -> None:
    """Note the sessions that are here, so that they are recognised when they are imported again."""
    connection = op.get_bind()
    text, json = sa.Text(), sa.JSON()
    session_columns = ("run_id", "session_id", "agent_id", "title")
    tables = {
        "jobs": sa.table("jobs", *(sa.column(name, text) for name in ("id", "key", "source"))),
        "runs": sa.table("runs", *(sa.column(name, text) for name in ("id", "job_id"))),
        "run_items": sa.table("run_items", sa.column("run_id", text), sa.column("item", json)),
        "sessions": sa.table(
            "sessions",
            *(sa.column(name, text) for name in session_columns),
            *(sa.column(name, json) for name in ("system", "notes")),
        ),
    }
    jobs, runs, items = tables["jobs"].c, tables["runs"].c, tables["run_items"].c
    query = (
        sa.select(items.run_id, items.item)
        .join_from(tables["run_items"], tables["runs"], runs.id == items.run_id)
        .join(tables["jobs"], jobs.id == runs.job_id)
        .where(jobs.key == _SESSIONS, jobs.source == _SESSIONS)
    )
    for run_id, item in connection.execute(query).all():
        session = item.get("claude_code") if isinstance(item, dict) else None
        if not isinstance(session, dict) or not isinstance(session.get("session_id"), str):
            continue
        named = {name: session.get(name) for name in ("session_id", "agent_id", "title")}
        stored = {name: _storable(value) for name, value in named.items()}
        row = {"run_id": run_id, **stored, "system": "", "notes": ""}
        connection.execute(sa.insert(tables["sessions"]).values(row))


def _storable(value: object) -> str | None:
    """Return a text as a column can hold it: no NUL, and no half of a surrogate pair."""
    if not isinstance(value, str):
        return None
    return value.replace("\0", "").encode("utf-8", "replace").decode()

"""Runs that wait for a person, as the engine leaves them."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection, insert, select, update

from runner.app.handle import App
from runner.core.conversation import Tool
from runner.core.events import summarise_input
from runner.permissions import Rule, ToolContext, digest_of
from runner.settings import Settings
from runner.store import ids
from runner.store import jobs as jobs_store
from runner.store.database import Database
from runner.store.tables import approvals, blocks, runs, tool_calls
from tests.store.asked import approval_row as approval_row
from tests.store.asked import run_ids
from tests.store.examples import NOW, SPEC, submission

ASKING = replace(
    SPEC,
    tools=(
        Tool("Bash", "Runs a command.", {"type": "object"}),
        Tool("Write", "Writes a file.", {"type": "object", "required": ["file_path"]}),
    ),
    rules=(
        Rule("ask", "Bash(uv *)", why="It changes the lock file."),
        Rule("deny", "Bash(rm *)", why="Nothing is deleted."),
        Rule("ask", "Write"),
    ),
)


def app_on(database: Database) -> App:
    """The app on a database that a test has opened."""
    return App(Settings.load(), database)


def submit_runs(database: Database, *keys: str) -> list[str]:
    """A job with a run for each key; their ids."""
    job_id = jobs_store.submit(database, submission(*keys, spec=ASKING), NOW)
    return run_ids(database, job_id)


def job_of(database: Database, run_id: str) -> str:
    query = select(runs.c.job_id).where(runs.c.id == run_id)
    return str(database.read(lambda connection: connection.execute(query).scalar_one()))


def ask(
    database: Database,
    run_id: str,
    command: str = "uv lock",
    *,
    position: int = 0,
    tool: str = "Bash",
    group: str | None = None,
    rule: str | None = None,
    expires_at: float | None = None,
    **arguments: Any,
) -> str:
    """A call of a run's reply is asked about, and the run waits; the approval's id.

    Args:
        group: what it is grouped by, and rule: the rule that is suggested; the command itself.
    """
    given = {"command": command, **arguments} if tool == "Bash" else arguments
    key = {"run_id": run_id, "message": 1, "position": position}
    approval_id = ids.new("apr", NOW)

    def work(connection: Connection) -> None:
        _add_call(connection, key, tool, given, decision="ask", rule="Bash(uv *)", rule_position=0)
        row = {
            **key,
            "job_id": connection.execute(select(runs.c.job_id).where(runs.c.id == run_id)).scalar(),
            "id": approval_id,
            "turn": 1,
            "tool": tool,
            "input_digest": digest_of(given),
            "setting": asdict(ToolContext()),
            "checked_snapshot": 1,
            "summary": summarise_input(given),
            "group_key": command if group is None else group,
            "suggested_rule": f"Bash({command})" if rule is None else rule,
            "asked_at": NOW + position,
            "expires_at": expires_at,
        }
        connection.execute(insert(approvals).values(row))
        waiting = {"state": "waiting", "reason": "approval", "due_at": None, "message_count": 2}
        connection.execute(update(runs).where(runs.c.id == run_id).values(**waiting))

    database.write(work)
    return approval_id


def refuse(database: Database, run_id: str, command: str, *, position: int = 0) -> None:
    """A call of a run's reply is denied by a rule."""
    key = {"run_id": run_id, "message": 1, "position": position}

    def work(connection: Connection) -> None:
        given = {"command": command}
        _add_call(
            connection, key, "Bash", given, decision="deny", rule="Bash(rm *)", rule_position=1
        )
        connection.execute(
            update(runs).where(runs.c.id == run_id).values(denials=runs.c.denials + 1)
        )

    database.write(work)


def _add_call(
    connection: Connection, key: dict[str, Any], tool: str, given: dict[str, Any], **decided: Any
) -> None:
    use = {"type": "tool_use", "id": f"toolu_{key['position']}", "name": tool, "input": given}
    block = {"role": "assistant", "type": "tool_use", "turn": 1, "content": use, "created_at": NOW}
    connection.execute(insert(blocks).values(key | block))
    call = {"turn": 1, "tool_use_id": use["id"], "name": tool}
    matched = {"matched": given.get("command"), "decision_snapshot": 1}
    connection.execute(insert(tool_calls).values(key | call | matched | decided))


def call_id(run_id: str, position: int = 0) -> str:
    return ids.call_id(run_id, 1, position)

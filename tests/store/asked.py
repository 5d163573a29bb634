"""Runs that wait for answers, stored as the journal leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from runner.core.conversation import Tool
from runner.core.permissions import Rule, Setting, digest_of
from runner.core.spec import Asking
from runner.store import ids
from runner.store.database import Database
from runner.store.rules import insert_rules, list_rules, lock_rules, new_snapshot, setting_to_json
from runner.store.steer import jobs as jobs_store
from runner.store.steer.control import locked_runs
from runner.store.tables import approvals, blocks, events, jobs, runs, tool_calls
from tests.store.examples import NOW, SPEC, submission

BASH = Tool("Bash", "Runs a command.", {"type": "object"}, read_only=False)
ASKING = replace(
    SPEC,
    tools=(*SPEC.tools, BASH),
    rules=(Rule("allow", "Read"), Rule("ask", "Bash"), Rule("deny", "Bash(rm *)")),
    asking=Asking(default="ask"),
)
SETTING = Setting(workspace="/w")
MESSAGE = 1


def submit_asking(database: Database, *keys: str, asking: Asking = ASKING.asking) -> str:
    """A job in which every command is asked about; its id."""
    spec = replace(ASKING, asking=asking)
    return jobs_store.submit(database, submission(*keys, spec=spec), NOW, author="ada")


def run_ids(database: Database, job_id: str) -> list[str]:
    query = select(runs.c.id).where(runs.c.job_id == job_id).order_by(runs.c.id)
    return list(database.read(lambda connection: connection.execute(query).scalars().all()))


def add_rules(database: Database, job_id: str, *rules: Rule) -> int:
    """Store rules by Bo; the number of the snapshot that begins with them."""

    def work(connection: Connection) -> int:
        lock_rules(connection, job_id)
        snapshot = new_snapshot(connection, job_id)
        insert_rules(connection, job_id, rules, "bo", NOW + 1, snapshot)
        return snapshot

    return database.write(work)


def ask(
    database: Database,
    run_id: str,
    *commands: str,
    expires_at: float | None = None,
    suggested: str | None = None,
    message: int = MESSAGE,
) -> list[str]:
    """A reply with these commands, all of them asked about, for which the run waits. The ids of the
    questions."""

    def work(connection: Connection) -> list[str]:
        (run,) = locked_runs(connection, [run_id])
        job_id = run.job_id
        snapshot = connection.execute(
            select(jobs.c.rules_snapshot).where(jobs.c.id == job_id)
        ).scalar_one()
        asked = []
        connection.execute(insert(blocks), [_text(run_id, message)])
        for position, command in enumerate(commands):
            asked.append(ids.new("apr", NOW))
            key = {"run_id": run_id, "message": message, "position": position, "turn": 1}
            arguments = {"command": command}
            connection.execute(insert(blocks), [_tool_use(run_id, message, position, arguments)])
            connection.execute(
                insert(tool_calls).values(
                    **key, tool_use_id=f"toolu_{position}", name="Bash", decision="ask", rule="Bash"
                )
            )
            connection.execute(
                insert(approvals).values(
                    **key,
                    job_id=job_id,
                    id=asked[-1],
                    tool="Bash",
                    input_digest=digest_of(arguments),
                    setting=setting_to_json(SETTING),
                    checked_snapshot=snapshot,
                    summary=command,
                    group_key=f"Bash {command}",
                    suggested_rule=f"Bash({command})" if suggested is None else suggested,
                    asked_at=NOW,
                    expires_at=expires_at,
                )
            )
        connection.execute(
            update(runs)
            .where(runs.c.id == run_id)
            .values(state="waiting", reason="approval", due_at=None)
        )
        return asked

    return database.write(work)


def ask_all(database: Database, job_id: str, command: str, **options: Any) -> list[str]:
    """Each run of the job waits for an answer about the same command."""
    return [ask(database, run_id, command, **options)[0] for run_id in run_ids(database, job_id)]


def remembered(database: Database, job_id: str) -> list[tuple[str, str, str | None]]:
    """The rules that were added to those that the job began with: effect, text and run."""
    rules = list_rules(database, job_id)[len(ASKING.rules) :]
    return [(rule.effect, rule.rule, rule.run_id) for rule in rules]


def approval_row(database: Database, approval_id: str) -> Row[Any]:
    query = select(approvals).where(approvals.c.id == approval_id)
    return database.read(lambda connection: connection.execute(query).one())


def answers(database: Database, approval_ids: Sequence[str]) -> list[str | None]:
    return [approval_row(database, each).answer for each in approval_ids]


def answer_events(database: Database, run_id: str) -> list[dict[str, Any]]:
    query = (
        select(events.c.data)
        .where(events.c.run_id == run_id, events.c.type == "approval_answered")
        .order_by(events.c.number)
    )
    return list(database.read(lambda connection: connection.execute(query).scalars().all()))


def _text(run_id: str, message: int) -> dict[str, Any]:
    return _block(run_id, message, 0, {"type": "text", "text": "I shall run commands."})


def _tool_use(
    run_id: str, message: int, position: int, arguments: dict[str, Any]
) -> dict[str, Any]:
    content = {"type": "tool_use", "id": f"toolu_{position}", "name": "Bash", "input": arguments}
    return _block(run_id, message, position + 1, content)


def _block(run_id: str, message: int, position: int, content: dict[str, Any]) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "message": message,
        "position": position,
        "role": "assistant",
        "type": content["type"],
        "turn": 1,
        "content": content,
        "created_at": NOW,
    }

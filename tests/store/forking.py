"""A run of three turns, and forks of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import select

from runner.core.conversation import Message, ToolResult
from runner.core.entries import SnapshotRecorded, ToolFinished
from runner.core.spec import JobSpec
from runner.core.steps import RunTools
from runner.core.workspace import Workspace
from runner.permissions import Rule
from runner.store.database import Database
from runner.store.fork import fork
from runner.store.tables import blocks, metadata, runs
from tests.store.asked import BASH
from tests.store.attempts import Attempt, claim, submit_one, text, tool_use
from tests.store.examples import NOW, SPEC

RECORDED = replace(
    SPEC,
    tools=(*SPEC.tools, BASH),
    rules=(Rule("allow", "Read"), Rule("allow", "Bash"), Rule("deny", "Write")),
    workspace=Workspace("/repo", "copy"),
)


LATER = NOW + 100


SAID = {"text": "Go on."}


def three_turns(database: Database, spec: JobSpec = RECORDED) -> Attempt:
    """Two turns with a command each, and a last word."""
    attempt = claim(database, submit_one(database, spec=spec))
    attempt.append(SnapshotRecorded("tree 0", "created"))
    for number in (1, 2):
        attempt.reply(tool_use(number, "Bash", command="make"), stop="tool_use")
        assert isinstance(attempt.effect, RunTools)
        attempt.append(ToolFinished(0, ToolResult(f"made {number}"), f"tree {number}"))
    return attempt.reply(text("Done."))


def forked(database: Database, attempt: Attempt, turn: int, **options: Any) -> str:
    return fork(database, attempt.lease.run_id, turn, LATER, **options).id


def begun(database: Database, run_id: str) -> Attempt:
    return claim(database, run_id, LATER)


def rows(database: Database, run_id: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of a run, its own too, by table."""

    def work(connection: Any) -> dict[str, list[tuple[Any, ...]]]:
        found = {}
        for table in metadata.sorted_tables:
            column = table.c.get("run_id", table.c.id if table is runs else None)
            if column is not None:
                found_rows = connection.execute(select(table).where(column == run_id))
                found[table.name] = sorted(map(repr, map(tuple, found_rows)))
        return found

    return database.read(work)


def copied(database: Database, table: Any, run_id: str) -> list[dict[str, Any]]:
    query = select(table).where(table.c.run_id == run_id).order_by(*table.primary_key.columns)
    found = database.read(lambda c: [dict(row) for row in c.execute(query).mappings()])
    return [{name: value for name, value in row.items() if name != "run_id"} for row in found]


def contents(messages: tuple[Message, ...]) -> list[Any]:
    return [
        [block.get("text", block.get("content", block["type"])) for block in message.blocks]
        for message in messages
    ]


# --- what is copied ---


def begun_input(database: Database, run_id: str) -> dict[str, Any]:
    query = select(blocks.c.content).where(blocks.c.run_id == run_id, blocks.c.type == "tool_use")
    return dict(database.read(lambda c: c.execute(query).scalar_one())["input"])

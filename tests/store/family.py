"""Runs that have started others, as the store leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import insert, select

from runner.core.agents import AgentType, child_id, lineage
from runner.core.conversation import ToolResult
from runner.core.entries import ToolFinished
from runner.core.state import Progress
from runner.store.database import Database
from runner.store.run_state import progress_to_json
from runner.store.tables import blocks, run_items, runs
from tests.store.attempts import Attempt, claim, submit_one, text, tool_use
from tests.store.examples import NOW, SPEC

_FRESH: dict[str, Any] = {
    "state": "queued",
    "reason": "submitted",
    "detail": "",
    "due_at": NOW,
    "worker_id": None,
    "last_worker_id": None,
    "started_at": None,
    "ended_at": None,
    "attempt": 0,
    "revision": 0,
    "event_count": 0,
    "message_count": 1,
    "turns": 0,
    "denials": 0,
    "input_tokens": 0,
    "cache_read_tokens": 0,
    "cache_creation_tokens": 0,
    "output_tokens": 0,
    "charged_tokens": 0,
    "progress": progress_to_json(Progress()),
}


def start_child(
    database: Database,
    parent: str,
    number: int,
    *,
    message: int | None = 1,
    position: int | None = 0,
    agent_type: str = "reviewer",
    prompt: str = "Look at it.",
    snapshot: Sequence[str] = (),
) -> str:
    """A child of a run, due, that the call at ``message`` and ``position`` asked for; its id.

    Args:
        snapshot: what was said in its parent, the user's words and the model's by turns, which it has
            before its prompt.
    """
    run_id = child_id(parent, number)

    def work(connection: Any) -> None:
        row = connection.execute(select(runs).where(runs.c.id == parent)).mappings().one()
        own = {
            "id": run_id,
            "item_key": f"{row['item_key']}+{number}",
            "parent_run": parent,
            "parent_message": message,
            "parent_position": position,
            "root_run": lineage(parent)[0],
            "depth": len(lineage(parent)),
            "child_number": number,
            "agent_type": agent_type,
            "message_count": len(snapshot) + 1,
        }
        connection.execute(insert(runs).values({**row, **_FRESH, **own}))
        connection.execute(insert(run_items).values(run_id=run_id, item=None))
        for place, words in enumerate((*snapshot, prompt)):
            block = {
                "run_id": run_id,
                "message": place,
                "position": 0,
                "role": ("user", "assistant")[place % 2],
                "type": "text",
                "turn": 0,
                "content": {"type": "text", "text": words},
                "created_at": NOW,
            }
            connection.execute(insert(blocks).values(block))

    database.write(work)
    return run_id


def asking(number: int, description: str, agent_type: str = "reviewer") -> dict[str, Any]:
    """A block that asks for a sub-agent."""
    return tool_use(
        number, "Agent", description=description, prompt="Look at it.", agent_type=agent_type
    )


def parent_with_two(
    database: Database,
    key: str = "one",
    *,
    description: str = "Review a",
    system: str | None = None,
) -> tuple[str, str, str]:
    """A run whose first reply asked for two sub-agents that have been started; their ids. The parent's
    attempt goes on.

    Args:
        description: of the first. system: its system prompt.
    """
    agents = (
        AgentType("reviewer", "Reviews.", system=system),
        AgentType("tester", "Tests.", model="claude-small"),
    )
    parent = submit_one(database, key, spec=replace(SPEC, agents=agents))
    claim(database, parent).reply(
        asking(1, description), asking(2, "Test b", "tester"), stop="tool_use"
    )
    first = start_child(database, parent, 1, position=0)
    second = start_child(database, parent, 2, position=1, agent_type="tester")
    return parent, first, second


def work_child(database: Database, run_id: str) -> Attempt:
    """A child makes two calls of one reply, and has the results of both."""
    attempt = claim(database, run_id)
    attempt.reply(tool_use(1), tool_use(2), stop="tool_use")
    return attempt.append(*(ToolFinished(index, ToolResult("read")) for index in (0, 1)))


def end_child(database: Database, run_id: str, words: str = "It is well.") -> Attempt:
    """A child works and ends."""
    return work_child(database, run_id).reply(text(words))

"""Runs with sub-agents, brought where a test wants them by the journal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import Row, select

from runner.core.agents import AGENT_SOURCE, AGENT_TOOL, AgentType
from runner.core.budget import Limits
from runner.core.conversation import Block, Tool
from runner.core.run import Waiting
from runner.core.spec import JobSpec
from runner.core.steps import Done
from runner.permissions import Rule
from runner.store.database import Database
from runner.store.tables import blocks, events, runs
from tests.store.asked import BASH
from tests.store.attempts import Attempt, Tariffs, claim, submit_one, text, tool_use
from tests.store.examples import NOW, SPEC

AGENT = Tool(AGENT_TOOL, "Starts a sub-agent.", {"type": "object"}, source=AGENT_SOURCE)
REVIEWER = AgentType("reviewer", "Looks at what another made.")
TESTER = AgentType(
    "tester",
    "Tests it.",
    system="Test it.",
    model="claude-other",
    tools=("Read", AGENT_TOOL),
    rules=(Rule("deny", "Read(secret)"),),
    snapshot=True,
    max_turns=7,
    token_ceiling=30_000,
    working_time=60.0,
    deadline=600.0,
)
PARENT: JobSpec = replace(
    SPEC,
    tools=(*SPEC.tools, BASH, AGENT),
    rules=(Rule("allow", "Read"), Rule("allow", AGENT_TOOL), Rule("ask", "Bash")),
    limits=Limits(token_ceiling=1_000_000, max_output_tokens=2_000),
    agents=(REVIEWER, TESTER),
)
WAITS = Done(Waiting("children"))


def asks(number: int, agent_type: str = "reviewer", prompt: str = "Look.", **more: Any) -> Block:
    """A call for a sub-agent."""
    given = {"description": "look", "prompt": prompt, "agent_type": agent_type} | more
    return tool_use(number, AGENT_TOOL, **given)


def submit_parent(database: Database, spec: JobSpec = PARENT) -> str:
    """A job of one run whose agent may have sub-agents; the run's id."""
    return submit_one(database, "src/a.py", spec=spec)


def start(
    database: Database,
    *calls: Block,
    spec: JobSpec = PARENT,
    run_id: str | None = None,
    now: float = NOW,
    tariffs: Tariffs | None = None,
) -> Attempt:
    """A run whose first reply makes these calls (one for a reviewer), which has gone as far as it can."""
    run_id = run_id or submit_parent(database, spec)
    return claim(database, run_id, now, tariffs).reply(*(calls or (asks(1),)), stop="tool_use")


def end(database: Database, run_id: str, said: str = "Fine.", now: float = NOW) -> Attempt:
    """A run that has only begun says its last."""
    return claim(database, run_id, now).reply(text(said))


def tree_of(database: Database, run_id: str) -> dict[str, Row[Any]]:
    """The rows of all that a run has started, by id, in the order of their numbers."""
    query = select(runs).where(runs.c.root_run == run_id.split(".")[0])
    rows = database.read(lambda connection: connection.execute(query).all())
    return {row.id: row for row in sorted(rows, key=lambda row: (row.depth, row.child_number))}


def said_in(database: Database, run_id: str) -> list[tuple[str, list[Block]]]:
    """The messages of a run, with their roles."""
    query = select(blocks).where(blocks.c.run_id == run_id)
    rows = database.read(
        lambda connection: connection.execute(
            query.order_by(blocks.c.message, blocks.c.position)
        ).all()
    )
    found: dict[int, tuple[str, list[Block]]] = {}
    for row in rows:
        found.setdefault(row.message, (row.role, []))[1].append(row.content)
    return list(found.values())


def told(database: Database, run_id: str, kind: str) -> list[dict[str, Any]]:
    """The data of a run's events of one type."""
    query = select(events.c.data).where(events.c.run_id == run_id, events.c.type == kind)
    return list(
        database.read(
            lambda connection: connection.execute(query.order_by(events.c.number)).scalars().all()
        )
    )

"""A run with sub-agents that is loaded is the run that was folded while it grew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from runner.core.agents import AGENT_TOOL, SPLIT_SOURCE, SPLIT_TOOL, Coordinator
from runner.core.budget import Limits
from runner.core.commands import Target
from runner.core.conversation import Tool
from runner.core.run import Waiting
from runner.core.steps import CallModel, Done
from runner.permissions import Rule
from runner.queries.transcript import sent_request
from runner.store.children import attend
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.tables import runs
from tests.store.attempts import claim, text
from tests.store.children.family import AGENT, TESTER
from tests.store.driving import INPUTS, SPEC, TOOLS, Driver
from tests.store.test_journal import check_events_and_charges, histories

REVIEWER = replace(TESTER, name="reviewer", tools=None, rules=(), snapshot=False, model=None)
ASKED = [
    {"description": "look", "prompt": "Look.", "agent_type": "reviewer"},
    {"description": "test", "prompt": "Test\u0000 it.", "agent_type": "tester"},
    {"description": "copy", "prompt": "Look.", "agent_type": "reviewer", "snapshot": True},
    {"description": "none", "prompt": "Look.", "agent_type": "nobody"},
]
PARTS = {"parts": [{"description": part, "prompt": f"Do {part}."} for part in "abc"]}
SPLIT = Tool(SPLIT_TOOL, "Splits the task.", {"type": "object"}, source=SPLIT_SOURCE)
FAMILY = replace(
    SPEC,
    tools=(*TOOLS, AGENT),
    rules=(*SPEC.rules, Rule("ask", "Agent(tester)")),
    agents=(REVIEWER, TESTER),
    limits=Limits(max_turns=8, token_ceiling=2_000_000, max_output_tokens=5_000),
)


class FamilyDriver(Driver):
    """Its model has sub-agents work, which end when the run waits for them."""

    names = ("Read", AGENT_TOOL, AGENT_TOOL, AGENT_TOOL, "Nothing", SPLIT_TOOL)

    def end_wait(self, effect: Done) -> bool:
        if effect != Done(Waiting("children")):
            return super().end_wait(effect)
        query = select(runs.c.id).where(
            runs.c.root_run == self.run_id, runs.c.state.in_(["queued", "running"])
        )
        children = self.database.read(lambda c: c.execute(query).scalars().all())
        for child in self.random.sample(children, k=len(children)):
            self.end_child(child)
        attend(self.database, self.now)
        return True

    def end_child(self, child: str) -> None:
        if self.random.random() < 0.2:
            cancel(self.database, Target("run", child), self.now)
            return
        attempt = claim(self.database, child, self.now)
        if isinstance(attempt.effect, CallModel):
            said = self.random.choice([(text("Fine."), text("Really.")), ()])
            attempt.reply(*said, stop=self.random.choice(["end_turn", "refusal"]))
        if isinstance(attempt.effect, CallModel):
            attempt.reply(text("Fine."))
        assert isinstance(attempt.effect, Done), attempt.effect


@pytest.fixture(autouse=True)
def inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(INPUTS, AGENT_TOOL, ASKED)
    monkeypatch.setitem(INPUTS, SPLIT_TOOL, [PARTS])


@pytest.mark.parametrize(
    ("empty_url", "seed"), histories(sqlite=8, postgresql=4), indirect=["empty_url"]
)
@pytest.mark.parametrize("splits", ["never asked", "sometimes", "never"])
def test_loading_gives_the_view_of_a_run_with_sub_agents(
    database: Database, seed: int, splits: str
) -> None:
    spec = FAMILY
    if splits != "never asked":
        spec = replace(FAMILY, tools=(*FAMILY.tools, SPLIT), coordinator=Coordinator("reviewer"))
    driver = FamilyDriver(database, seed, spec)
    if splits == "never":
        driver.names = ("Read", "Nothing")
    sent = driver.drive()
    check_events_and_charges(database, driver.run_id)
    assert {turn: sent_request(database, driver.run_id, turn) for turn in sent} == sent
    assert all(row.state not in ("queued", "running") for row in children(database, driver.run_id))


def children(database: Database, run_id: str) -> Any:
    attend(database, 2_000_000_000.0)
    query = select(runs).where(runs.c.root_run == run_id)
    return database.read(lambda connection: connection.execute(query).all())

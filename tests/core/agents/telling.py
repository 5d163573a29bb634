"""Runs with sub-agents, told step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runner.core.agents import AGENT_TOOL, SPLIT_TOOL, Coordinator, NewChild
from runner.core.budget import Charged, Limits
from runner.core.conversation import Block, ModelReply, ToolResult, Usage
from runner.core.entries import ChildrenStarted, ModelReplied
from runner.core.steps import CallModel, Effect
from runner.permissions import ToolContext
from tests.core.agents.family import SPLIT, TYPES, WITH_AGENTS, asks, splits
from tests.core.story import Story, a_run, a_spec, changed, uses


class Parent(Story):
    """A run that may have sub-agents."""

    def __init__(self, limits: Limits | None = None, **changes: Any) -> None:
        own = {name: changes.pop(name) for name in ("depth", "tree_size") if name in changes}
        spec = a_spec(**{"tools": WITH_AGENTS, "agents": TYPES} | changes)
        super().__init__(changed(a_run(spec, limits), **own))

    def ask(self, *inputs: Any, after: tuple[Block, ...] = ()) -> Effect:
        """The model asks for sub-agents with these inputs, and makes other calls after them."""
        calls = [uses(AGENT_TOOL, f"a{n}", arguments) for n, arguments in enumerate(inputs)]
        return self.reply("tool_use", *calls, *after)

    def split(self, arguments: Any, *, problem: str = "") -> Effect:
        """The model splits the task; ``problem`` is what is wrong with that."""
        if self.state.model.open_call is None:
            assert isinstance(self.go_on(), CallModel)
        call = uses(SPLIT_TOOL, f"s{self.state.turns}", arguments)
        reply = ModelReply((call,), "tool_use", Usage(100), "a-model")
        return self.go_on(ModelReplied(reply, (ToolContext(problem=problem),)))

    @property
    def started(self) -> list[NewChild]:
        """All children so far, in the order of their start."""
        starts = [entry for entry in self.entries if isinstance(entry, ChildrenStarted)]
        return [child for entry in starts for child in entry.children]

    def child_ends(
        self, number: int, content: str = "Looks good.", outcome: Any = "succeeded"
    ) -> None:
        """A child ends, and the store shows it with the run."""
        self.state = changed(
            self.state,
            current=tuple(
                replace(child, reserved=Charged(10, 0), result=ToolResult(content, outcome))
                if child.number == number
                else child
                for child in self.state.children.current
            ),
        )

    def results(self) -> dict[str, str]:
        """What the calls of the last reply were answered with, by the id of the call."""
        blocks = [block for block in self.tail if block["type"] == "tool_result"]
        return {block["tool_use_id"]: block["content"] for block in blocks}


def a_coordinator(**changes: Any) -> Parent:
    return Parent(
        **{"tools": (*WITH_AGENTS, SPLIT), "coordinator": Coordinator("reviewer")} | changes
    )


__all__ = ["Parent", "a_coordinator", "asks", "splits"]

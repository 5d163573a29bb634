"""The world of a run that has sub-agents: they end in any way and at any time, whatever becomes of the
worker of their parent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from runner.core.agents import (
    AGENT_SOURCE,
    AGENT_TOOL,
    SPLIT_SOURCE,
    SPLIT_TOOL,
    AgentType,
    NewChild,
)
from runner.core.budget import Charged
from runner.core.children import joined, waiting_for_room
from runner.core.conversation import ModelReply, Tool, ToolResult
from runner.core.entries import ChildrenStarted, Entry, ToolFinished, ToolsStarted, UserMessageAdded
from runner.core.run import Ended, Waiting
from runner.core.state import Call
from runner.core.steps import CallModel, Done, Effect, EndChildren
from runner.permissions import Authorization, ToolContext, digest_of
from tests.core.story import TOOLS, changed, says
from tests.core.world import World

AGENT = Tool(AGENT_TOOL, "Start a sub-agent.", {"type": "object"}, source=AGENT_SOURCE)
SPLIT = Tool(SPLIT_TOOL, "Split the task.", {"type": "object"}, source=SPLIT_SOURCE)
WITH_AGENTS = (*TOOLS, AGENT)
REVIEWER = AgentType("reviewer", "Looks at what another made.")
TESTER = AgentType(
    "tester", "Tests it.", snapshot=True, token_ceiling=30_000, cost_ceiling_usd=0.5, deadline=600.0
)
TYPES = (REVIEWER, TESTER)
NAMES = ("Read", "Bash", *[AGENT_TOOL] * 5, "Nothing")
NAMES_OF_COORDINATORS = ("Read", *[AGENT_TOOL] * 2, *[SPLIT_TOOL] * 2)


def asks(agent_type: str = "reviewer", prompt: str = "Look at it.", **more: Any) -> dict[str, Any]:
    """The input of a call for a sub-agent."""
    return {"description": "look", "prompt": prompt, "agent_type": agent_type} | more


def splits(*parts: str) -> dict[str, Any]:
    """The input of a call that splits the task."""
    return {"parts": [{"description": part, "prompt": f"Do {part}."} for part in parts]}


@dataclass
class Grown:
    """A child as it is stored: what it has used, its own children too, and its result."""

    new: NewChild
    used: Charged = field(default_factory=lambda: Charged(0))
    result: ToolResult | None = None

    @property
    def reserved(self) -> Charged:
        return Charged(self.new.tokens, self.new.cost or 0) if self.result is None else self.used


@dataclass
class Family(World):
    """``grown`` are the run's children by number, and ``asked_for`` those of each call, by its id."""

    names: tuple[str, ...] = NAMES
    most_calls: int = 12
    grown: dict[int, Grown] = field(default_factory=dict)
    asked_for: dict[str, tuple[int, ...]] = field(default_factory=dict)

    # --- what the model does ---

    def reply(self, step: CallModel) -> ModelReply:
        if self.draw(st.integers(0, 4)):
            return super().reply(step)
        return ModelReply((says(),), "end_turn", self.usage(step), "a-model")

    def arguments(self, name: str) -> Any:
        match name:
            case "Agent":
                bad = [asks("nobody"), asks(prompt=" "), asks(what="?")]
                good = [asks(), asks("tester"), asks(snapshot=True), asks("tester", snapshot=False)]
                return self.draw(st.sampled_from([*good, *good, *good, *bad]))
            case "split_task":
                two, eight = splits("a", "b"), splits(*"abcdefgh")
                return self.draw(
                    st.sampled_from([two, eight, splits("a"), {}, [], splits("", "b")])
                )
            case _:
                return super().arguments(name)

    def tool_context(self, name: str, arguments: Any) -> ToolContext:
        problem = ""
        if isinstance(arguments, Mapping) and name == AGENT_TOOL and "what" in arguments:
            problem = "what: not expected"
        if isinstance(arguments, Mapping) and name == SPLIT_TOOL:
            problem = "" if len(arguments.get("parts", ())) > 1 else "parts: too few"
        return ToolContext(problem=problem)

    # --- what the children do ---

    def unended(self) -> list[int]:
        return [number for number, child in self.grown.items() if child.result is None]

    def end_child(self) -> None:
        """One of the children that are under way ends, having used what it may or less."""
        if not (unended := self.unended()):
            return
        child = self.grown[self.draw(st.sampled_from(unended))]
        used = Charged(
            self.draw(st.integers(0, child.new.tokens)),
            self.draw(st.integers(0, child.new.cost or 0)),
        )
        outcome = self.draw(st.sampled_from(["succeeded", "succeeded", "failed"]))
        child.used, child.result = used, ToolResult(f"child {child.new.number}", outcome)

    def look_at_children(self) -> None:
        """What the store reads with the run."""
        children = tuple(
            replace(
                child,
                reserved=self.grown[child.number].reserved,
                result=self.grown[child.number].result,
            )
            for child in self.state.children.current
        )
        held = sum((child.reserved for child in self.grown.values()), Charged(0))
        self.state = changed(self.state, current=children, reserved=held)

    def people(self) -> None:
        if self.draw(st.booleans()):
            super().people()
            return
        self.end_child()
        if self.draw(st.booleans()):
            self.look_at_children()

    def die(self) -> None:
        super().die()
        self.state = changed(self.state, cancelled=False)
        self.look_at_children()

    def do(self, effect: Effect) -> None:
        """The run is about to end: its children are cancelled, and it is taken up when they are at rest."""
        if not isinstance(effect, EndChildren):
            super().do(effect)
            return
        assert not self.draining
        while self.unended() and not self.chance():
            self.end_child()
        self.state = changed(self.state, cancelled=not self.unended())
        if self.chance():
            self.die()

    def take_up(self, done: Done) -> None:
        match done.outcome:
            case Waiting("children") if self.state.children.cancelled:
                assert not self.unended()
                self.state = replace(self.state, outcome=None)
                self.die()
            case Waiting("children"):
                at_work = [child for child in self.state.children.current if child.result is None]
                assert at_work
                assert not self.waiting() or (len(at_work) == self.state.limits.max_agents_at_once)
                self.end_child()
                while self.unended() and not self.chance():
                    self.end_child()
                self.state = replace(self.state, outcome=None)
                self.die()
            case Waiting("approval"):
                pending = [call for call in self.state.calls if call.result is None]
                assert not waiting_for_room(self.state, pending)
                self.answer()
                while self.waiting() and self.draw(st.booleans()):
                    self.answer()
                self.state = replace(self.state, outcome=None)
                self.die()
            case _:
                super().take_up(done)

    # --- what is promised ---

    def watch(self, entry: Entry) -> None:
        super().watch(entry)
        match entry:
            case ChildrenStarted(children):
                self.watch_start(children)
            case ToolsStarted():
                assert not any(child.result is None for child in self.state.children.current)
            case ToolFinished(index, result):
                call = self.state.calls[index]
                numbers = self.asked_for.get(call.id, ())
                mine = tuple(
                    child for child in self.state.children.current if child.number in numbers
                )
                assert len(mine) == len(numbers)
                if numbers:
                    given = joined(self.state, call, mine)
                    assert given is not None
                    assert result.outcome == given.outcome
                    assert result.content.endswith(given.content)
            case UserMessageAdded(cause=cause):
                assert cause == "children" or self.state.children.split != "whole"

    def watch_start(self, children: tuple[NewChild, ...]) -> None:
        """What the start of sub-agents may never do."""
        state = self.state
        assert children
        assert state.depth < state.limits.max_agent_depth
        first = len(self.grown) + 1
        assert [child.number for child in children] == [*range(first, first + len(children))]
        for child in children:
            assert state.spec.agent(child.agent_type) is not None
            assert child.prompt.strip()
            assert child.tokens >= 0
            assert state.limits.cost_ceiling is None or child.cost is not None
            self.grown[child.number] = Grown(child)
        assert len(self.unended()) <= state.limits.max_agents_at_once
        assert state.children.tree_size + len(children) <= state.limits.max_agents
        for index in {child.index for child in children}:
            if index is None:
                assert not state.calls
            else:
                assert not self.draining
                mine = tuple(child.number for child in children if child.index == index)
                self.watch_call(state.calls[index], mine)

    def watch_call(self, call: Call, numbers: tuple[int, ...]) -> None:
        """A call starts its children once, when it may, and when it is its turn."""
        assert call.result is None
        assert call.id not in self.asked_for
        self.asked_for[call.id] = numbers
        if call.name == AGENT_TOOL:
            assert len(numbers) == 1
            assert call.decision is not None
            Authorization(
                call.decision, call.answer, digest_of(call.input_to_run), self.state.policy
            )
        for before in self.state.calls[: call.index]:
            assert before.result is not None or before.name in (AGENT_TOOL, SPLIT_TOOL)

    def check_order(self, group: list[Call]) -> None:
        super().check_order(group)
        for before in self.state.calls[: group[0].index]:
            assert before.result is not None or before.name not in (AGENT_TOOL, SPLIT_TOOL)

    def check(self) -> None:
        super().check()
        state, limits = self.state, self.state.limits
        call = state.model.open_call.reservation if state.model.open_call else None
        held = sum((child.reserved for child in self.grown.values()), state.money.charged)
        tokens, cost = (call.worst_case, call.worst_cost) if call else (0, 0)
        assert held.tokens + tokens <= limits.token_ceiling
        assert limits.cost_ceiling is None or held.cost + cost <= limits.cost_ceiling
        assert state.children.started == len(self.grown)
        assert not isinstance(self.state.outcome, Ended) or not self.unended()
        if isinstance(self.state.outcome, Ended) and self.state.outcome.state == "succeeded":
            assert self.state.spec.coordinator is None or state.children.split == "done"

    def call_model(self, step: CallModel) -> None:
        assert not self.unended(), "the model goes on without what its sub-agents give"
        super().call_model(step)

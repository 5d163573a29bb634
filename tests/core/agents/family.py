"""The world of a run that has sub-agents: they end in any way and at any time, whatever becomes of the
worker of their parent."""

from __future__ import annotations

from collections import Counter
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
    Coordinator,
    NewChild,
)
from runner.core.budget import Charged, Limits
from runner.core.children import joined, waiting_for_room
from runner.core.conversation import Block, ModelReply, Tool, ToolResult, Usage
from runner.core.entries import (
    ChildrenStarted,
    Entry,
    HookFinished,
    HookStarted,
    ModelReplied,
    ToolFinished,
    ToolsStarted,
    UserMessageAdded,
)
from runner.core.hook_decisions import refuses
from runner.core.hooks import Hook, HookAnswer, HookResult
from runner.core.run import Ended, Waiting
from runner.core.state import Call
from runner.core.steps import CallModel, Done, Effect, EndChildren, RunHook
from runner.permissions import Answer, ToolContext, digest_of
from runner.permissions.decisions import Authorization
from tests.core.story import TOOLS, Story, a_run, a_spec, changed, says, uses
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


HOOKS = (
    Hook("PreToolUse", command="look"),
    Hook("PreToolUse", (AGENT_TOOL,), command="look at agents", on_failure="continue"),
    Hook("PreToolUse", command="look again", repeatable=True),
    Hook("PostToolUse", command="format", repeatable=True),
    Hook("PostToolUse", (AGENT_TOOL,), command="note"),
    Hook("TurnEnd", command="count"),
    Hook("RunStart", command="greet"),
    Hook("RunEnd", command="leave"),
)
SAID = {
    "PreToolUse": (None, None, None, "allow", "ask", "deny"),
    "PostToolUse": (None, "block"),
    "TurnEnd": (None, "block"),
    "RunStart": (None, None, None, "block"),
    "RunEnd": (None,),
}


@dataclass
class Hooked(Family):
    """``begun`` counts how often each hook was started, by its number, and ``through`` those that ended."""

    begun: Counter[int] = field(default_factory=Counter)
    through: set[int] = field(default_factory=set)

    def do(self, effect: Effect) -> None:
        if not isinstance(effect, RunHook):
            super().do(effect)
            return
        run = effect.run
        assert run.event == "PreToolUse" or not self.state.awaits_children
        if self.chance():
            self.die()
            return
        said = self.draw(st.sampled_from(SAID[run.event]))
        outcome = self.draw(st.sampled_from(["succeeded"] * 4 + ["failed"]))
        stops = self.mischief > 0 and self.draw(st.integers(0, 9)) == 9
        context = self.draw(st.sampled_from(["", "", "By the way."]))
        answer = HookAnswer(outcome, said if outcome == "succeeded" else None, "no", context, stops)
        updated = None
        if run.event == "PreToolUse" and run.index is not None and outcome == "succeeded":
            name = self.state.calls[run.index].name
            updates = [None, asks("tester"), asks("nobody")] if name == AGENT_TOOL else [None]
            updated = self.draw(st.sampled_from(updates))
        self.append(HookFinished(run.number, HookResult(answer, updated)))

    def given(self, call: Call) -> Answer:
        """A person who approves a call for a sub-agent may make another of it."""
        given = super().given(call)
        if given.effect != "approved" or call.name != AGENT_TOOL or not self.draw(st.booleans()):
            return given
        return replace(given, input=asks("tester"))

    def take_up(self, done: Done) -> None:
        super().take_up(done)
        if isinstance(done.outcome, Ended):
            self.mischief = 0  # a run that is taken up again and again would be greeted for ever

    def watch(self, entry: Entry) -> None:
        super().watch(entry)
        match entry:
            case HookStarted(number, place):
                assert number not in self.through, "a hook that has ended runs again"
                assert not self.begun[number] or self.state.spec.hooks[place].repeatable
                self.begun[number] += 1
            case HookFinished(number):
                assert number in self.begun
                assert number not in self.through
                self.through.add(number)
            case ChildrenStarted(children):
                for child in children:
                    if child.index is not None:
                        assert not refuses(self.state, self.state.calls[child.index])


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
        self,
        number: int,
        content: str = "Looks good.",
        outcome: Any = "succeeded",
        *,
        used: Charged = Charged(10, 0),  # noqa: B008 - it is never changed
    ) -> None:
        """A child ends, and the store shows it with the run."""
        children = self.state.children
        (child,) = (child for child in children.current if child.number == number)
        ended = replace(child, reserved=used, result=ToolResult(content, outcome))
        tokens = children.reserved.tokens - child.reserved.tokens + used.tokens
        self.state = changed(
            self.state,
            reserved=Charged(tokens, children.reserved.cost - child.reserved.cost + used.cost),
            current=tuple(ended if one is child else one for one in children.current),
        )

    def results(self) -> dict[str, str]:
        """What the calls of the last reply were answered with, by the id of the call."""
        blocks = [block for block in self.tail if block["type"] == "tool_result"]
        return {block["tool_use_id"]: block["content"] for block in blocks}


def a_coordinator(**changes: Any) -> Parent:
    return Parent(
        **{"tools": (*WITH_AGENTS, SPLIT), "coordinator": Coordinator("reviewer")} | changes
    )

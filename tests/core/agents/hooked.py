"""The world of a run that has sub-agents and hooks: these say anything, fail, and die with the worker."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from runner.core.agents import AGENT_TOOL
from runner.core.entries import ChildrenStarted, Entry, HookFinished, HookStarted
from runner.core.hook_decisions import refuses
from runner.core.hooks import Hook, HookAnswer, HookResult
from runner.core.run import Ended
from runner.core.state import Call
from runner.core.steps import Done, Effect, RunHook
from runner.permissions import Answer
from tests.core.agents.family import Family, asks

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

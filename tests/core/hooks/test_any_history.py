"""Runs with hooks that say whatever they like, in a world where everything goes wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.core.budget import Limits
from runner.core.entries import (
    CallsDecided,
    Entry,
    HookFinished,
    HookStarted,
    RunSettled,
    ToolsStarted,
    TurnEnded,
)
from runner.core.fold import rested
from runner.core.hook_decisions import (
    decided_at,
    has_run,
    hooks_of,
    is_matched,
    kept_as_edited,
    run_of,
)
from runner.core.hooks import Hook, Said, read_answer
from runner.core.run import Ended, Requeued
from runner.core.spec import Asking
from runner.core.state import Call, RunState
from runner.core.steps import CallModel, Effect, RunHook
from runner.core.workspace import Verify, Workspace
from runner.permissions import Answer, Request, Rule
from runner.permissions.decisions import evaluate
from tests.core.story import RULES, a_run, a_spec
from tests.core.workshop import TOOLS, Workshop
from tests.core.world import World

RANK = {"deny": 0, "ask": 1, "allow": 2}
EVENTS = st.sampled_from(["RunStart", "PreToolUse", "PostToolUse", "TurnEnd", "RunEnd"])
MATCHERS = st.sampled_from([(), ("Bash",), ("Read(a)", "Edit"), ("Make", "Push")])
HOOKS = st.builds(
    lambda event, matcher, on_failure, repeatable: Hook(
        event,
        matcher if event in ("PreToolUse", "PostToolUse") else (),
        command="say",
        on_failure=on_failure,
        repeatable=repeatable,
    ),
    EVENTS,
    MATCHERS,
    st.sampled_from(["deny", "continue"]),
    st.booleans(),
)
SAID = st.sampled_from(
    [
        *[Said("exited")] * 6,
        Said("exited", 2, errors=b"no"),
        Said("exited", 1),
        Said("timed_out"),
        Said("lost"),
        Said("exited", output=b"{"),
        Said("exited", output=b'{"continue": false}'),
        Said("exited", output=b'{"decision": "block", "reason": "why"}'),
        Said("exited", output=b'{"hookSpecificOutput": {"additionalContext": "so"}}'),
        *(
            Said("exited", output=b'{"hookSpecificOutput": {"permissionDecision": "%s"}}' % word)
            for word in (b"allow", b"ask", b"deny", b"ask")
        ),
        Said("exited", output=b'{"hookSpecificOutput": {"updatedInput": {"path": "b"}}}'),
    ]
)


@dataclass
class HookedWorld(World):
    """A world with hooks in it, and what is promised of them."""

    ended_hooks: Counter[int] = field(default_factory=Counter)

    def do(self, effect: Effect) -> None:
        if isinstance(effect, RunHook):
            self.run_hook(effect)
        else:
            super().do(effect)

    def given(self, call: Call) -> Answer:
        """A person who approves a call may make another of it."""
        given = super().given(call)
        edited = {"path": "c"} if self.draw(st.booleans()) else None
        return replace(given, input=edited) if given.effect == "approved" else given

    def people(self) -> None:
        """Who cancels a run and takes it up again finds it at rest."""
        attempt = self.state.attempt
        super().people()
        if self.state.attempt > attempt:
            self.state = rested(self.state)

    def run_hook(self, step: RunHook) -> None:
        hook = self.state.spec.hooks[step.run.hook]
        if self.chance():
            self.leave_half(step)
            if self.draw(st.booleans()):
                self.die()
            elif hook.repeatable:
                self.append(RunSettled(Requeued(self.now, "shutdown")))
                self.state = replace(self.state, outcome=None)
                self.die()
            else:
                self.end_hook(step, Said("shut_down"))
        else:
            self.end_hook(step, self.draw(SAID))

    def leave_half(self, step: RunHook) -> None:
        """A hook was cut off in the middle of what it does to files."""

    def end_hook(self, step: RunHook, said: Said) -> None:
        result = kept_as_edited(self.state, step.run, read_answer(step.run.event, said, 60.0))
        self.append(HookFinished(step.run.number, result, self.left_by(step)))

    def left_by(self, step: RunHook) -> str | None:
        return None

    def call_model(self, step: CallModel) -> None:
        if step.call.purpose == "turn" and self.state.model.stop is None:
            for run in self.state.hooks.runs:
                said = run.answer and (run.answer.decision == "block" or run.answer.context)
                told = run.number <= self.state.hooks.told
                assert not said or told or run.event == "RunEnd", "the model is not told"
        super().call_model(step)

    def watch(self, entry: Entry) -> None:
        super().watch(entry)
        match entry:
            case HookStarted():
                self.watch_start(entry)
            case HookFinished(number):
                (run,) = (run for run in self.state.hooks.runs if run.number == number)
                assert run.answer is None
                self.ended_hooks[number] += 1
                assert self.ended_hooks[number] == 1, "a hook ended twice"
            case CallsDecided(decisions):
                for index, decision in decisions.items():
                    self.watch_decision(self.state.calls[index], decision.effect)
            case ToolsStarted(indexes):
                for index in indexes:
                    self.watch_tool(self.state.calls[index])
            case TurnEnded():
                self.watch_turn_end()
            case RunSettled(Ended()):
                self.watch_end()

    def watch_start(self, entry: HookStarted) -> None:
        hook = self.state.spec.hooks[entry.hook]
        before = [run for run in self.state.hooks.runs if run.number == entry.number]
        assert not self.ended_hooks[entry.number], "a hook began again after it had ended"
        if before:
            assert hook.repeatable
            assert before[0].started_by != self.state.attempt
        else:
            assert entry.number == self.state.hooks.started + 1
        if entry.event == "PreToolUse":
            call = self.state.calls[entry.index]
            assert call.decision is None or (call.is_edited and _approved(call))
            assert call.started_by is None or call.asked_again
            assert self.rules_say(call) != "deny", "a hook is asked about what rules deny"
        if entry.event == "PostToolUse":
            call = self.state.calls[entry.index]
            assert has_run(self.state, call)
            later = [
                run.hook
                for run in self.state.hooks.runs
                if run.event == "PostToolUse" and run.index == entry.index
            ]
            assert all(entry.hook <= other for other in later), "hooks after calls go in reverse"

    def rules_say(self, call: Call) -> str:
        assert call.tool_context is not None
        request = Request(call.name, call.input_to_run, call.tool_context)
        return evaluate(self.state.policy, request).effect

    def watch_decision(self, call: Call, effect: str) -> None:
        assert RANK[effect] <= RANK[self.rules_say(call)], "a hook has loosened a decision"

    def watch_tool(self, call: Call) -> None:
        said = [
            (self.state.spec.hooks[run.hook], run.answer)
            for run in self.state.hooks.runs
            if run.event == "PreToolUse" and run.index == call.index
        ]
        for hook, answer in said:
            assert answer is not None, "a call begins before its hooks have ended"
            assert answer.decision != "deny"
            assert answer.outcome == "succeeded" or hook.on_failure == "continue"
            asked = answer.decision == "ask"
            assert not asked or (call.answer is not None and call.answer.effect == "approved")
        ran = {run.hook for run in self.state.hooks.runs if run.index == call.index}
        for place, hook in hooks_of(self.state.spec, "PreToolUse"):
            located = call.tool_context is not None and call.answer is None
            assert not located or not is_matched(hook, call) or place in ran
            if call.is_edited and is_matched(hook, call):
                since = decided_at(self.state, call)
                looked = run_of(self.state, place, call.index, since=since)
                assert looked is not None, "a hook was not shown what a person made of a call"

    def watch_turn_end(self) -> None:
        state = self.state
        assert all(call.result is not None for call in state.calls)
        done = {(run.hook, run.index) for run in state.hooks.runs if run.answer is not None}
        for place, _ in hooks_of(state.spec, "TurnEnd"):
            assert (place, None) in done
        for call in state.calls:
            for place, hook in hooks_of(state.spec, "PostToolUse"):
                due = has_run(state, call) and is_matched(hook, call)
                assert not due or (place, call.index) in done

    def watch_end(self) -> None:
        state = self.state
        done = {
            run.hook
            for run in state.hooks.runs
            if run.answer is not None and run.number > state.hooks.ended
        }
        for place, _ in hooks_of(state.spec, "RunEnd"):
            assert place in done, "a run ends before its hooks have run"


@dataclass
class HookedWorkshop(HookedWorld, Workshop):
    """The same where the files are recorded, and hooks change them. ``never`` are the changes of hooks
    that may make none."""

    never: set[str] = field(default_factory=set)

    def leave_half(self, step: RunHook) -> None:
        if self.draw(st.booleans()):
            half = f"hook{step.run.number}?"
            self.files += (half,)
            if step.run.event == "RunEnd":
                self.never.add(half)

    def append(self, *entries: Entry) -> None:
        super().append(*entries)
        tree = self.state.files.tree or ""
        assert self.never.isdisjoint(tree.split()), "what a hook of the end did is recorded"

    def run_hook(self, step: RunHook) -> None:
        assert self.tree == self.state.files.tree, "a hook runs on files that are not recorded"
        assert f"hook{step.run.number}?" not in self.files, "a hook runs on what it left half done"
        if step.run.event == "RunEnd" and not self.never and self.draw(st.booleans()):
            self.leave_half(step)
            self.die()
            return
        super().run_hook(step)

    def left_by(self, step: RunHook) -> str | None:
        before = self.state.files.tree
        assert before is not None
        if step.run.event == "RunEnd":
            self.files = tuple(before.split())
            return None
        if self.draw(st.booleans()):
            self.files += (f"hook{step.run.number}",)
        return None if self.tree == before else self.tree


def _approved(call: Call) -> bool:
    return call.answer is not None and call.answer.effect == "approved"


def a_hooked_run(data: st.DataObject, limits: Limits, *hooks: Hook, **changes: object) -> RunState:
    drawn = tuple(data.draw(st.lists(HOOKS, min_size=1, max_size=6)))
    return a_run(a_spec(hooks=(*drawn, *hooks), **changes), limits)


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.data(),
    st.sampled_from(["safe", "all", "off"]),
    st.integers(0, 12),
    st.integers(1, 8),
    st.sets(st.sampled_from(["Grep", "Edit", "Bash"])),
)
def test_whatever_hooks_say_the_run_ends_and_keeps_its_promises(data, mode, mischief, turns, asked):
    rules = (*RULES, *(Rule("ask", name) for name in sorted(asked)))
    limits = Limits(max_turns=turns, token_ceiling=5_000_000, max_output_tokens=4_000)
    run = a_hooked_run(data, limits, parallel_tools=mode, rules=rules, asking=Asking("ask"))
    world = HookedWorld(data.draw, run, mischief)
    outcome = world.drive()
    assert world.state.outcome == outcome


@settings(max_examples=100)
@given(st.data(), st.integers(0, 12), st.booleans())
def test_whatever_hooks_change_is_recorded_and_the_end_is_what_was_delivered(
    data, mischief, verified
):
    limits = Limits(max_turns=4, token_ceiling=5_000_000, max_output_tokens=4_000)
    run = a_hooked_run(
        data,
        limits,
        Hook("RunEnd", command="tell"),
        tools=TOOLS,
        rules=(Rule("allow", "*"), Rule("deny", "Deploy")),
        workspace=Workspace("/repo", "git", external=(Rule("ask", "Push"),)),
        verify=Verify(("pytest",), rounds=1) if verified else None,
    )
    world = HookedWorkshop(data.draw, run, mischief)
    world.drive()

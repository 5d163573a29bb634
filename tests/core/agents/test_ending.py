"""A run that is to end while its sub-agents are under way: these come to rest first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from runner.core.agents import AGENT_TOOL
from runner.core.budget import Limits
from runner.core.conversation import ModelReply
from runner.core.entries import Delivered, HookFinished, SnapshotRecorded, ToolFinished
from runner.core.hooks import Hook, HookAnswer, HookResult
from runner.core.run import Ended, Requeued, Waiting
from runner.core.spec import Asking
from runner.core.steps import CallModel, Deliver, Effect, EndChildren, LocateCalls, RunHook
from runner.core.workspace import Workspace
from runner.permissions import Answer, Rule, ToolContext, digest_of
from tests.core.agents.family import TYPES, WITH_AGENTS, Hooked, Parent, asks
from tests.core.agents.test_family import TARIFFS, check_end
from tests.core.story import RULES, a_run, a_spec, changed, outcome_of, says

HOOKS = (Hook("PreToolUse", ("Agent(tester)",), command="look"), Hook("RunEnd", command="tell"))
RULES_THAT_ASK = (*RULES, Rule("ask", "Agent(tester)"))
STOPS = HookResult(HookAnswer("succeeded", reason="enough", stops=True))
STOPPED = "the PreToolUse hook `look` stops the run: enough"


def answered(parent: Parent, effect: Any, edited: Any = None) -> Effect:
    """A person answers the question about the second call, and the run goes on with it."""
    call = parent.state.calls[1]
    given = Answer(effect, digest_of(edited or call.input), input=edited)
    step = parent.claim(
        calls=(parent.state.calls[0], replace(call, answer=given, tool_context=None))
    )
    if isinstance(step, LocateCalls):
        located = tuple(replace(one, tool_context=ToolContext()) for one in parent.state.calls)
        parent.state = replace(parent.state, calls=located)
        step = parent.go_on()
    return step


def stopped_by_hook() -> Parent:
    """A run whose first call has started a sub-agent. A hook that looks at what a person has made of the
    second one wants the run to end."""
    parent = Parent(workspace=Workspace("/repo", "git"), hooks=HOOKS, rules=RULES_THAT_ASK)
    step = asking(parent)
    while isinstance(step, RunHook):
        step = parent.go_on(HookFinished(step.run.number, HookResult(HookAnswer("succeeded"))))
    assert outcome_of(step) == Waiting("approval")
    looked = answered(parent, "approved", asks("tester", "Run it."))
    assert isinstance(looked, RunHook)
    assert parent.go_on(HookFinished(looked.run.number, STOPS)) == EndChildren()
    return parent


def stopped_by_silence() -> Parent:
    """The same where nobody answers in time."""
    asked = Asking(on_timeout="stop")
    hooks = HOOKS[1:]
    workspace = Workspace("/repo", "git")
    parent = Parent(workspace=workspace, hooks=hooks, rules=RULES_THAT_ASK, asking=asked)
    assert outcome_of(asking(parent)) == Waiting("approval")
    assert answered(parent, "expired") == EndChildren()
    return parent


def stopped_by_deadline() -> Parent:
    """The same where the answer comes too late."""
    workspace, limits = Workspace("/repo", "git"), Limits(deadline=2_000.0)
    parent = Parent(limits, workspace=workspace, hooks=HOOKS[1:], rules=RULES_THAT_ASK)
    assert outcome_of(asking(parent)) == Waiting("approval")
    parent.now = 3_000.0
    assert answered(parent, "approved") == EndChildren()
    return parent


def asking(parent: Parent) -> Effect:
    parent.go_on(SnapshotRecorded("tree 1", "created"))
    return parent.ask(asks(), asks("tester"))


ENDS = {
    "hook": (stopped_by_hook, Ended("failed", "hook", STOPPED)),
    "silence": (
        stopped_by_silence,
        Ended("stopped", "approval_timeout", "nobody answered in time"),
    ),
    "deadline": (stopped_by_deadline, Ended("stopped", "deadline", "the deadline of 2000 s")),
}


@pytest.mark.parametrize(("stopped", "end"), ENDS.values(), ids=ENDS)
def test_a_run_ends_when_its_sub_agents_are_at_rest_and_their_results_are_recorded(stopped, end):
    parent = stopped()
    parent.state = changed(parent.state, cancelled=True)
    assert outcome_of(parent.go_on()) == Waiting("children")
    parent.child_ends(1, "cancelled", "failed")
    parent.state = replace(parent.state, attempt=parent.state.attempt + 1, outcome=None)
    parent.state = changed(parent.state, cancelled=False)
    assert parent.go_on(SnapshotRecorded("tree 2", "children")) == Deliver(end)
    (result,) = (entry for entry in parent.entries if isinstance(entry, ToolFinished))
    assert (result.index, result.result.content, result.snapshot) == (0, "cancelled", "tree 2")
    assert not parent.state.awaits_children
    hook = parent.go_on(Delivered("commit 1"))
    assert isinstance(hook, RunHook)
    done = parent.go_on(HookFinished(hook.run.number, HookResult(HookAnswer("succeeded"))))
    assert outcome_of(done) == end


def test_who_dies_as_it_ends_its_sub_agents_has_the_next_attempt_end_them():
    parent = stopped_by_hook()
    assert parent.claim() == EndChildren()


def test_a_pause_and_a_shutdown_come_before_sub_agents_are_ended():
    parent = stopped_by_hook()
    before = parent.state
    parent.state = changed(before, pause_requested=True)
    assert outcome_of(parent.go_on()) == Waiting("paused")
    parent.state, parent.draining = before, True
    assert outcome_of(parent.go_on()) == Requeued(parent.now, "shutdown")


@dataclass
class Hurried(Hooked):
    """A run that starts sub-agents beside others that a person is asked about, who may not answer in
    time. ``ended_early`` counts how often it was to end before them."""

    ended_early: int = 0

    def reply(self, step: CallModel) -> ModelReply:
        if self.state.turns >= 2:
            return ModelReply((says(),), "end_turn", self.usage(step), "a-model")
        types = self.draw(st.lists(st.sampled_from(["reviewer", "tester"]), min_size=2, max_size=4))
        calls = [self.use(AGENT_TOOL, asks(each)) for each in types]
        return ModelReply((*calls,), "tool_use", self.usage(step), "a-model")

    def do(self, effect: Effect) -> None:
        self.ended_early += isinstance(effect, EndChildren)
        super().do(effect)


@pytest.mark.slow
@settings(max_examples=100)
@given(st.data(), st.integers(0, 10))
def test_no_run_ends_while_its_sub_agents_are_under_way(data, mischief):
    spec = a_spec(
        tools=WITH_AGENTS,
        agents=TYPES,
        hooks=HOOKS,
        rules=RULES_THAT_ASK,
        asking=Asking(on_timeout="stop"),
    )
    world = Hurried(data.draw, changed(a_run(spec), tariffs=TARIFFS), mischief)
    world.drive()
    check_end(world)
    event(f"ended {min(world.ended_early, 2)} times before its sub-agents")

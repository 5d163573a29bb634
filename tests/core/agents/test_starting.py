"""Which calls start sub-agents, which of them together, what they wait for and what they give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from runner.core.agents import AgentType
from runner.core.budget import Charged, Limits
from runner.core.entries import ChildrenStarted, Entry, HookFinished, SnapshotRecorded, ToolsStarted
from runner.core.entry_events import events_of
from runner.core.fold import apply, fold
from runner.core.hooks import Hook, HookAnswer, HookResult
from runner.core.prices import FREE
from runner.core.run import Ended, Waiting
from runner.core.state import RunState
from runner.core.steps import CallModel, LocateCalls, RecordShared, RunHook
from runner.core.tool_calls import in_doubt, undo_needed
from runner.core.workspace import Workspace
from runner.permissions import Answer, Rule, ToolContext, digest_of
from tests.core.agents.family import REVIEWER, Parent, asks
from tests.core.story import RULES, changed, outcome_of, says, started, uses

CHILDREN = Waiting("children")
ASKING = (*RULES, Rule("ask", "Agent"))


def test_neighbouring_calls_start_together_and_the_run_waits_without_a_worker():
    parent = Parent()
    assert outcome_of(parent.ask(asks(), asks("tester"))) == CHILDREN
    starts = [entry for entry in parent.entries if isinstance(entry, ChildrenStarted)]
    assert [[child.number for child in entry.children] for entry in starts] == [[1, 2]]
    assert [child.agent_type for child in parent.started] == ["reviewer", "tester"]
    assert [call.started_by for call in parent.state.calls] == [1, 1]


def test_results_stand_in_the_order_asked_whatever_child_ends_first():
    parent = Parent()
    parent.ask(asks(), asks())
    parent.child_ends(2, "second")
    assert outcome_of(parent.claim()) == CHILDREN
    parent.child_ends(1, "first", "failed")
    assert isinstance(parent.claim(), CallModel)
    assert list(parent.results().items()) == [("a0", "first"), ("a1", "second")]
    assert [block.get("is_error", False) for block in parent.tail] == [True, False]
    assert parent.state.children.current == ()


def test_a_limit_that_sub_agents_alone_use_up_to_80_percent_is_told_once_they_have_ended():
    parent = Parent(Limits(token_ceiling=100_000, max_output_tokens=2_000))
    begun = parent.state

    def near(state: RunState, entries: list[Entry]) -> list[Mapping[str, Any]]:
        found = (event for one in fold(state, entries) for event in events_of(one))
        return [event.data for event in found if event.type == "limit_near"]

    parent.ask(*[asks()] * 6)
    assert parent.state.used.tokens > 80_000  # the children may use it
    assert near(begun, parent.entries) == []
    for number in range(1, 7):
        parent.child_ends(number, used=Charged(14_000, 0))
    ended, before = parent.state, len(parent.entries)
    parent.claim()
    parent.reply("end_turn", says())
    (told,) = near(ended, parent.entries[before:])
    assert told == {"limit": "token_ceiling", "used": 84_110, "most": 100_000}


def test_an_attempt_that_takes_up_a_waiting_run_starts_no_child_again():
    parent = Parent()
    parent.ask(asks())
    for _ in range(3):
        assert outcome_of(parent.claim()) == CHILDREN
    assert len(parent.started) == 1


def test_a_child_is_never_in_doubt_when_the_worker_of_its_parent_died():
    parent = Parent(workspace=Workspace("/repo", "git", on_unknown="ask"))
    parent.state = apply(parent.state, SnapshotRecorded("tree 1", "created"))
    parent.ask(asks())
    assert outcome_of(parent.claim()) == CHILDREN
    assert in_doubt(parent.state) == ()
    assert not undo_needed(parent.state)


@pytest.mark.parametrize(("limits", "most"), [(Limits(), 8), (Limits(max_agents_at_once=2), 2)])
def test_no_more_than_the_job_allows_are_under_way_at_once_and_a_free_slot_is_filled(limits, most):
    parent = Parent(limits)
    parent.ask(*[asks()] * 10)
    assert len(parent.started) == most
    parent.child_ends(2)
    assert outcome_of(parent.claim()) == CHILDREN
    assert [child.index for child in parent.started] == [*range(most + 1)]


@pytest.mark.parametrize("mode", ["safe", "all", "off"])
def test_what_comes_after_an_agent_waits_for_it_and_what_comes_before_runs_first(mode):
    parent = Parent(parallel_tools=mode)
    bash = uses("Bash", "b", {"command": "ls"})
    effect = parent.reply("tool_use", bash, uses("Agent", "a", asks()), uses("Read", "r"))
    assert started(effect) == [0]
    assert not parent.started
    assert outcome_of(parent.finish(0)) == CHILDREN
    parent.child_ends(1)
    assert started(parent.claim()) == [2]


@pytest.mark.parametrize("mode", ["safe", "all", "off"])
def test_agents_start_side_by_side_whatever_holds_for_other_tools(mode):
    parent = Parent(parallel_tools=mode)
    assert outcome_of(parent.ask(asks(), asks(), after=(uses("Read", "r"),))) == CHILDREN
    assert len(parent.started) == 2
    assert not any(isinstance(entry, ToolsStarted) for entry in parent.entries)


def test_a_snapshot_is_asked_for_by_the_call_or_else_by_the_type():
    parent = Parent()
    parent.ask(asks(), asks("tester"), asks(snapshot=True), asks("tester", snapshot=False))
    assert [child.snapshot for child in parent.started] == [False, True, True, False]


def test_a_child_without_tools_is_shown_no_conversation_that_has_calls():
    bare = AgentType("bare", "Thinks.", tools=(), snapshot=True)
    submits = replace(bare, name="submits", result_schema={"type": "object"})
    parent = Parent(agents=(bare, submits))
    parent.ask(asks("bare"), asks("bare", snapshot=True), asks("submits"))
    assert [child.snapshot for child in parent.started] == [False, False, True]


def test_a_denied_agent_is_an_error_result_and_its_neighbour_starts():
    parent = Parent(rules=(Rule("allow", "*"), Rule("deny", "Agent(tester)")))
    assert outcome_of(parent.ask(asks("tester"), asks())) == CHILDREN
    assert [child.agent_type for child in parent.started] == ["reviewer"]


def test_who_has_to_ask_for_one_agent_starts_the_others_and_waits_for_the_answer():
    parent = Parent(rules=(*RULES, Rule("ask", "Agent(tester)")))
    assert outcome_of(parent.ask(asks("tester"), asks())) == Waiting("approval")
    assert [child.index for child in parent.started] == [1]
    parent.child_ends(1)
    assert outcome_of(parent.claim()) == Waiting("approval")
    answered = answer(parent, 0, "approved")
    assert isinstance(answered, LocateCalls)
    parent.state = located(parent, answered)
    assert outcome_of(parent.go_on()) == CHILDREN
    assert [child.index for child in parent.started] == [1, 0]


def test_who_is_asked_for_one_of_more_agents_than_work_at_once_starts_the_others_in_turn():
    parent = Parent(rules=(*RULES, Rule("ask", "Agent(tester)")))
    assert outcome_of(parent.ask(asks("tester"), *[asks()] * 10)) == CHILDREN
    parent.child_ends(1)
    assert outcome_of(parent.claim()) == CHILDREN
    parent.child_ends(2)
    assert outcome_of(parent.claim()) == Waiting("approval")
    assert [child.index for child in parent.started] == [*range(1, 11)]


def test_hooks_after_calls_run_when_no_child_is_under_way_any_more():
    """One that is cut off has the files put back, and would take back what a child has done since."""
    hooks = (Hook("PostToolUse", command="format", repeatable=True),)
    parent = Parent(workspace=Workspace("/repo", "git"), hooks=hooks)
    parent.state = apply(parent.state, SnapshotRecorded("tree 1", "created"))
    parent.ask(asks(), asks())
    parent.child_ends(1)
    assert outcome_of(parent.claim()) == CHILDREN
    assert not undo_needed(next_attempt(parent))
    parent.child_ends(2)
    assert isinstance(parent.claim(), RunHook)
    assert [call.result is None for call in parent.state.calls] == [False, False]
    assert undo_needed(next_attempt(parent))


def test_nothing_is_put_back_while_a_child_is_under_way():
    """Hooks that look at what a person has made of a call run beside sub-agents."""
    hooks = (Hook("PreToolUse", command="look", repeatable=True),)
    rules = (*RULES, Rule("ask", "Agent(tester)"))
    parent = Parent(workspace=Workspace("/repo", "copy"), hooks=hooks, rules=rules)
    parent.state = apply(parent.state, SnapshotRecorded("tree 1", "created"))
    asked = through_hooks(parent, parent.ask(asks(), asks("tester")))
    assert outcome_of(asked) == Waiting("approval")
    answered = answer(parent, 1, "approved", asks("tester", "Run it."))
    assert isinstance(answered, LocateCalls)
    parent.state = located(parent, answered)
    assert isinstance(parent.go_on(), RunHook)
    assert parent.state.awaits_children
    assert not undo_needed(next_attempt(parent))
    parent.child_ends(1)  # since the files were recorded
    assert not undo_needed(next_attempt(parent))


def test_a_shared_folder_is_recorded_before_a_child_starts_that_begins_with_its_files():
    apart = replace(REVIEWER, name="apart", workspace="own")
    parent = Parent(depth=1, workspace=Workspace("/repo", "shared"), agents=(REVIEWER, apart))
    assert parent.ask(asks(), asks("apart")) == RecordShared()
    assert not parent.started
    parent.state = changed(parent.state, shared_snapshot="tree 1")
    assert outcome_of(parent.go_on()) == CHILDREN
    assert len(parent.started) == 2
    assert parent.state.files.shared_snapshot is None
    parent.child_ends(1)
    parent.child_ends(2)
    assert isinstance(parent.claim(), CallModel)
    assert outcome_of(parent.ask(asks())) == CHILDREN


def test_an_agent_that_a_person_refuses_never_starts():
    parent = Parent(rules=ASKING)
    parent.ask(asks())
    assert isinstance(answer(parent, 0, "denied"), CallModel)
    assert not parent.started
    assert "denied by the person" in parent.results()["a0"]


def test_the_input_that_a_person_changed_is_what_the_child_gets():
    parent = Parent(rules=ASKING)
    parent.ask(asks())
    answered = answer(parent, 0, "approved", asks("tester", "Run it."))
    assert isinstance(answered, LocateCalls)
    parent.state = located(parent, answered)
    parent.go_on()
    (child,) = parent.started
    assert (child.agent_type, child.prompt) == ("tester", "Run it.")
    parent.child_ends(1)
    parent.claim()
    assert "changed its input" in parent.results()["a0"]


def test_a_call_that_cannot_start_is_told_what_a_hook_made_of_it():
    parent = Parent(hooks=(Hook("PreToolUse", command="look"),))
    step = parent.ask(asks())
    assert isinstance(step, RunHook)
    changed = HookResult(HookAnswer("succeeded"), updated_input=asks("nobody"))
    step = parent.go_on(HookFinished(step.run.number, changed))
    assert isinstance(through_hooks(parent, step), CallModel)
    assert not parent.started
    assert parent.results()["a0"] == (
        'A hook that looked at this call changed its input: {"agent_type": "nobody"}. What follows is '
        "of that.\n\nUnknown type of sub-agent 'nobody'. Types: reviewer, tester."
    )


def test_a_call_that_cannot_start_is_told_what_a_person_made_of_it():
    parent = Parent(rules=ASKING)
    parent.ask(asks())
    step = through_hooks(parent, answer(parent, 0, "approved", asks(prompt=" ")))
    assert isinstance(step, CallModel)
    assert not parent.started
    assert "The person who approved this call changed its input" in parent.results()["a0"]
    assert parent.results()["a0"].endswith("must not be blank.")


def test_hooks_look_at_the_changed_input_of_an_agent_that_starts_beside_another():
    """Of a command only once that one has ended: it cannot run before."""
    rules = (*RULES, Rule("ask", "Agent(tester)"), Rule("ask", "Bash"))
    parent = Parent(rules=rules, hooks=(Hook("PreToolUse", command="look"),))
    step = parent.ask(asks(), asks("tester"), after=(uses("Bash", "b0"),))
    assert outcome_of(through_hooks(parent, step)) == Waiting("approval")
    assert [child.agent_type for child in parent.started] == ["reviewer"]
    answer(parent, 2, "approved", {"command": "true"})
    step = answer(parent, 1, "approved", asks("tester", "Run it."))
    assert isinstance(step, LocateCalls)
    parent.state = located(parent, step)
    looked = parent.go_on()
    assert isinstance(looked, RunHook)
    assert (looked.run.index, looked.told["tool_input"]["prompt"]) == (1, "Run it.")
    assert len(parent.started) == 1
    assert outcome_of(through_hooks(parent, looked)) == CHILDREN
    assert [child.prompt for child in parent.started][1:] == ["Run it."]
    for number in (1, 2):
        parent.child_ends(number)
    looked = parent.claim()
    assert isinstance(looked, RunHook)
    assert (looked.run.index, looked.told["tool_input"]) == (2, {"command": "true"})
    denied = HookResult(HookAnswer("succeeded", "deny", "no"))
    assert isinstance(parent.go_on(HookFinished(looked.run.number, denied)), CallModel)
    assert "look` objects: no" in parent.results()["b0"]


def test_a_call_cut_off_by_the_end_of_its_run_still_gets_what_its_child_gives():
    parent = Parent()
    parent.ask(asks(), asks())
    parent.child_ends(1, "done in time")
    parent.child_ends(2, "cancelled: its parent has ended", "failed")
    parent.state = replace(
        parent.state, calls=tuple(replace(call, interrupted=True) for call in parent.state.calls)
    )
    assert isinstance(parent.claim(), CallModel)
    assert parent.results() == {"a0": "done in time", "a1": "cancelled: its parent has ended"}


def test_a_call_cut_off_before_its_child_started_is_interrupted():
    parent = Parent(rules=ASKING)
    parent.ask(asks())
    parent.state = replace(
        parent.state, calls=tuple(replace(call, interrupted=True) for call in parent.state.calls)
    )
    parent.claim()
    assert "Interrupted" in parent.results()["a0"]
    assert not parent.started


def test_a_run_past_its_deadline_starts_no_children():
    parent = Parent(Limits(deadline=500.0), rules=ASKING)
    parent.now = 400.0
    parent.ask(asks())
    parent.now = 600.0
    answered = answer(parent, 0, "approved")
    assert isinstance(answered, LocateCalls)
    parent.state = located(parent, answered)
    ended = outcome_of(parent.go_on())
    assert isinstance(ended, Ended)
    assert ended.reason == "deadline"
    assert not parent.started


def test_a_pause_comes_before_children_start():
    parent = Parent()
    parent.go_on()
    parent.state = changed(parent.state, pause_requested=True)
    assert outcome_of(parent.ask(asks())) == Waiting("paused")
    assert not parent.started


def test_what_children_hold_leaves_less_for_the_parent_until_they_end():
    parent = Parent(Limits(token_ceiling=100_000))
    parent.ask(asks(), asks())
    state = parent.state
    assert state.children.reserved.tokens == sum(child.tokens for child in parent.started)
    assert state.used.tokens == state.money.charged_tokens + state.children.reserved.tokens
    assert state.children.tree_size == state.children.started == 2


def test_a_start_is_an_event_with_the_childs_id_type_and_limits():
    parent = Parent(Limits(token_ceiling=100_110, cost_ceiling_usd=3.0, deadline=2_000.0))
    parent.state = changed(parent.state, tariffs={"a-model": FREE})
    parent.go_on()
    before = parent.state
    parent.ask(asks("tester"))
    (happened,) = [
        event
        for applied in fold(before, parent.entries[1:])
        for event in events_of(applied)
        if event.type == "child_started"
    ]
    assert happened.data == {
        "turn": 1,
        "call_index": 0,
        "tool_use_id": "a0",
        "name": "Agent",
        "child": "run_1.1",
        "agent_type": "tester",
        "description": "look",
        "snapshot": True,
        "token_ceiling": 30_000,
        "cost_ceiling": 500_000_000,
        "deadline": 600.0,
    }


def answer(parent, index, effect, edited=None):
    call = parent.state.calls[index]
    given = Answer(effect, digest_of(edited or call.input), input=edited)
    calls = tuple(replace(c, answer=given) if c.index == index else c for c in parent.state.calls)
    calls = tuple(replace(c, tool_context=None) for c in calls)
    return parent.claim(calls=calls)


def through_hooks(parent, step):
    """What comes after calls are located, and hooks have nothing to say."""
    while isinstance(step, LocateCalls | RunHook):
        if isinstance(step, RunHook):
            fine = HookFinished(step.run.number, HookResult(HookAnswer("succeeded")))
            step = parent.go_on(fine)
        else:
            parent.state = located(parent, step)
            step = parent.go_on()
    return step


def next_attempt(parent):
    """The run as another attempt finds it."""
    return replace(parent.state, attempt=parent.state.attempt + 1)


def located(parent, step):
    indexes = {call.index for call in step.calls}
    return replace(
        parent.state,
        calls=tuple(
            replace(call, tool_context=ToolContext()) if call.index in indexes else call
            for call in parent.state.calls
        ),
    )

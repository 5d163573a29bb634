"""Rules 3 to 5 of the loop: what runs, together with what, and what the model is told otherwise."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.conversation import UNREADABLE_INPUT, ToolResult
from runner.core.entries import CallsDecided, ToolFinished, ToolsStarted
from runner.core.steps import CallModel, RunTools
from runner.core.tool_calls import MOST_PARALLEL_READS
from tests.core.sendable import faults
from tests.core.story import Story, several, started, uses


def asked(*names, **spec):
    """A story whose model asked for these tools, and the effect that is next."""
    story = Story(**spec)
    return story, story.reply("tool_use", *several(*names))


def groups(story):
    return [entry.indexes for entry in story.entries if isinstance(entry, ToolsStarted)]


def contents(story):
    """What the model was told of each call, in the order of the message."""
    return [block["content"] for block in story.tail if block["type"] == "tool_result"]


def interrupt(story):
    """What a cancel leaves: calls without results that will not be run."""
    calls = (call if call.result else replace(call, interrupted=True) for call in story.state.calls)
    return story.claim(calls=tuple(calls))


# --- permissions ---


def test_every_call_is_decided_before_any_runs():
    story, _ = asked("Bash", "Read", "Deploy")
    kinds = [type(entry) for entry in story.entries]
    assert kinds.index(CallsDecided) < kinds.index(ToolFinished) < kinds.index(ToolsStarted)
    decided = next(entry for entry in story.entries if isinstance(entry, CallsDecided))
    assert [decided.decisions[i].effect for i in range(3)] == ["allow", "allow", "deny"]


def test_a_denial_is_a_result_that_names_the_rule():
    story, effect = asked("Deploy")
    assert isinstance(effect, CallModel)
    assert contents(story) == ["Permission denied by the rule deny 'Deploy'."]
    assert story.tail[0]["is_error"] is True
    assert not groups(story)


def test_a_read_only_tool_without_a_rule_is_denied():
    story, _ = asked("Read", rules=())
    assert "no permission rule" in contents(story)[0]
    assert not groups(story)


def test_a_denied_call_hinders_no_other():
    story, effect = asked("Bash", "Deploy", "Bash")
    assert started(effect) == [0]
    story.finish_all()
    assert groups(story) == [(0,), (2,)]
    assert contents(story)[1].startswith("Permission denied")


def test_decisions_outlive_the_attempt_that_made_them():
    story, _ = asked("Bash", "Deploy", "Edit")
    story.finish(0)
    story.claim()
    story.finish_all()
    assert len([e for e in story.entries if isinstance(e, CallsDecided)]) == 1


# --- calls that cannot run ---


def test_an_unknown_tool_is_named_with_those_there_are():
    story, _ = asked("Grepp")
    assert contents(story) == [
        "Unknown tool 'Grepp'. Available tools: Read, Grep, Edit, Bash, Deploy."
    ]


def test_an_unknown_tool_of_a_job_without_tools_is_told_so():
    story, _ = asked("Bash", tools=())
    assert contents(story) == ["Unknown tool 'Bash'. Available tools: none."]


@pytest.mark.parametrize("arguments", [[], "ls", 3, True])
def test_arguments_that_are_no_object_are_refused(arguments):
    story = Story()
    effect = story.reply("tool_use", uses("Bash", arguments=arguments))
    assert isinstance(effect, CallModel)
    assert contents(story) == ["The arguments must be a JSON object."]


def test_each_way_not_to_run_is_a_distinct_error():
    story = Story()
    blocks = [*several("Nothing", "Bash", "Deploy"), uses("Bash", "t3", [])]
    story.reply("tool_use", *blocks)
    story.claim()
    outcomes = {e.index: e.result.outcome for e in story.entries if isinstance(e, ToolFinished)}
    assert outcomes == {0: "unknown_tool", 1: "unknown", 2: "denied", 3: "invalid_input"}
    assert len(set(contents(story))) == 4
    assert all(block["is_error"] for block in story.tail)


def test_success_is_not_marked_as_error():
    story, _ = asked("Bash")
    story.finish(0)
    assert "is_error" not in story.tail[0]


# --- groups ---


def run_groups(*names, **spec):
    story, _ = asked(*names, **spec)
    story.finish_all()
    assert not faults(story.state.messages)
    return groups(story)


def test_safe_runs_neighbouring_reads_together_and_the_others_alone():
    names = ["Read", "Grep", "Bash", "Read", "Edit", "Edit", "Grep", "Read"]
    assert run_groups(*names) == [(0, 1), (2,), (3,), (4,), (5,), (6, 7)]


def test_safe_runs_at_most_eight_together():
    assert run_groups(*["Read"] * 19) == [tuple(range(8)), tuple(range(8, 16)), (16, 17, 18)]


def test_all_runs_everything_together():
    assert run_groups("Read", "Bash", "Edit", "Bash", parallel_tools="all") == [(0, 1, 2, 3)]


def test_off_runs_one_at_a_time():
    assert run_groups("Read", "Read", "Bash", parallel_tools="off") == [(0,), (1,), (2,)]


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(["Read", "Grep", "Bash", "Edit"]), min_size=1, max_size=20),
    st.sampled_from(["safe", "all", "off"]),
)
def test_every_call_is_started_once_and_in_order(names, mode):
    found = run_groups(*names, parallel_tools=mode)
    assert [index for group in found for index in group] == list(range(len(names)))
    for group in found:
        if len(group) > 1 and mode == "safe":
            assert all(names[index] in ("Read", "Grep") for index in group)
            assert len(group) <= MOST_PARALLEL_READS


# --- results ---


@pytest.mark.slow
@given(st.permutations(range(5)))
def test_results_are_in_the_order_asked_whatever_ended_first(order):
    story, effect = asked(*["Read"] * 5)
    assert started(effect) == [0, 1, 2, 3, 4]
    for index in order:
        effect = story.finish(index, f"result {index}")
    assert isinstance(effect, CallModel)
    assert contents(story) == [f"result {index}" for index in range(5)]
    assert [block["tool_use_id"] for block in story.tail] == [f"t{i}" for i in range(5)]


def test_results_join_the_conversation_only_when_all_are_there():
    story, _ = asked("Read", "Read", "Bash")
    assert started(story.finish(1)) == [0]
    assert story.state.messages[-1].role == "assistant"
    assert started(story.finish(0)) == [2]
    story.finish(2)
    assert story.state.messages[-1].role == "user"


def test_an_empty_result_is_a_result():
    story, _ = asked("Bash")
    assert isinstance(story.finish(0, ""), CallModel)
    assert contents(story) == [""]


# --- after a death ---


def test_a_started_call_that_is_not_repeatable_has_an_unknown_outcome():
    story, _ = asked("Bash")
    assert isinstance(story.claim(), CallModel)
    assert "unknown" in contents(story)[0]
    assert groups(story) == [(0,)]


def test_a_started_call_that_is_repeatable_runs_again():
    story, _ = asked("Edit")
    assert started(story.claim()) == [0]
    assert story.state.calls[0].started_by == 2


def test_a_call_that_had_not_started_runs_as_if_nothing_had_happened():
    story, _ = asked("Bash", "Bash")
    assert started(story.claim()) == [1]


def test_a_stored_result_is_never_produced_again():
    story, _ = asked("Read", "Read", "Read")
    story.finish(1, "once")
    assert started(story.claim()) == [0, 2]
    story.finish_all()
    assert contents(story) == ["ok", "once", "ok"]


def test_one_group_may_leave_unknown_repeated_and_finished_calls():
    story, effect = asked("Bash", "Edit", "Bash", "Read", parallel_tools="all")
    assert started(effect) == [0, 1, 2, 3]
    story.finish(2, "stored")
    assert started(story.claim()) == [1, 3]
    story.finish_all()
    assert contents(story)[2] == "stored"
    assert "unknown" in contents(story)[0]


def test_repeatable_calls_survive_death_after_death():
    story, _ = asked("Read", "Edit")
    for _ in range(5):
        assert started(story.claim()) == [0]
    story.finish(0)
    assert started(story.claim()) == [1]


def test_calls_that_a_cancel_cut_off_are_answered_unrun_when_the_run_goes_on():
    story, _ = asked("Read", "Bash", "Edit")
    story.finish(0, "stored")
    assert isinstance(interrupt(story), CallModel)
    assert contents(story)[0] == "stored"
    assert all(text.startswith("Interrupted") for text in contents(story)[1:])
    assert groups(story) == [(0,), (1,)]
    assert not faults(story.state.messages)


def test_an_interrupted_result_is_an_error_for_the_model():
    story, _ = asked("Bash")
    assert isinstance(story.go_on(ToolFinished(0, ToolResult("cut", "interrupted"))), CallModel)
    assert story.tail[0]["is_error"] is True


def test_a_call_in_hand_is_given_again_not_started_again():
    story, effect = asked("Bash")
    assert story.go_on() == effect
    assert isinstance(effect, RunTools)
    assert groups(story) == [(0,)]


def test_arguments_that_could_not_be_read_are_an_error_of_their_own():
    story = Story()
    story.reply("tool_use", uses("Read", arguments={UNREADABLE_INPUT: "[1, 2"}))
    (result,) = story.tail
    assert result["is_error"]
    assert "JSON object" in result["content"]

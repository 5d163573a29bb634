"""A coordinator splits its task once, into parts that work side by side, and joins what they give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.children import MOST_CHARACTERS
from runner.core.entries import UserMessageAdded
from runner.core.run import Ended, Waiting
from runner.core.steps import CallModel, LocateCalls
from runner.core.text import SPLIT_AGAIN_TEXT, SPLIT_TEXT
from runner.permissions import Rule
from tests.core.agents.family import SPLIT, WITH_AGENTS, Parent, a_coordinator, asks, splits
from tests.core.story import changed, outcome_of, says, text_of, uses

CHILDREN = Waiting("children")
BAD = {"parts": [{"description": "all", "prompt": "Do all."}]}
TOO_FEW = "parts: at least 2"


def test_it_is_told_to_split_right_after_its_task():
    run = a_coordinator()
    assert isinstance(run.go_on(), CallModel)
    assert text_of(run.state.messages[0].blocks) == ["Mend it.", SPLIT_TEXT]
    assert len(run.state.messages) == 1
    assert run.state.children.split == "asked"


def test_what_it_is_told_says_nothing_that_the_type_of_the_parts_decides():
    for decided in ("conversation", "prompt", "files"):
        assert decided not in SPLIT_TEXT


def test_who_is_no_coordinator_is_told_nothing():
    run = Parent(tools=(*WITH_AGENTS, SPLIT))
    run.go_on()
    assert text_of(run.state.messages[0].blocks) == ["Mend it."]
    assert run.state.children.split == ""


def test_a_good_split_becomes_children_of_the_coordinators_type_and_its_result_joins_theirs():
    run = a_coordinator()
    assert outcome_of(run.split(splits("the reader", "the writer"))) == CHILDREN
    assert [(c.index, c.agent_type, c.description, c.prompt) for c in run.started] == [
        (0, "reviewer", "the reader", "Do the reader."),
        (0, "reviewer", "the writer", "Do the writer."),
    ]
    run.child_ends(2, "written")
    assert outcome_of(run.claim()) == CHILDREN
    run.child_ends(1, "It failed.", "failed")
    assert isinstance(run.claim(), CallModel)
    assert run.results() == {
        "s0": "## 1. the reader (failed)\n\nIt failed.\n\n## 2. the writer\n\nwritten"
    }
    assert "is_error" not in run.tail[0]
    ended = outcome_of(run.reply("end_turn", says("All of it is done.")))
    assert ended == Ended("succeeded", "end_turn")


def test_parts_that_all_fail_are_an_error_result():
    run = a_coordinator()
    run.split(splits("a", "b"))
    run.child_ends(1, "no", "failed")
    run.child_ends(2, "no", "failed")
    run.claim()
    assert run.tail[0]["is_error"]


def test_a_split_needs_no_rule():
    run = a_coordinator(rules=(Rule("deny", "split_task"),))
    assert outcome_of(run.split(splits("a", "b"))) == CHILDREN


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_who_cannot_read_the_rest_of_a_long_result_is_not_told_to_start_another_sub_agent(parts):
    run = a_coordinator() if parts else Parent()
    if parts:
        run.split(splits(*map(str, range(parts))))
    else:
        run.ask(asks())
    for child in run.started:
        run.child_ends(child.number, "x" * 2 * MOST_CHARACTERS)
    run.claim()
    (content,) = run.results().values()
    assert "left out to save context; a new call would start another sub-agent …]" in content
    assert "run the call again" not in content


def test_long_results_of_parts_are_cut_one_by_one_and_kept_whole():
    run = a_coordinator()
    run.split(splits("a", "b"))
    run.child_ends(1, "x" * MOST_CHARACTERS)
    run.child_ends(2, "short")
    run.claim()
    content = run.results()["s0"]
    assert content.endswith("## 2. b\n\nshort")
    assert len(content) < MOST_CHARACTERS
    (finished,) = [entry.result for entry in run.entries if hasattr(entry, "result")]
    assert finished.output is not None
    assert finished.output.count(b"x") == MOST_CHARACTERS


def test_it_may_look_around_before_it_splits():
    run = a_coordinator()
    run.reply("tool_use", uses("Read", "r"))
    run.finish(0)
    assert run.state.children.split == "asked"
    assert outcome_of(run.split(splits("a", "b"))) == CHILDREN


def test_no_sub_agent_starts_before_the_split():
    run = a_coordinator()
    run.ask(asks())
    assert "Split the task" in run.results()["a0"]
    assert not run.started


def test_a_bad_split_is_told_what_is_wrong_and_asked_for_once_more():
    run = a_coordinator()
    assert isinstance(run.split(BAD, problem=TOO_FEW), CallModel)
    assert run.results()["s0"].startswith(TOO_FEW)
    assert run.state.children.split == "asked_again"
    assert outcome_of(run.split(splits("a", "b"))) == CHILDREN
    assert len(run.started) == 2


@pytest.mark.parametrize("bad", [BAD, splits("a", " "), [], {"unreadable_arguments": "{"}])
def test_a_second_bad_split_gives_one_child_the_whole_task(bad):
    run = a_coordinator()
    run.split(bad, problem=TOO_FEW if bad == BAD else "")
    assert outcome_of(run.split(bad, problem=TOO_FEW if bad == BAD else "")) == CHILDREN
    (child,) = run.started
    assert (child.index, child.prompt, child.agent_type) == (0, "Mend it.", "reviewer")
    run.child_ends(1, "Mended.")
    assert isinstance(run.claim(), CallModel)
    assert run.results() == {"s1": "Mended."}
    assert outcome_of(run.reply("end_turn", says())) == Ended("succeeded", "end_turn")


def test_two_bad_splits_in_one_reply_are_one_that_is_no_good():
    run = a_coordinator()
    run.reply("tool_use", uses("split_task", "s", []), uses("split_task", "t", []))
    assert run.state.children.split == "asked_again"
    assert all("once more" in content for content in run.results().values())
    assert not run.started


def test_who_ends_without_a_split_is_asked_once_more_then_one_child_has_the_whole_task():
    run = a_coordinator()
    assert isinstance(run.reply("end_turn", says("I would rather not.")), CallModel)
    assert text_of(run.tail) == [SPLIT_AGAIN_TEXT]
    assert outcome_of(run.reply("end_turn", says("No."))) == CHILDREN
    (child,) = run.started
    assert (child.index, child.prompt) == (None, "Mend it.")
    assert outcome_of(run.claim()) == CHILDREN
    run.child_ends(1, "Mended {it}.")
    assert isinstance(run.claim(), CallModel)
    assert text_of(run.tail)[0].endswith("Mended {it}.")
    assert run.state.children.current == ()
    assert outcome_of(run.reply("end_turn", says())) == Ended("succeeded", "end_turn")
    assert len(run.started) == 1


def test_a_bad_split_and_then_none_gives_one_child_the_whole_task():
    run = a_coordinator()
    run.split(BAD, problem=TOO_FEW)
    assert outcome_of(run.reply("end_turn", says("No."))) == CHILDREN
    assert [child.index for child in run.started] == [None]


def test_what_the_one_child_gave_is_cut_like_the_output_of_a_tool():
    run = a_coordinator()
    run.reply("end_turn", says())
    run.reply("end_turn", says())
    run.child_ends(1, "x" * 2 * MOST_CHARACTERS)
    run.claim()
    (text,) = text_of(run.tail)
    assert len(text) < MOST_CHARACTERS + 1_000
    assert "the conversation of run_1.1 has all of it" in text


def test_no_message_of_a_person_comes_before_what_the_one_child_gives():
    run = a_coordinator()
    run.reply("end_turn", says())
    run.reply("end_turn", says())
    run.say("Hurry.")
    assert outcome_of(run.claim()) == CHILDREN
    run.child_ends(1)
    run.claim()
    causes = [entry.cause for entry in run.entries if isinstance(entry, UserMessageAdded)]
    assert causes[-2:] == ["children", "queued"]


def test_a_pause_is_heard_while_the_one_child_works():
    run = a_coordinator()
    run.reply("end_turn", says())
    run.reply("end_turn", says())
    assert outcome_of(run.claim(pause_requested=True)) == Waiting("paused")
    assert outcome_of(run.claim()) == CHILDREN


def test_a_second_split_after_a_good_one_is_an_error_result():
    run = a_coordinator()
    run.split(splits("a", "b"))
    run.child_ends(1)
    run.child_ends(2)
    run.claim()
    assert isinstance(run.split(splits("c", "d")), CallModel)
    assert run.tail[0]["is_error"]
    assert "has been split" in run.results()["s1"]
    assert len(run.started) == 2


def test_a_second_split_in_the_same_reply_is_an_error_result():
    run = a_coordinator()
    first, second = splits("a", "b"), splits("c", "d")
    effect = run.reply("tool_use", uses("split_task", "s", first), uses("split_task", "t", second))
    assert outcome_of(effect) == CHILDREN
    assert len(run.started) == 2
    run.child_ends(1)
    run.child_ends(2)
    run.claim()
    assert "has been split" in run.results()["t"]


def test_once_split_it_may_start_sub_agents_as_any_run():
    run = a_coordinator()
    run.split(splits("a", "b"))
    run.child_ends(1)
    run.child_ends(2)
    run.claim()
    assert outcome_of(run.ask(asks("tester"))) == CHILDREN
    assert [child.number for child in run.started] == [1, 2, 3]


def test_a_split_is_looked_at_again_by_an_attempt_that_does_not_know_whether_it_fits():
    run = a_coordinator()
    run.go_on()
    run.state = changed(run.state, pause_requested=True)
    assert outcome_of(run.split(BAD, problem=TOO_FEW)) == Waiting("paused")
    calls = tuple(replace(call, tool_context=None) for call in run.state.calls)
    effect = run.claim(calls=calls)
    assert isinstance(effect, LocateCalls)
    assert [call.index for call in effect.calls] == [0]
    assert not run.started

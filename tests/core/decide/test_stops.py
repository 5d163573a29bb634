"""Rule 1 of the loop: what follows from how a reply ended."""

import pytest

from runner.core.budget import Limits
from runner.core.decide import MOST_CONTINUATIONS
from runner.core.entries import ModelCallStarted
from runner.core.run import Ended
from runner.core.steps import CallModel, Done
from runner.core.text import CONTINUE_TEXT, NUDGE_TEXT, RESUME_TEXT
from tests.core.sendable import faults
from tests.core.story import Story, outcome_of, says, started, text_of, thinks, uses

SERVER_TOOL = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}


def test_a_run_begins_with_a_model_call():
    story = Story()
    effect = story.go_on()
    assert isinstance(effect, CallModel)
    assert [type(entry) for entry in story.entries] == [ModelCallStarted]


@pytest.mark.parametrize("reason", ["end_turn", "stop_sequence"])
def test_a_finished_reply_succeeds(reason):
    story = Story()
    assert outcome_of(story.reply(reason, says())) == Ended("succeeded", reason)


@pytest.mark.parametrize("reason", ["tool_use", "end_turn", "stop_sequence", "pause_turn"])
def test_tools_that_were_asked_for_run_and_the_model_is_called_again(reason):
    story = Story()
    assert started(story.reply(reason, says(), uses("Bash"))) == [0]
    assert isinstance(story.finish(0), CallModel)
    assert not faults(story.state.messages)


def test_tool_use_without_a_call_has_a_definite_end():
    outcome = outcome_of(Story().reply("tool_use", says()))
    assert (outcome.state, outcome.reason) == ("failed", "no_tool_call")


# --- max_tokens ---


def test_a_reply_that_was_cut_ends_the_run_where_the_job_accepts_it():
    story = Story(on_max_tokens="accept")
    outcome = outcome_of(story.reply("max_tokens", says("Half")))
    assert (outcome.state, outcome.reason) == ("succeeded", "max_tokens")


def test_the_results_of_a_cut_reply_are_read_although_the_job_accepts_it():
    story = Story(on_max_tokens="accept")
    story.reply("max_tokens", says("Half"), uses("Bash"))
    assert isinstance(story.finish(0), CallModel)


def test_a_cut_reply_is_asked_to_go_on():
    story = Story()
    assert isinstance(story.reply("max_tokens", says("Half")), CallModel)
    assert text_of(story.tail) == [CONTINUE_TEXT]


def test_finished_calls_of_a_cut_reply_run_and_then_it_goes_on():
    story = Story()
    assert started(story.reply("max_tokens", says("Half"), uses("Bash"))) == [0]
    assert isinstance(story.finish(0), CallModel)
    assert [block["type"] for block in story.tail] == ["tool_result", "text"]
    assert text_of(story.tail) == [CONTINUE_TEXT]


def test_third_cut_in_a_row_stops_the_run():
    story = Story()
    for _ in range(MOST_CONTINUATIONS):
        assert isinstance(story.reply("max_tokens", says("Half")), CallModel)
    outcome = outcome_of(story.reply("max_tokens", says("Half")))
    assert (outcome.state, outcome.reason) == ("stopped", "max_tokens")


def test_third_cut_in_a_row_still_answers_its_finished_calls():
    story = Story()
    for number in range(MOST_CONTINUATIONS + 1):
        story.reply("max_tokens", uses("Bash", f"t{number}"))
        effect = story.finish(0)
    assert outcome_of(effect).reason == "max_tokens"
    assert not faults(story.state.messages)


def test_a_whole_reply_between_cuts_begins_the_count_anew():
    story = Story()
    for number in range(3):
        story.reply("max_tokens", says("Half"))
        story.reply("max_tokens", says("Half"))
        story.reply("tool_use", uses("Bash", f"t{number}"))
        assert isinstance(story.finish(0), CallModel)


def test_a_cut_reply_of_thinking_alone_counts_as_empty():
    story = Story()
    story.reply("max_tokens", thinks())
    assert len(story.state.messages) == 1
    assert len(story.tail) == 2  # the prompt, and a word that it goes on


def test_thinking_at_the_end_of_a_cut_reply_is_not_sent_back():
    story = Story()
    story.reply("max_tokens", thinks(), says("Half"), thinks())
    assert [block["type"] for block in story.state.messages[1].blocks] == ["thinking", "text"]
    assert not faults(story.state.messages)


# --- empty replies ---


@pytest.mark.parametrize("reason", ["end_turn", "stop_sequence", "tool_use", "pause_turn"])
@pytest.mark.parametrize("blocks", [(), (thinks(),), (says(""),), (says(" \n"),)])
def test_an_empty_reply_is_nudged_and_never_stored(reason, blocks):
    story = Story()
    assert isinstance(story.reply(reason, *blocks), CallModel)
    assert [message.role for message in story.state.messages] == ["user"]
    assert text_of(story.tail) == ["Mend it.", NUDGE_TEXT]


def test_a_second_empty_reply_in_a_row_ends_the_run():
    story = Story()
    story.reply("end_turn")
    outcome = outcome_of(story.reply("end_turn"))
    assert (outcome.state, outcome.reason) == ("failed", "empty_reply")


def test_an_empty_reply_after_tools_is_nudged_behind_their_results():
    story = Story()
    story.reply("tool_use", uses("Bash"))
    story.finish(0)
    story.reply("end_turn")
    assert [block["type"] for block in story.tail] == ["tool_result", "text"]


def test_a_reply_with_content_earns_another_nudge():
    story = Story()
    story.reply("end_turn")
    story.reply("tool_use", uses("Bash"))
    story.finish(0)
    assert isinstance(story.reply("end_turn"), CallModel)


def test_a_blank_text_beside_a_call_does_not_enter_the_conversation():
    story = Story()
    story.reply("tool_use", says(""), uses("Bash"))
    story.finish(0)
    assert [block["type"] for block in story.state.messages[1].blocks] == ["tool_use"]


def test_unknown_kinds_of_blocks_are_content():
    story = Story()
    assert outcome_of(story.reply("end_turn", {"type": "novel"})).state == "succeeded"
    assert story.tail == ({"type": "novel"},)


# --- the other stop reasons ---


def test_a_paused_turn_goes_back_as_it_is():
    story = Story()
    assert isinstance(story.reply("pause_turn", SERVER_TOOL), CallModel)
    assert story.tail == (SERVER_TOOL,)
    assert story.state.messages[-1].role == "assistant"


def test_a_paused_turn_goes_back_after_a_crash_too():
    story = Story()
    story.reply("pause_turn", SERVER_TOOL)
    assert isinstance(story.claim(), CallModel)
    assert story.tail == (SERVER_TOOL,)


def test_endless_pausing_is_bounded_by_the_turn_limit():
    story = Story()
    effect = story.go_on()
    while not isinstance(effect, Done):
        effect = story.reply("pause_turn", SERVER_TOOL)
    assert outcome_of(effect).reason == "max_turns"


def test_a_refusal_fails_the_run_and_is_not_sent_back():
    story = Story()
    outcome = outcome_of(story.reply("refusal", says("I had begun to"), uses("Bash")))
    assert (outcome.state, outcome.reason) == ("failed", "refused")
    assert [message.role for message in story.state.messages] == ["user"]
    assert not story.state.calls


def test_a_full_window_stops_a_run_that_nothing_can_be_left_out_of():
    outcome = outcome_of(Story().reply("model_context_window_exceeded", says()))
    assert (outcome.state, outcome.reason) == ("stopped", "context_window")
    assert "context.window" in outcome.detail


def test_finished_calls_of_a_reply_cut_by_the_window_run_first():
    story = Story()
    assert started(story.reply("model_context_window_exceeded", says(), uses("Bash"))) == [0]
    assert outcome_of(story.finish(0)).reason == "context_window"
    assert text_of(story.tail) == [CONTINUE_TEXT]
    assert not faults(story.state.messages)


def test_empty_replies_of_a_full_window_end_as_what_they_are():
    assert outcome_of(Story().reply("model_context_window_exceeded")).reason == "context_window"


def test_an_unknown_stop_reason_ends_the_run_and_is_named():
    outcome = outcome_of(Story().reply("out_of_cheese", says()))
    assert (outcome.state, outcome.reason) == ("failed", "unknown_stop_reason")
    assert "out_of_cheese" in outcome.detail


# --- going on after an end ---

ENDS = [
    ("end_turn", (says(),)),
    ("stop_sequence", (says(),)),
    ("refusal", ()),
    ("tool_use", (says(),)),
    ("out_of_cheese", (says(),)),
    ("model_context_window_exceeded", (says(),)),
]


@pytest.mark.parametrize(("reason", "blocks"), ENDS)
def test_a_run_taken_up_again_calls_the_model_whatever_ended_it(reason, blocks):
    story = Story()
    assert isinstance(story.reply(reason, *blocks), Done)
    assert isinstance(story.claim(), CallModel)
    assert not faults(story.state.messages)


@pytest.mark.parametrize(("reason", "blocks"), ENDS)
def test_a_message_to_an_ended_run_is_delivered(reason, blocks):
    story = Story()
    assert isinstance(story.reply(reason, *blocks), Done)
    story.say("One thing more.")
    assert isinstance(story.claim(), CallModel)
    assert text_of(story.tail)[-1] == "One thing more."
    assert not faults(story.state.messages)


def test_a_succeeded_run_taken_up_without_a_message_is_told_to_go_on():
    story = Story()
    story.reply("end_turn", says())
    story.claim()
    assert text_of(story.tail) == [RESUME_TEXT]


def test_a_run_taken_up_again_has_all_its_continuations_and_its_nudge():
    story = Story()
    story.reply("end_turn")
    assert isinstance(story.reply("end_turn"), Done)
    story.claim()
    assert isinstance(story.reply("end_turn"), CallModel)
    for _ in range(MOST_CONTINUATIONS):
        assert isinstance(story.reply("max_tokens", says("Half")), CallModel)
    assert isinstance(story.reply("max_tokens", says("Half")), Done)


def test_a_run_told_to_go_on_may_still_be_continued_twice():
    story = Story()
    story.reply("end_turn", says())
    story.claim()
    for _ in range(MOST_CONTINUATIONS):
        assert isinstance(story.reply("max_tokens", says("Half")), CallModel)


def test_a_paused_turn_that_met_a_limit_goes_back_as_it_is_when_taken_up():
    story = Story()
    story.claim(limits=Limits(max_turns=1))
    assert isinstance(story.reply("pause_turn", SERVER_TOOL), Done)
    story.say("And?")
    assert isinstance(story.claim(limits=Limits()), CallModel)
    assert story.tail == (SERVER_TOOL,)


def test_a_run_stopped_by_its_cuts_may_be_continued_twice_when_taken_up():
    story = Story()
    for _ in range(2):
        while not isinstance(story.reply("max_tokens", says("Half")), Done):
            pass
        story.claim()
    assert story.state.turns == 2 * (MOST_CONTINUATIONS + 1)

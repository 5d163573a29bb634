"""Rules 6 and 7 of the loop, and queued messages: failing, waiting, stopping, being told more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.budget import Limits
from runner.core.entries import RunSettled
from runner.core.run import Ended, Requeued, Waiting
from runner.core.steps import AwaitPermit, CallModel, Done, RunTools, Sleep
from tests.core.sendable import faults
from tests.core.story import Story, changed, outcome_of, says, several, text_of, uses

# --- model errors ---


def test_a_short_wait_is_slept_in_hand():
    story = Story()
    assert story.break_off(retry_at=story.now + 5.0) == Sleep(story.now + 5.0)
    story.now += 5.0
    assert isinstance(story.go_on(), CallModel)


def test_a_longer_wait_frees_the_worker():
    story = Story()
    due = story.now + 5.1
    assert outcome_of(story.break_off(retry_at=due)) == Requeued(due, "backoff")
    story.now = due
    assert isinstance(story.claim(), CallModel)


def test_a_run_claimed_before_its_time_waits_on():
    story = Story()
    due = story.now + 60.0
    story.break_off(retry_at=due)
    assert outcome_of(story.claim()) == Requeued(due, "backoff")
    story.now = due - 2.0
    assert story.claim() == Sleep(due)


def test_a_wait_for_a_permit_stores_and_reserves_nothing_of_the_call():
    story = Story()
    story.permit_at = story.now + 4.0
    assert story.go_on() == AwaitPermit(story.now + 5.0)
    assert story.entries == []
    story.permit_at = None
    assert isinstance(story.go_on(), CallModel)


def test_a_long_wait_for_a_permit_frees_the_worker_and_counts_as_no_failure():
    story = Story()
    story.break_off(retry_at=story.now)
    story.permit_at = due = story.now + 60.0
    assert outcome_of(story.claim()) == Requeued(due, "rate_limit")
    assert story.state.model.failure is None
    story.permit_at = None
    assert isinstance(story.claim(), CallModel)


def test_a_run_whose_permit_would_come_after_its_deadline_ends():
    story = Story(limits=Limits(deadline=1_100.0))
    story.permit_at = story.now + 200.0
    assert outcome_of(story.go_on()).reason == "deadline"


def test_a_fatal_error_ends_the_run_in_the_apis_own_words():
    story = Story()
    outcome = outcome_of(story.break_off("authentication_error", retry_at=None, status=401))
    assert (outcome.state, outcome.reason) == ("failed", "authentication_error")
    assert "its own words" in outcome.detail
    assert "req_7" in outcome.detail


def test_a_run_that_failed_for_good_can_be_tried_again():
    story = Story()
    assert isinstance(story.break_off(retry_at=None), Done)
    assert isinstance(story.claim(), CallModel)
    assert story.state.model.failure is None


def test_failures_in_a_row_are_counted_from_the_first():
    story = Story()
    story.break_off(retry_at=story.now)
    first = story.now
    story.now += 30.0
    story.break_off(retry_at=story.now)
    assert story.state.model.failure.count == 2
    assert story.state.model.failure.first_at == first


def test_a_reply_ends_the_row_of_failures():
    story = Story()
    story.break_off(retry_at=story.now)
    story.reply("tool_use", uses("Bash"))
    assert story.state.model.failure is None


def test_charges_of_failed_calls_add_up():
    story = Story()
    for charged in (100, 0, 25):
        story.break_off(retry_at=story.now, charged=charged)
    assert story.state.money.charged_tokens == 125


def test_a_dead_attempts_call_is_made_again_at_once():
    story = Story()
    story.go_on()
    assert isinstance(story.claim(), CallModel)
    assert story.state.model.failure is None, "a dead worker wears out no patience"


def test_time_spent_paused_does_not_wear_out_patience():
    story = Story()
    story.go_on()
    story.state = changed(story.state, pause_requested=True)
    assert outcome_of(story.break_off(retry_at=story.now + 60.0)) == Waiting("paused")
    assert story.state.model.failure is None


# --- pausing and shutting down ---


def moments():
    """Runs at every kind of step boundary."""
    fresh = Story()
    between = Story()
    between.reply("tool_use", *several("Bash", "Bash"))
    calling = Story()
    calling.go_on()
    return [("fresh", fresh), ("between tools", between), ("reply in hand", calling)]


def finish_in_hand(story):
    if story.state.model.open_call is not None:
        return story.reply("tool_use", uses("Bash"))
    return story.finish(0) if story.state.calls else story.go_on()


@pytest.mark.parametrize(("name", "story"), moments())
def test_pausing_stops_at_the_next_step_boundary(name, story):
    story.state = changed(story.state, pause_requested=True)
    assert outcome_of(finish_in_hand(story)) == Waiting("paused")
    assert not isinstance(story.claim(), Done)


@pytest.mark.parametrize(("name", "story"), moments())
def test_shutting_down_stops_at_the_next_step_boundary(name, story):
    story.draining = True
    assert outcome_of(finish_in_hand(story)) == Requeued(story.now, "shutdown")
    story.draining = False
    assert not isinstance(story.claim(), Done)


def test_a_slot_is_given_up_only_when_a_turn_has_ended():
    story = Story()
    story.reply("tool_use", *several("Bash", "Bash"))
    story.yields = True
    assert isinstance(story.finish(0), RunTools)
    assert outcome_of(story.finish(1)) == Requeued(story.now, "yielded")
    story.yields = False
    assert isinstance(story.claim(), CallModel)


def test_a_run_that_has_ended_gives_up_its_slot_by_that():
    story = Story()
    story.go_on()
    story.yields = True
    assert outcome_of(story.reply("end_turn", says())) == Ended("succeeded", "end_turn")


def test_a_paused_run_does_not_pause_again_when_it_goes_on():
    story = Story()
    story.state = changed(story.state, pause_requested=True)
    story.go_on()
    assert not story.state.inbox.pause_requested
    assert isinstance(story.claim(), CallModel)


@pytest.mark.parametrize("how", ["pause", "drain"])
def test_a_last_reply_ends_the_run_all_the_same(how):
    story = Story()
    story.go_on()
    story.state = changed(story.state, pause_requested=how == "pause")
    story.draining = how == "drain"
    assert outcome_of(story.reply("end_turn", says())) == Ended("succeeded", "end_turn")


@pytest.mark.parametrize("how", ["pause", "drain"])
def test_what_is_in_hand_is_finished_first(how):
    story = Story()
    story.reply("tool_use", *several("Read", "Read", "Bash"))
    story.state = changed(story.state, pause_requested=how == "pause")
    story.draining = how == "drain"
    assert isinstance(story.finish(0), RunTools)
    assert isinstance(story.finish(1), Done)


def test_a_shutdown_keeps_the_time_of_the_retry():
    story = Story()
    story.go_on()
    story.draining = True
    due = story.now + 60.0
    assert outcome_of(story.break_off(retry_at=due)) == Requeued(story.now, "shutdown")
    story.draining = False
    assert outcome_of(story.claim()) == Requeued(due, "backoff")


def test_a_settled_run_stays_settled():
    story = Story()
    effect = story.reply("end_turn", says())
    assert story.go_on() == effect
    assert len([entry for entry in story.entries if isinstance(entry, RunSettled)]) == 1


# --- queued messages ---


def test_a_message_joins_behind_the_tool_results():
    story = Story()
    story.reply("tool_use", *several("Bash", "Bash"))
    story.say("Hurry.", "And be careful.")
    story.finish(0)
    assert story.state.messages[-1].role == "assistant"
    story.finish(1)
    assert [b["type"] for b in story.tail] == ["tool_result", "tool_result", "text", "text"]
    assert text_of(story.tail) == ["Hurry.", "And be careful."]
    assert not story.state.inbox.messages


@pytest.mark.parametrize("reason", ["end_turn", "stop_sequence", "out_of_cheese", "tool_use"])
def test_a_message_that_arrives_late_means_another_turn(reason):
    story = Story()
    story.go_on()
    story.say("One thing more.")
    assert isinstance(story.reply(reason, says()), CallModel)
    assert text_of(story.tail) == ["One thing more."]


def test_a_message_before_the_first_call_goes_with_the_prompt():
    story = Story()
    story.say("In French.")
    story.go_on()
    assert text_of(story.tail) == ["Mend it.", "In French."]


def test_a_message_waits_until_a_paused_turn_is_whole():
    story = Story()
    story.go_on()
    story.say("Hurry.")
    assert isinstance(story.reply("pause_turn", says()), CallModel)
    assert story.state.inbox.messages
    assert isinstance(story.reply("end_turn", says()), CallModel)
    assert text_of(story.tail) == ["Hurry."]


def test_a_message_answers_an_empty_reply():
    story = Story()
    story.go_on()
    story.say("Well?")
    assert isinstance(story.reply("end_turn"), CallModel)
    assert text_of(story.tail) == ["Mend it.", "Well?"]


def test_a_message_does_not_count_as_a_continuation():
    story = Story()
    for _ in range(4):
        story.go_on()
        story.say("Go on.")
        assert isinstance(story.reply("max_tokens", says("Half")), CallModel)


@pytest.mark.slow
@given(st.lists(st.sampled_from(["Read", "Bash"]), min_size=1, max_size=4), st.integers(0, 4))
def test_a_message_never_parts_a_call_from_its_result(names, when):
    story = Story()
    effect = story.reply("tool_use", *several(*names))
    for step in range(len(names)):
        if step == min(when, len(names) - 1):
            story.say("Hurry.")
        assert isinstance(effect, RunTools)
        effect = story.finish(effect.calls[-1].index)
    assert isinstance(effect, CallModel)
    assert not faults(story.state.messages)
    assert text_of(story.tail) == ["Hurry."]


def test_a_refused_key_wears_out_no_patience():
    story = Story()
    story.break_off(retry_at=story.now)
    before = story.state.model.failure
    step = story.break_off("authentication_error", retry_at=story.now, status=401)
    assert isinstance(step, CallModel)
    assert story.state.model.failure == before

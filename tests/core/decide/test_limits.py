"""Rule 2 of the loop: turns, tokens and time."""

from dataclasses import replace

from runner.core.budget import LEAST_OUTPUT_TOKENS, Charged, Limits
from runner.core.conversation import content_bytes
from runner.core.entries import ModelCallStarted
from runner.core.run import Requeued
from runner.core.steps import CallModel, Done, RunTools
from tests.core.sendable import faults
from tests.core.story import Story, a_run, changed, outcome_of, says, several, text_of, uses


def with_limits(**limits):
    return Story(a_run(limits=Limits(**limits)))


def reservation(effect):
    assert isinstance(effect, CallModel), effect
    return effect.call.reservation


# --- turns ---


def test_turn_limit_is_checked_before_each_call():
    story = with_limits(max_turns=2)
    for number in range(2):
        story.reply("tool_use", uses("Bash", f"t{number}"))
        effect = story.finish(0)
    outcome = outcome_of(effect)
    assert (outcome.state, outcome.reason) == ("stopped", "max_turns")
    assert story.state.turns == 2
    assert not faults(story.state.messages)


def test_the_last_allowed_turn_may_still_succeed():
    story = with_limits(max_turns=1)
    assert outcome_of(story.reply("end_turn", says())).state == "succeeded"


def test_parallel_calls_are_one_turn():
    story = Story()
    story.reply("tool_use", *several("Read", "Read", "Read", "Bash"))
    story.finish_all()
    assert story.state.turns == 1


def test_retries_are_no_turns():
    story = with_limits(max_turns=1)
    for _ in range(5):
        story.break_off(retry_at=story.now)
    assert story.state.turns == 0
    assert outcome_of(story.reply("end_turn", says())).state == "succeeded"


def test_a_raised_turn_limit_goes_on():
    story = with_limits(max_turns=1)
    story.reply("tool_use", uses("Bash"))
    assert isinstance(story.finish(0), Done)
    assert isinstance(story.claim(limits=Limits(max_turns=2)), CallModel)
    assert story.state.turns == 1


def test_a_run_taken_up_within_its_old_limit_stops_again_and_says_nothing_twice():
    story = with_limits(max_turns=1)
    story.reply("pause_turn", says())
    for _ in range(3):
        assert outcome_of(story.claim()).reason == "max_turns"
    assert len(story.state.messages) == 2


# --- tokens ---


def test_the_first_call_is_bounded_by_all_that_is_sent():
    story = Story(system="Be brief.")
    spec = story.state.spec
    sent = len(spec.system) + sum(content_bytes(tool.definition()) for tool in spec.tools)
    sent += content_bytes(story.state.messages[0].blocks[0])
    first = reservation(story.go_on())
    assert first.worst_case - first.max_tokens >= sent + 2_000


def test_later_calls_are_bounded_by_real_input_and_what_was_appended():
    story = Story()
    call = uses("Bash")
    story.reply("tool_use", call, prompt=4_321)
    effect = story.finish(0, "x" * 500)
    appended = content_bytes(call) + content_bytes(story.tail[0])
    assert appended > 500
    reserved = reservation(effect)
    assert reserved.worst_case - reserved.max_tokens == 4_321 + appended


def test_what_no_reply_has_seen_stays_counted_over_failed_calls():
    story = Story()
    story.reply("tool_use", uses("Bash"), prompt=100)
    before = reservation(story.finish(0, "x" * 500))
    assert reservation(story.break_off(retry_at=story.now)) == before


def test_output_is_lowered_to_what_is_left():
    story = with_limits(token_ceiling=20_000)
    reserved = reservation(story.go_on())
    assert reserved.lowered
    assert reserved.worst_case == 20_000


def test_without_room_for_1024_tokens_the_run_stops():
    story = with_limits(token_ceiling=2_000 + LEAST_OUTPUT_TOKENS)
    outcome = outcome_of(story.go_on())
    assert (outcome.state, outcome.reason) == ("stopped", "token_ceiling")
    assert not any(isinstance(entry, ModelCallStarted) for entry in story.entries)


def test_a_reply_cut_by_the_lowering_stops_the_run_and_is_kept():
    story = with_limits(token_ceiling=20_000)
    outcome = outcome_of(story.reply("max_tokens", says("Half")))
    assert (outcome.state, outcome.reason) == ("stopped", "token_ceiling")
    assert text_of(story.tail) == ["Half"]


def test_a_reply_cut_by_the_lowering_still_runs_its_finished_calls():
    story = with_limits(token_ceiling=20_000)
    assert isinstance(story.reply("max_tokens", uses("Bash")), RunTools)
    assert outcome_of(story.finish(0)).reason == "token_ceiling"
    assert not faults(story.state.messages)


def test_a_lowered_call_that_ends_by_itself_is_an_ordinary_one():
    story = with_limits(token_ceiling=20_000)
    assert outcome_of(story.reply("end_turn", says())).state == "succeeded"


def test_a_raised_ceiling_goes_on_after_a_cut_by_the_lowering():
    story = with_limits(token_ceiling=20_000)
    story.reply("max_tokens", says("Half"))
    assert isinstance(story.claim(limits=Limits()), CallModel)
    assert story.state.money.charged_tokens == 110
    assert not faults(story.state.messages)


def test_a_raised_ceiling_goes_on_where_there_was_no_room():
    story = with_limits(token_ceiling=10)
    assert isinstance(story.go_on(), Done)
    assert isinstance(story.claim(limits=Limits()), CallModel)


def test_a_run_that_stops_for_its_tokens_says_what_they_were():
    story = Story()
    worst = reservation(story.go_on()).worst_case
    story.claim()  # the first call's worker died
    story.reply("tool_use", uses("Read"), prompt=70, output=7)
    charged = story.state.money.charged_tokens
    limits = Limits(token_ceiling=charged + 10)
    story.state = changed(story.state, limits=limits, reserved=Charged(5))
    assert outcome_of(story.finish(0)).detail == (
        f"{charged + 5:,} of {charged + 10:,} tokens are used (tokens: "
        f"{70 / (charged + 5):.1%} other input, {7 / (charged + 5):.1%} output, "
        f"{worst / (charged + 5):.1%} charged for calls of unknown usage, "
        f"{5 / (charged + 5):.1%} charged to or held for sub-agents); "
        "what is left is too little for the next call"
    )


def test_the_worst_case_is_stored_with_the_start():
    story = Story()
    effect = story.go_on()
    assert story.entries == [ModelCallStarted(1, effect.call.reservation, story.now)]
    assert story.state.model.open_call == effect.call


def test_a_call_whose_attempt_died_is_charged_at_its_worst_case():
    story = Story()
    worst = reservation(story.go_on()).worst_case
    assert isinstance(story.claim(), CallModel)
    assert story.state.money.charged_tokens == worst
    assert story.state.model.calls == 2


def test_an_open_call_of_this_attempt_is_made_not_charged():
    story = Story()
    effect = story.go_on()
    assert story.go_on() == effect
    assert story.state.money.charged_tokens == 0


def test_known_usage_is_charged_in_all_its_kinds():
    story = Story()
    story.reply("end_turn", says(), prompt=70, output=7)
    assert story.state.money.charged_tokens == 77
    assert story.state.money.usage.total == 77


# --- time ---


def test_the_deadline_stops_the_next_call():
    story = with_limits(deadline=60.0)
    story.now = 59.0
    story.reply("tool_use", uses("Bash"))
    story.now = 60.0
    outcome = outcome_of(story.finish(0))
    assert (outcome.state, outcome.reason) == ("stopped", "deadline")


def test_the_deadline_counts_from_the_submission():
    story = with_limits(deadline=60.0)
    story.state = replace(story.state, submitted_at=1_000.0)
    assert isinstance(story.go_on(), CallModel)


def test_shutting_down_a_run_at_its_limit_loses_neither():
    story = with_limits(max_turns=1)
    story.reply("tool_use", uses("Bash"))
    story.draining = True
    assert isinstance(outcome_of(story.finish(0)), Requeued)
    story.draining = False
    assert outcome_of(story.claim()).reason == "max_turns"


def test_a_back_off_past_the_deadline_stops_the_run_at_once():
    story = Story(limits=Limits(deadline=1_100.0))
    outcome = outcome_of(story.break_off(retry_at=story.now + 200.0))
    assert (outcome.state, outcome.reason) == ("stopped", "deadline")

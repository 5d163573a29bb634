"""What becomes of a prompt that the API finds too long, and what summaries may cost."""

from dataclasses import replace

from runner.core.budget import JobBudget
from runner.core.compaction import token_estimate
from runner.core.entries import PROMPT_TOO_LONG, ContextCompacted, ModelCallFailed
from runner.core.run import Requeued
from runner.core.steps import CallModel, CountTokens, Done
from tests.core.context.histories import ENOUGH, LIMITS, WINDOW, WORDS, Talk
from tests.core.story import changed, outcome_of, says

# --- what the API finds too long ---


def too_long(talk):
    failed = ModelCallFailed(PROMPT_TOO_LONG, "prompt is too long", 400, "r", 0, talk.now, talk.now)
    return talk.settle_count(talk.go_on(failed))


def test_a_prompt_found_too_long_is_made_shorter_and_sent_again_twice():
    talk = Talk()
    for _ in range(6):
        talk.exchange(6_000)
    assert talk.kinds == []
    assert isinstance(too_long(talk), CallModel)
    assert talk.kinds == ["clip"]
    assert token_estimate(talk.state).tokens <= ENOUGH
    [entry] = [one for one in talk.entries if isinstance(one, ContextCompacted)]
    assert entry.compaction.tokens_before == WINDOW, "it is as long as the window at least"
    effect = too_long(talk)
    assert talk.is_summary(effect)
    assert isinstance(talk.summarise(), CallModel)
    outcome = outcome_of(too_long(talk))
    assert (outcome.state, outcome.reason) == ("stopped", "context_window")
    assert "3 times" in outcome.detail


def test_a_prompt_found_too_long_that_is_short_already_is_not_said_to_lack_room():
    talk = Talk()
    talk.go_on()
    outcome = outcome_of(too_long(talk))
    assert (outcome.state, outcome.reason) == ("stopped", "context_window")
    assert outcome.detail.startswith("the API found the prompt too long, and nothing of it can be")


def test_a_reactive_job_sends_all_until_the_api_finds_it_too_long():
    talk = Talk(compaction="reactive")
    while token_estimate(talk.state).tokens <= 2 * WINDOW:
        assert isinstance(talk.exchange(6_000), CallModel)
    assert talk.kinds == []
    assert isinstance(too_long(talk), CallModel)
    assert talk.kinds
    assert token_estimate(talk.state).tokens <= ENOUGH


def stated(talk, real, window):
    message = f"prompt is too long: {real} tokens > {window} maximum"
    failed = ModelCallFailed(PROMPT_TOO_LONG, message, 400, "r", 0, talk.now, talk.now)
    return talk.settle_count(talk.go_on(failed))


def test_the_window_that_a_refusal_states_is_the_window_from_then_on():
    talk = Talk()
    for _ in range(6):
        talk.exchange(6_000)
    assert isinstance(stated(talk, 11_500, 11_000), CallModel)
    assert talk.state.context.window == 11_000
    [entry] = [one for one in talk.entries if isinstance(one, ContextCompacted)]
    assert entry.compaction.tokens_before == 11_500, "it is as long as the API said"
    talk.entries.clear()
    longest = 0
    for _ in range(20):
        talk.settle_count(talk.exchange(6_000))
        longest = max(longest, token_estimate(talk.state).tokens)
    assert longest <= 11_000 * 3 / 4
    assert talk.kinds


def test_a_length_that_no_prompt_can_have_is_not_taken_for_one():
    talk = Talk()
    for _ in range(4):
        talk.exchange(6_000)
    before = talk.state.context.tokens
    stated(talk, 900_000, 200_000)
    assert talk.state.context.window == WINDOW, "the job's own is smaller"
    [entry] = [one for one in talk.entries if isinstance(one, ContextCompacted)]
    assert before < entry.compaction.tokens_before == WINDOW


def test_a_reply_between_begins_the_count_anew():
    talk = Talk()
    for _ in range(3):
        for _ in range(4):
            talk.exchange(6_000)
        assert not isinstance(too_long(talk), Done)
        if talk.is_summary(CallModel(talk.state.model.open_call)):
            talk.summarise()
    assert talk.state.context.refusals == 1


def test_a_full_window_makes_room_and_goes_on():
    talk = Talk()
    for _ in range(3):
        talk.exchange(6_000)
    effect = talk.reply("model_context_window_exceeded", says("Half"), prompt=19_000, output=1_000)
    assert isinstance(talk.settle_count(effect), CallModel)
    assert talk.kinds == ["clip"]
    assert not talk.state.context.must_shrink
    assert talk.state.context.refusals == 1


def test_a_run_that_was_stopped_for_its_window_may_be_taken_up_again():
    talk = Talk()
    talk.exchange(100)
    talk.say("x" * 80_000)
    assert isinstance(talk.settle_count(talk.exchange(10)), Done)
    assert isinstance(talk.settle_count(talk.claim(window=200_000)), CallModel)


# --- compaction = "off" ---


def test_with_compaction_off_a_prompt_is_sent_however_long_it_is():
    talk = Talk(compaction="off")
    assert isinstance(talk.exchange(200_000), CallModel)
    assert talk.kinds == []
    assert not any(isinstance(entry, CountTokens) for entry in talk.entries)


def test_with_compaction_off_a_prompt_found_too_long_ends_the_run():
    talk = Talk(compaction="off")
    talk.exchange(200_000)
    outcome = outcome_of(too_long(talk))
    assert (outcome.state, outcome.reason) == ("stopped", "context_window")
    assert "context.compaction" in outcome.detail


# --- money ---


def about_to_summarise(job_budget):
    """A run that a summary is next for, with this budget."""
    talk = Talk()
    talk.fill(500, speech=WORDS)
    talk.state = changed(talk.state, budget=job_budget, open_call=None)
    talk.entries.clear()
    return talk


def test_a_summary_that_the_budget_could_never_cover_is_not_waited_for():
    job_budget = JobBudget(most_tokens=25_000)
    effect = (talk := about_to_summarise(job_budget)).go_on()
    assert talk.kinds == ["prune"]
    assert isinstance(effect, CallModel)
    assert effect.call.purpose == "turn"


def test_a_summary_without_a_price_is_not_asked_for_where_the_cost_is_limited():
    talk = about_to_summarise(JobBudget(most_cost=10**12))
    assert outcome_of(talk.go_on()).reason == "no_price"  # of the turn's own model
    assert talk.kinds == ["prune"]


def test_a_summary_that_the_ceiling_leaves_no_room_for_is_done_without():
    talk = about_to_summarise(None)
    charged = talk.state.money.charged_tokens
    talk.state = replace(talk.state, limits=replace(LIMITS, token_ceiling=charged + 25_000))
    assert isinstance(talk.go_on(), CallModel)
    assert talk.kinds == ["prune"]


def test_a_summary_waits_for_what_others_have_reserved():
    talk = about_to_summarise(JobBudget(most_tokens=10**9, reserved_tokens=10**9))
    assert outcome_of(talk.go_on()) == Requeued(talk.now + 2.0, "budget")


def test_a_summary_counts_as_a_call_and_not_as_a_turn():
    talk = Talk()
    talk.fill(500, speech=WORDS)
    turns, charged = talk.state.turns, talk.state.money.charged_tokens
    assert talk.state.model.tries == 0
    talk.summarise()
    assert (talk.state.turns, talk.state.model.tries) == (turns, 1)
    assert talk.state.money.charged_tokens == charged + 550

"""When the context is made smaller, and by what."""

import pytest

from runner.core import compaction
from runner.core.compaction import HEADING, prompt_limit, token_estimate
from runner.core.context import Pace
from runner.core.conversation import text_block
from runner.core.entries import ContextCompacted, SummaryReplied
from runner.core.model_calls import summary_request
from runner.core.run import Requeued
from runner.core.steps import CallModel, CountTokens
from tests.core.context.histories import ENOUGH, ROOM, WINDOW, WORDS, Talk, estimated
from tests.core.sendable import faults
from tests.core.story import changed, outcome_of

# --- the gate ---


def test_room_is_the_window_without_its_reserve():
    talk = Talk()
    assert prompt_limit(talk.state) == ROOM
    assert token_estimate(talk.state).goal == ENOUGH


def test_nothing_happens_while_there_is_room():
    talk = Talk()
    talk.exchange(40_000)
    assert token_estimate(talk.state).tokens < 0.9 * ROOM
    assert talk.kinds == []


def test_a_reserve_that_would_leave_less_than_half_leaves_half():
    talk = Talk(reserve=19_000)
    assert prompt_limit(talk.state) == WINDOW // 2


def test_near_the_gate_the_api_is_asked_once_a_turn():
    talk = Talk()
    talk.exchange(40_000)
    assert isinstance(talk.exchange(14_000), CountTokens)
    assert isinstance(talk.settle_count(CountTokens()), CallModel)
    talk.break_off(retry_at=talk.now)
    assert talk.state.model.open_call is not None, "a retry asks again"


def test_a_long_first_prompt_is_counted_as_nothing_has_been_measured_yet():
    talk = Talk()
    talk.say("x" * 40_000)
    assert isinstance(talk.go_on(), CountTokens)
    short = Talk()
    short.say("x" * 20_000)
    assert isinstance(short.go_on(), CallModel)


def test_what_the_api_counted_decides_over_the_estimate():
    talk = Talk()
    talk.exchange(40_000)
    effect = talk.exchange(14_000)
    assert token_estimate(talk.state).tokens < ROOM
    talk.settle_count(effect, tokens=ROOM + 1)
    assert talk.kinds == ["clip"]
    talk = Talk()
    talk.exchange(40_000)
    effect = talk.exchange(20_000)
    assert token_estimate(talk.state).tokens > ROOM
    assert isinstance(talk.settle_count(effect, tokens=ROOM), CallModel)
    assert talk.kinds == []


def test_the_gate_is_checked_after_tool_results_not_only_between_turns():
    talk = Talk()
    talk.exchange(20_000)
    effect = talk.settle_count(talk.exchange(45_000))
    assert isinstance(effect, CallModel)
    assert talk.kinds == ["clip"]


# --- the tiers ---


def test_first_old_results_become_a_head_a_tail_and_a_note():
    talk = Talk()
    talk.fill(12_000)
    assert talk.kinds == ["clip"]
    old = talk.state.sent[2].blocks[0]["content"]
    assert len(old) <= 768
    assert old.startswith("begin 1 ")
    assert old.endswith(" end 1")
    assert "characters left out to save context; run the call again" in old
    assert talk.state.sent[-1] == talk.state.messages[-1]
    assert talk.state.context.estimate == estimated(talk.state)
    assert token_estimate(talk.state).tokens <= ENOUGH


def test_a_truncation_names_the_file_of_the_whole_result_where_a_tool_can_read_it():
    talk = Talk()
    talk.state = changed(talk.state, outputs="/home/outputs/run_1")
    talk.fill(12_000)
    old = talk.state.sent[2].blocks[0]["content"]
    assert "all of it is in /home/outputs/run_1/t1.txt: Read it" in old


def test_every_old_result_is_truncated_at_once():
    """What follows the first change is written to the cache again: the others then cost nothing."""
    talk = Talk()
    talk.fill(8_000)
    results = [block for message in talk.state.sent[:-2] for block in message.blocks[:1]]
    assert all(len(block.get("content", "")) <= 768 for block in results)


def test_results_of_one_kilobyte_are_not_truncated():
    talk = Talk()
    effect = talk.fill(900)
    assert talk.is_summary(effect)


def test_if_truncation_is_not_enough_the_middle_is_summarised():
    talk = Talk()
    assert talk.is_summary(talk.fill(500, speech=WORDS))
    tail = talk.state.messages[-2:]
    assert isinstance(talk.summarise("We looked."), CallModel)
    assert talk.kinds == ["summary"]
    assert [message.role for message in talk.state.sent] == ["user", "user", "assistant", "user"]
    assert talk.state.sent[0] == talk.state.messages[0]
    assert talk.state.sent[1].blocks == (text_block(f"{HEADING}\n\nWe looked."),)
    assert talk.state.sent[-2:] == tail
    assert not faults(talk.state.sent, talk.state.context.compacted)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "end_turn"), (" \n", "end_turn"), ("No.", "refusal"), ("So. " * 30_000, "end_turn")],
)
def test_if_the_summary_is_of_no_use_the_oldest_turns_are_left_out(text, reason):
    talk = Talk()
    talk.fill(500, speech=WORDS)
    assert isinstance(talk.summarise(text, reason), CallModel)
    assert talk.kinds == ["prune"]
    assert not faults(talk.state.sent, talk.state.context.compacted)
    assert token_estimate(talk.state).tokens <= ENOUGH
    assert talk.state.sent[1].blocks[0]["text"].startswith(HEADING)
    assert "are left out here" in talk.state.sent[1].blocks[0]["text"]
    [useless] = [entry for entry in talk.entries if isinstance(entry, SummaryReplied)]
    assert useless.why


def test_no_more_turns_are_left_out_than_it_takes():
    talk = Talk()
    talk.fill(500, speech=WORDS)
    talk.summarise("")
    assert 1 < talk.state.context.compacted.last < len(talk.state.messages) - 3


def test_what_the_user_said_in_left_out_turns_is_kept_in_their_words():
    talk = Talk()
    talk.exchange(3_000)
    talk.say('Never touch "main".')
    talk.fill(500, speech=WORDS)
    talk.summarise("")
    assert 'The user said there: "Never touch \\"main\\"."' in talk.state.context.compacted.text


def test_what_stands_in_for_turns_never_takes_more_than_a_quarter_of_the_room():
    talk = Talk()
    talk.exchange(10)
    for number in range(40):
        talk.say(f"Demand {number}: " + "please " * 150)
    talk.fill(500, speech=WORDS)
    talk.summarise("")
    assert talk.kinds == ["prune"]
    text = talk.state.context.compacted.text
    assert len(text) / 4 <= ROOM / 4
    assert text.startswith(HEADING)
    assert "Demand 39" in text


def test_a_summary_that_broke_off_is_used_and_says_so():
    talk = Talk()
    talk.fill(500, speech=WORDS)
    talk.summarise("We looked", "max_tokens")
    assert talk.state.context.compacted.text.endswith("We looked\n[the summary was cut off here]")


def whole(talk, length):
    """Return the number of newest results that are sent whole."""
    results = [message.blocks[0]["content"] for message in talk.state.sent[2::2]]
    return next(
        (n for n, text in enumerate(reversed(results)) if len(text) <= length), len(results)
    )


def test_all_messages_of_the_tail_stay_whole_where_fewer_would_save_little():
    talk = Talk(keep=4)
    talk.fill(2_000)
    assert talk.kinds == ["clip"]
    assert whole(talk, 2_000) == 2


def test_the_tail_is_halved_where_all_of_it_would_leave_little_room():
    talk = Talk(keep=8)
    talk.fill(11_500)
    assert talk.kinds == ["clip"]
    assert whole(talk, 11_500) == 1
    assert token_estimate(talk.state).tokens < ROOM / 2


def test_a_compaction_frees_two_turns_growth_where_a_shorter_tail_can(monkeypatch):
    monkeypatch.setattr(compaction, "NEAR_CHEAPEST", 100.0)  # cost alone would not see to it
    for length in (6_000, 11_500, 14_000, 20_000):
        talk = Talk(keep=8)
        talk.fill(length)
        [made] = [e.compaction for e in talk.entries if isinstance(e, ContextCompacted)]
        freed = made.tokens_before - made.tokens_after
        assert freed >= 2 * length / 4 or whole(talk, length) == 1


def test_old_results_that_leave_too_little_room_are_summarised():
    talk, effect = Talk(), None
    while not (effect and talk.is_summary(effect)):
        talk.entries.clear()
        effect = talk.fill(2_000)
    assert talk.state.context.compacted.count, "results were truncated before"
    talk.summarise("We looked.")
    assert talk.state.context.compacted.text.endswith("We looked.")


def test_a_summary_covers_what_was_decided_when_its_call_began():
    talk = Talk(keep=8)
    talk.fill(500, speech=2 * WORDS)
    call = talk.state.model.open_call
    assert call.last > compaction.tail_starts(talk.state)[0], "a shorter tail pays better"
    asked = summary_request(talk.state, call)
    question = compaction.summary_question(talk.state, call.last)
    assert asked.messages[0].blocks == (text_block(question.text),)
    talk.state = changed(
        talk.state, pace=Pace(slow=0.5), window=2 * WINDOW
    )  # prices and room are others now
    assert summary_request(talk.state, call).messages == asked.messages
    talk.summarise()
    assert talk.state.context.compacted.last == call.last


def test_a_summary_takes_no_more_than_a_quarter_of_the_room():
    talk = Talk()
    talk.fill(500, speech=WORDS)
    talk.summarise("## Goal\n" + "So. " * 6_000 + "## Next steps\nTest it.")
    assert talk.kinds == ["summary"]
    text = talk.state.context.compacted.text
    assert len(text) < ROOM + 200
    assert "## Goal" in text
    assert "characters left out" in text
    assert text.endswith("## Next steps\nTest it.")


def test_a_summary_call_that_fails_for_good_leaves_out_turns_and_the_run_goes_on():
    talk = Talk()
    talk.fill(500, speech=WORDS)
    effect = talk.break_off("invalid_request_error", retry_at=None)
    assert isinstance(effect, CallModel)
    assert effect.call.purpose == "turn"
    assert talk.kinds == ["prune"]


def test_a_summary_call_that_may_be_retried_is():
    talk = Talk()
    talk.fill(500, speech=WORDS)
    assert talk.is_summary(talk.break_off(retry_at=talk.now))
    assert isinstance(outcome_of(talk.break_off(retry_at=talk.now + 60)), Requeued)
    talk.now += 60
    assert talk.is_summary(talk.claim())


def test_a_worker_lost_in_a_summary_is_resumed_by_another():
    talk = Talk()
    talk.fill(500, speech=WORDS)
    assert talk.is_summary(talk.claim())
    assert isinstance(talk.summarise(), CallModel)
    assert talk.kinds == ["summary"]


def test_a_later_summary_folds_in_the_earlier_one():
    talk = Talk()
    talk.fill(500, speech=WORDS)
    talk.summarise("The first summary.")
    talk.entries.clear()
    talk.fill(500, speech=WORDS)
    request = summary_request(talk.state, talk.state.model.open_call)
    assert "The first summary." in request.messages[0].blocks[0]["text"]
    talk.summarise("The second summary.")
    assert talk.state.context.compacted.text == f"{HEADING}\n\nThe second summary."


def test_left_out_turns_keep_what_an_earlier_summary_says():
    talk = Talk()
    talk.fill(500, speech=WORDS)
    talk.summarise("The first summary.")
    talk.entries.clear()
    talk.fill(500, speech=WORDS)
    talk.summarise("")
    assert talk.state.context.compacted.text.startswith(
        f"{HEADING}\n\nThe first summary.\n\n[Messages "
    )


# --- too long by itself ---


def test_a_result_larger_than_the_window_is_cut_before_it_is_sent():
    talk = Talk(keep=8)
    effect = talk.settle_count(talk.exchange(200_000))
    assert isinstance(effect, CallModel)
    assert talk.kinds == ["clip"]
    [block] = talk.state.sent[-1].blocks
    assert 30_000 < len(block["content"]) < 45_000
    assert block["content"].startswith("begin 1 ")
    assert block["content"].endswith(" end 1")
    assert len(talk.state.messages[-1].blocks[0]["content"]) > 200_000


def test_the_longest_recent_results_are_cut_first():
    talk = Talk(keep=8)
    for length in (2_000, 30_000, 70_000):
        effect = talk.settle_count(talk.exchange(length))
    assert isinstance(effect, CallModel)
    lengths = [len(message.blocks[0]["content"]) for message in talk.state.sent[2::2]]
    assert lengths[0] > 2_000
    assert abs(lengths[1] - lengths[2]) < 2
    assert lengths[2] > 10_000


def test_recent_results_are_cut_before_a_recent_turn_is_left_out():
    talk = Talk(keep=8)
    for length in (30_000, 20_000, 20_000):
        talk.settle_count(talk.exchange(length))
    assert talk.kinds == ["clip"]
    assert len(talk.state.sent) == len(talk.state.messages)


def test_recent_turns_are_left_out_only_when_nothing_else_helps():
    talk = Talk(keep=8)
    for _ in range(3):
        effect = talk.settle_count(talk.exchange(10, speech="I think. " * 2_300))
    assert talk.is_summary(effect)
    assert isinstance(talk.summarise(""), CallModel)
    assert talk.kinds == ["prune"]
    assert talk.state.sent[-2:] == talk.state.messages[-2:]


def test_a_task_larger_than_the_window_ends_the_run_and_says_what_to_do():
    talk = Talk()
    talk.say("x" * 80_000)
    outcome = outcome_of(talk.settle_count(talk.go_on()))
    assert (outcome.state, outcome.reason) == ("stopped", "context_window")
    assert "20,000" in outcome.detail
    assert "context.window" in outcome.detail

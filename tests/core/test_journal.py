"""What entries amount to: the fold, the opening, and what of a reply becomes a message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.budget import Limits
from runner.core.conversation import (
    ModelReply,
    ToolResult,
    Usage,
    content_bytes,
    message_blocks,
    result_block,
    tool_uses,
)
from runner.core.fold import fold, opening
from tests.core.sendable import faults
from tests.core.story import Story, a_run, a_spec, says, several, thinks, uses

REDACTED = {"type": "redacted_thinking", "data": "secret"}
BLOCKS = st.sampled_from(
    [says(), says(""), says("\n\t "), thinks(), REDACTED, {"type": "novel"}, uses("Bash")]
)


def reply(reason, *blocks):
    return ModelReply(tuple(blocks), reason, Usage(), "a-model")


def test_folding_all_entries_gives_the_view_that_grew():
    story = Story()
    story.reply("tool_use", *several("Read", "Read", "Deploy"))
    story.say("Hurry.")
    story.finish(1)
    story.finish(0)
    story.break_off(retry_at=story.now)
    story.reply("max_tokens", says("Half"))
    story.reply("end_turn")
    story.reply("end_turn", says())
    assert fold(a_run(), story.entries)[-1].after == story.state


def test_opening_counts_everything_that_the_first_call_sends():
    spec = a_spec(system="Sei kürzer.")
    messages, progress = opening(spec, "Mend it.")
    sent = [message.as_api()["content"] for message in messages]
    assert sent == [[{"type": "text", "text": "Mend it."}]]
    least = len("Sei kürzer.".encode()) + len("Mend it.")
    least += sum(content_bytes(tool.definition()) for tool in spec.tools)
    assert progress.context.appended_bytes >= least


@pytest.mark.slow
@given(st.lists(BLOCKS, max_size=5), st.sampled_from(["end_turn", "max_tokens", "pause_turn"]))
def test_only_what_the_api_takes_back_becomes_a_message(blocks, reason):
    kept = message_blocks(reply(reason, *blocks))
    assert [block for block in kept if block in (says(""), says("\n\t "))] == []
    assert not kept or kept[-1]["type"] not in ("thinking", "redacted_thinking")
    assert tool_uses(kept) == tool_uses(blocks)
    novel = {"type": "novel"}
    assert kept.count(novel) == blocks.count(novel)


@pytest.mark.slow
@given(st.lists(BLOCKS, max_size=5))
def test_nothing_of_a_refusal_becomes_a_message(blocks):
    assert message_blocks(reply("refusal", *blocks)) == ()


def test_blocks_stay_as_they_were():
    block = {"type": "text", "text": " a ", "citations": [{"new": 1}]}
    assert message_blocks(reply("end_turn", thinks(), block)) == (thinks(), block)


@pytest.mark.parametrize("outcome", ["failed", "denied", "timed_out"])
def test_result_block_marks_errors_only(outcome):
    plain = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
    assert result_block("t", ToolResult("x")) == plain
    assert result_block("t", ToolResult("x", outcome)) == {**plain, "is_error": True}


def test_every_appended_byte_is_counted_until_a_reply_has_seen_it():
    story = Story()
    call = uses("Bash")
    story.reply("tool_use", call, prompt=50)
    story.say("ö" * 10)
    story.finish(0, "x" * 20)
    results, text = story.tail
    context = story.state.context
    assert context.last_prompt_tokens == 50
    assert context.appended_bytes == sum(map(content_bytes, (call, results, text)))


def test_what_did_not_enter_the_conversation_is_not_counted():
    story = Story()
    story.reply("end_turn", thinks("x" * 1_000))
    assert story.state.context.appended_bytes == content_bytes(story.tail[-1])


def test_counters_survive_an_end_and_another_attempt():
    story = Story(a_run(limits=Limits(max_turns=1)))
    story.reply("tool_use", uses("Bash"), prompt=90, output=10)
    story.finish(0)
    story.claim(limits=Limits(max_turns=3))
    state = story.state
    assert (state.turns, state.money.charged_tokens, state.model.calls) == (1, 100, 2)
    assert state.money.usage == Usage(input_tokens=90, output_tokens=10)


def test_conversation_is_only_ever_appended_to():
    story = Story()
    seen = []
    for number in range(3):
        story.reply("tool_use", says("So."), uses("Bash", f"t{number}"))
        story.finish(0)
        blocks = [block for message in story.state.messages for block in message.blocks]
        assert blocks[: len(seen)] == seen
        seen = blocks
    assert not faults(story.state.messages)

"""Accumulation of events, without a network."""

from __future__ import annotations

from typing import Any

import pytest

from runner.core.conversation import UNREADABLE_INPUT, ModelReply, Usage
from runner.llm.stream import Accumulator, BrokenStreamError

START = {
    "type": "message_start",
    "message": {"model": "claude-sonnet-5", "usage": {"input_tokens": 3, "output_tokens": 1}},
}
STOP = {"type": "message_stop"}
TEXT = {"type": "text", "text": "", "citations": None}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}


def delta(index: int, kind: str, **values: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **values}}


def block(index: int, head: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": head},
        *deltas,
        {"type": "content_block_stop", "index": index},
    ]


def said(index: int, words: str) -> list[dict[str, Any]]:
    return block(index, TEXT, delta(index, "text_delta", text=words))


def called(index: int, source: str, **changes: Any) -> list[dict[str, Any]]:
    head = {**CALL, "id": f"toolu_{index}", **changes}
    return block(index, head, delta(index, "input_json_delta", partial_json=source))


def thought(index: int, words: str, signature: str = "signed") -> list[dict[str, Any]]:
    head = {"type": "thinking", "thinking": "", "signature": ""}
    deltas = [delta(index, "thinking_delta", thinking=words)]
    if signature:
        deltas.append(delta(index, "signature_delta", signature=signature))
    return block(index, head, *deltas)


def ended(reason: str | None, **usage: Any) -> list[dict[str, Any]]:
    return [{"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}, STOP]


def accumulate(*parts: list[dict[str, Any]], taken: tuple[str, ...] = ()) -> ModelReply:
    accumulator = Accumulator(lambda: taken)
    for event in (START, *(event for part in parts for event in part)):
        accumulator.add(event)
    accumulator.request_id = "req_1"
    return accumulator.finish(0.5)


def kinds(reply: ModelReply) -> list[str]:
    return [block["type"] for block in reply.blocks]


def test_text_after_a_call_is_moved_before_it():
    reply = accumulate(called(0, "{}"), said(1, "late"), called(2, "{}"), ended("tool_use"))
    assert kinds(reply) == ["text", "tool_use", "tool_use"]
    assert [block.get("id") for block in reply.blocks] == [None, "toolu_0", "toolu_2"]


def test_thinking_stays_before_what_it_led_to():
    reply = accumulate(
        thought(0, "a"), called(1, "{}"), thought(2, "b"), called(3, "{}"), ended("x")
    )
    assert kinds(reply) == ["thinking", "tool_use", "thinking", "tool_use"]


def test_thinking_at_the_end_is_dropped_because_the_api_refuses_it():
    cut = accumulate(said(0, "x"), thought(1, "b"), called(2, '{"a'), ended("max_tokens"))
    assert kinds(cut) == ["text"]
    assert cut.cut == {**CALL, "id": "toolu_2", "partial_json": '{"a'}


def test_reply_of_nothing_but_thinking_is_kept_for_the_record():
    assert kinds(accumulate(thought(0, "a"), ended("end_turn"))) == ["thinking"]


def test_thinking_without_a_signature_is_not_kept():
    assert accumulate(thought(0, "a", signature=""), said(1, "x"), ended("end_turn")).blocks == (
        {"type": "text", "text": "x"},
    )


def test_thinking_that_is_not_shown_is_kept_for_its_signature():
    reply = accumulate(thought(0, ""), said(1, "x"), ended("end_turn"))
    assert reply.blocks[0] == {"type": "thinking", "thinking": "", "signature": "signed"}


def test_call_without_arguments_has_an_empty_input():
    reply = accumulate(block(0, CALL), ended("tool_use"))
    assert reply.blocks == (CALL,)


def test_call_without_arguments_at_max_tokens_may_have_been_cut_and_does_not_run():
    reply = accumulate(block(0, CALL), ended("max_tokens"))
    assert reply.blocks == ()
    assert reply.cut == CALL


def test_whole_call_at_max_tokens_is_kept():
    reply = accumulate(called(0, '{"a": 1}'), ended("max_tokens"))
    assert reply.blocks[0]["input"] == {"a": 1}
    assert reply.cut is None


def test_only_the_last_block_may_be_cut():
    head = {"type": "content_block_start", "index": 0, "content_block": CALL}
    with pytest.raises(BrokenStreamError, match="did not end"):
        accumulate([head], said(1, "x"), ended("max_tokens"))


def test_call_before_the_last_block_was_not_cut_whatever_its_input():
    reply = accumulate(called(0, '{"a'), said(1, "x"), ended("max_tokens"))
    assert reply.blocks[1]["input"] == {UNREADABLE_INPUT: '{"a'}
    assert reply.cut is None


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded", "refusal"])
def test_block_that_did_not_end_is_cut_where_the_reply_was(reason):
    head = {"type": "content_block_start", "index": 0, "content_block": TEXT}
    reply = accumulate([head, delta(0, "text_delta", text="wor")], ended(reason))
    assert reply.cut == {**TEXT, "text": "wor"}
    assert reply.blocks == ()


def test_block_that_did_not_end_breaks_any_other_reply():
    head = {"type": "content_block_start", "index": 0, "content_block": TEXT}
    with pytest.raises(BrokenStreamError, match="did not end"):
        accumulate([head], ended("end_turn"))


def test_id_of_an_earlier_call_is_refused():
    with pytest.raises(BrokenStreamError, match="toolu_0 is used twice"):
        accumulate(called(0, "{}"), ended("tool_use"), taken=("toolu_0",))


@pytest.mark.parametrize("changes", [{"id": ""}, {"id": None}, {"id": "a b/.."}, {"name": 3}])
def test_call_that_cannot_be_answered_breaks_the_stream(changes):
    with pytest.raises(BrokenStreamError, match="no usable"):
        accumulate(called(0, "{}", **changes), ended("tool_use"))


@pytest.mark.parametrize(
    "source",
    ["[1, 2]", '{"command": "echo', '{"n": 1e999}', '{"n": -1e999}', '{"n": Infinity}', "null"],
)
def test_arguments_that_are_no_json_object_are_kept_as_text(source):
    reply = accumulate(said(0, "x"), called(1, source), ended("tool_use"))
    assert reply.blocks[1] == {**CALL, "id": "toolu_1", "input": {UNREADABLE_INPUT: source}}


def test_unreadable_arguments_are_kept_in_part_when_they_are_long():
    source = '{"a":' * 100_000 + "1" + "}" * 100_000
    (call,) = accumulate(called(0, source), ended("tool_use")).blocks
    assert call["input"] == {UNREADABLE_INPUT: source[:10_000]}


def test_unreadable_arguments_of_a_server_s_tool_break_the_stream():
    with pytest.raises(BrokenStreamError, match="not a JSON object"):
        accumulate(called(0, "[1]", type="server_tool_use"), ended("end_turn"))


@pytest.mark.parametrize(
    ("name", "sent_back"),
    [
        ("../../Bash\x1b[2J", "______Bash__2J"),
        (" ", "_"),
        ("x" * 5000, "x" * 128),
        ("mcp__a-b", "mcp__a-b"),
    ],
)
def test_name_of_a_tool_is_one_that_the_api_takes_back(name, sent_back):
    (call,) = accumulate(called(0, "{}", name=name), ended("tool_use")).blocks
    assert call["name"] == sent_back


def test_citations_are_gathered():
    parts = [delta(0, "text_delta", text="x"), delta(0, "citations_delta", citation={"n": 1})]
    reply = accumulate(block(0, TEXT, *parts), ended("end_turn"))
    assert reply.blocks == ({"type": "text", "text": "x", "citations": [{"n": 1}]},)


def test_block_and_delta_of_unknown_kinds_pass_through():
    head = {"type": "digest", "content": None, "depth": {"n": [1, None]}}
    parts = [delta(0, "digest_delta", content=part) for part in ("a", "b")]
    reply = accumulate(block(0, head, *parts), ended("end_turn"))
    assert reply.blocks == ({"type": "digest", "content": "ab", "depth": {"n": [1, None]}},)


def test_usage_is_the_last_total_of_each_kind():
    reply = accumulate(
        said(0, "x"),
        ended("end_turn", output_tokens=9, input_tokens=None, cache_read_input_tokens=4),
    )
    assert reply.usage == Usage(input_tokens=3, cache_read_tokens=4, output_tokens=9)


@pytest.mark.parametrize("tokens", [-1, 2**53 + 1, 10**30, 1.5, True, "7"])
def test_usage_that_makes_no_sense_is_a_broken_stream(tokens):
    with pytest.raises(BrokenStreamError, match="not a number of tokens"):
        accumulate(said(0, "x"), ended("end_turn", input_tokens=tokens))


def test_message_without_a_stop_reason_is_not_whole():
    with pytest.raises(BrokenStreamError, match="no stop_reason"):
        accumulate(said(0, "x"), ended(None))


@pytest.mark.parametrize(
    "event",
    [
        [],
        None,
        {},
        {"type": "content_block_delta", "index": 7, "delta": {"type": "text_delta", "text": ""}},
        {"type": "content_block_delta", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": TEXT},
        {"type": "content_block_start", "index": 0, "content_block": {}},
        {"type": "message_delta", "delta": None},
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": "many"}},
        START,
    ],
)
def test_event_of_a_wrong_shape_is_a_broken_stream(event):
    accumulator = Accumulator()
    accumulator.add(START)
    with pytest.raises(BrokenStreamError):
        accumulator.add(event)


def test_stop_before_start_is_not_whole():
    accumulator = Accumulator()
    accumulator.add(STOP)
    assert not accumulator.whole


@pytest.mark.parametrize("words", [None, 3, ["x"]])
def test_text_that_is_no_text_is_a_broken_stream(words):
    with pytest.raises(BrokenStreamError):
        accumulate(said(0, words), ended("end_turn"))

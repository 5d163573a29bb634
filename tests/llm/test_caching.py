"""What is sent from turn to turn: the same bytes, and breakpoints by which the cache is found.

Source of the cache's rules: https://docs.claude.com/en/docs/build-with-claude/prompt-caching. An entry
is written at each breakpoint, and each looks back at 20 positions for one. A run of tool calls, or of
their results, counts as one position at the Claude API and as many on other platforms: these tests
count every block.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from runner.core.budget import Limits
from runner.core.compaction import summarised
from runner.core.context import Context
from runner.core.conversation import Block, Message, ModelReply, ModelRequest, Usage
from runner.core.entries import ContextCompacted
from runner.core.model_calls import summary_request, turn_request
from runner.core.state import CountedPrompt
from runner.core.steps import CallModel, CountTokens, RunTools
from runner.llm.requests import request_body
from tests.core.story import Story, a_run, a_spec, changed, replied, uses
from tests.llm.conftest import READ, make_request, user
from tests.messages_api import Reply
from tests.messages_api.conversation_rules import sign
from tests.messages_api.rules import MOST_BREAKPOINTS, check_request

TURNS = 40
CALLS = 10  # with their results more than 20 blocks
LOOK_BACK = 20
VERSION = "2026-10-21"
MARK = b',"cache_control":{"type":"ephemeral"}'
MARKS = re.compile(rb',"cache_control":\{"type":"ephemeral"(,"ttl":"1h")?\}')


def text(words: str) -> Block:
    return {"type": "text", "text": words}


def turn(number: int) -> tuple[Message, Message]:
    """A reply that thinks and calls, and the results of the calls."""
    ids = [f"toolu_{number}_{index}" for index in range(CALLS)]
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": sign("Hm.")}
    calls = [
        {"type": "tool_use", "id": name, "name": "Read", "input": {"path": "é"}} for name in ids
    ]
    results = [{"type": "tool_result", "tool_use_id": name, "content": ""} for name in ids]
    return Message("assistant", (thinking, *calls)), Message("user", tuple(results))


def replay(**changes: Any) -> Iterator[ModelRequest]:
    """The requests of a run, one after the other."""
    messages = (user("Begin."),)
    yield make_request(*messages, **changes)
    for number in range(TURNS):
        messages += turn(number)
        yield make_request(*messages, **changes)


def positions(body: dict[str, Any]) -> Iterator[tuple[bytes, bool]]:
    """The prompt up to each block, as the cache knows it, and whether a breakpoint stands there."""
    places = [*body.get("tools", []), *body.get("system", [])]
    places += [block for message in body["messages"] for block in message["content"]]
    prefix = b""
    for number, place in enumerate(places, 1):
        marked = "cache_control" in place or number == len(places)
        prefix += json.dumps({**place, "cache_control": None}).encode()
        yield prefix, marked


class Cache:
    """The API's prompt cache, by its documented rules."""

    def __init__(self) -> None:
        self._entries: set[bytes] = set()

    def read(self, body: dict[str, Any]) -> int:
        """Bytes of the prompt that are read from the cache; it is written at the breakpoints."""
        prefixes = list(positions(body))
        found = 0
        for number, (_, marked) in enumerate(prefixes):
            if marked:
                seen = prefixes[max(0, number - LOOK_BACK + 1) : number + 1]
                found = max([found, *(len(p) for p, _ in seen if p in self._entries)])
        self._entries |= {prefix for prefix, marked in prefixes if marked}
        return found


def test_forty_turns_keep_the_prefix_byte_for_byte() -> None:
    sent = [request_body(request).replace(MARK, b"") for request in replay()]
    for before, after in pairwise(sent):
        assert after.startswith(before.removesuffix(b"]}"))


@pytest.mark.slow
def test_forty_turns_break_the_prefix_only_where_it_was_compacted() -> None:
    context = Context(window=24_000, keep_messages=4)
    limits = Limits(max_output_tokens=2_000, max_turns=100)
    story = Story(
        changed(a_run(a_spec(model="claude-sonnet-5", context=context), limits), window=24_000)
    )
    sent: list[tuple[int, bytes]] = []
    kinds = set()
    effect = story.go_on()
    while len(sent) < TURNS:
        match effect:
            case CallModel(call) if call.purpose == "summary":
                reply = says_summary(json.loads(request_body(summary_request(story.state, call))))
                effect = story.go_on(summarised(story.state, reply))
            case CallModel(call):
                raw = request_body(turn_request(story.state, call))
                check_request(json.loads(raw), VERSION)
                sent.append((story.state.context.compacted.count, MARKS.sub(b"", raw)))
                words = text(f"Turn {len(sent)} " + "says much. " * 200)
                usage = Usage(input_tokens=len(raw) // 4)
                block = uses("Read", f"toolu_{len(sent)}")
                effect = story.go_on(
                    replied(ModelReply((words, block), "tool_use", usage, "a-model"))
                )
            case RunTools(calls):
                effect = story.finish(calls[0].index, "printed " * 600)
            case CountTokens():
                counted = CountedPrompt(None, story.state.context.estimate, len(sent))
                story.state = changed(story.state, counted=counted)
                effect = story.go_on()
            case _:
                raise AssertionError(effect)
        kinds |= {e.compaction.kind for e in story.entries if isinstance(e, ContextCompacted)}
    for (compacted, before), (compacted_since, after) in pairwise(sent):
        goes_on = after.startswith(before.removesuffix(b"]}"))
        assert goes_on == (compacted == compacted_since)
    assert kinds == {"clip"}
    assert story.state.context.compacted.last, "a summary stands in for the rest"


def says_summary(body: dict[str, Any]) -> ModelReply:
    check_request(body, VERSION)
    return ModelReply((text("I read much."),), "end_turn", Usage(input_tokens=9), "a-model")


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"system": None}], ids=str)
def test_no_request_has_more_breakpoints_than_the_api_takes(changes: dict[str, Any]) -> None:
    for request in replay(**changes):
        raw = request_body(request)
        check_request(json.loads(raw), VERSION)
        assert raw.count(b'"cache_control"') <= MOST_BREAKPOINTS


@pytest.mark.slow
def test_each_turn_reads_all_of_the_one_before_from_the_cache_after_ten_parallel_calls() -> None:
    cache = Cache()
    before = 0
    for request in replay():
        body = json.loads(request_body(request))
        assert cache.read(body) == before
        before = len(list(positions(body))[-1][0])


def test_breakpoint_stands_where_the_previous_request_ended() -> None:
    paused = (user("Begin."), *turn(0), Message("assistant", (text("Wait."),)))
    for messages, place in (
        ((user("Begin."), *turn(0), *turn(1)), 2),
        ((user("Begin."), *turn(0)), 0),
        (paused, 2),  # the API paused the turn: what it said is sent back as it is
        ((*paused, Message("assistant", (text("So."),))), 2),
    ):
        sent = json.loads(request_body(make_request(*messages)))["messages"]
        marked = [
            (number, index)
            for number, message in enumerate(sent)
            for index, block in enumerate(message["content"])
            if "cache_control" in block
        ]
        assert marked == [(place, len(messages[place].blocks) - 1)]


def test_breakpoints_stand_where_compacted_messages_end_and_where_they_ended_before() -> None:
    said = [user("Begin.")]
    for number in range(4):
        said += [Message("assistant", (text("So."),)), user(f"Go on {number}.")]
    # The breakpoint at the end finds the end of the previous request, if that is near.
    for last, stable, places in (
        ((), (), [6]),
        ((), (2,), [2, 6]),
        ((), (2, 4), [2, 4]),
        ((), (6,), [6]),
        ((), (8,), [6]),
        (turn(0), (2, 4), [4, 8]),
    ):
        raw = request_body(make_request(*said, *last, stable=stable))
        check_request(json.loads(raw), VERSION)
        sent = json.loads(raw)["messages"]
        marked = [at for at, one in enumerate(sent) if "cache_control" in one["content"][-1]]
        assert marked == places
        assert raw.count(b'"cache_control"') == 2 + len(places) <= MOST_BREAKPOINTS


def test_stored_blocks_are_not_marked() -> None:
    request = make_request(user("Begin."), *turn(0))
    before = copy.deepcopy(request.messages)
    request_body(request)
    assert request.messages == before
    assert "cache_control" not in READ.definition()


@pytest.mark.parametrize("where", ["options", "extra_body"])
def test_lifetime_that_a_job_gives_is_that_of_all_breakpoints(where: str, talk: Any) -> None:
    hour = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    here = talk(Reply([text("x")]))
    options = hour if where == "options" else {"extra_body": hour}
    here.complete(make_request(user("Begin."), *turn(0), options=options))
    assert here.server.refusals == []
    assert here.server.requests[0].raw.count(b'{"type":"ephemeral","ttl":"1h"}') == 3

"""Whole replies over HTTP, and what is sent for them."""

from __future__ import annotations

import json
import threading

import pytest

from runner.core.conversation import Message, Usage
from runner.errors import ModelCallError
from runner.llm.anthropic import AnthropicModel
from runner.ports import Interrupt
from tests.llm.conftest import READ, ignore, make_request, user
from tests.messages_api import API_KEY, Reply, text, thinking, tool_use
from tests.messages_api.conversation_rules import sign


def results(*ids: str) -> Message:
    blocks = ({"type": "tool_result", "tool_use_id": call_id, "content": ""} for call_id in ids)
    return Message("user", tuple(blocks))


def test_reply_has_its_blocks_usage_model_and_request_id(talk):
    here = talk(
        Reply(
            [thinking("Let me see."), text("I read it."), tool_use("toolu_1", "Read", {"n": [1]})],
            usage={"input_tokens": 7, "cache_read_input_tokens": 5, "output_tokens": 11},
        )
    )
    reply = here.complete()
    assert reply.blocks == (
        {"type": "thinking", "thinking": "Let me see.", "signature": sign("Let me see.")},
        {"type": "text", "text": "I read it."},
        {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"n": [1]}},
    )
    assert reply.stop_reason == "tool_use"
    assert reply.model == "claude-sonnet-5"
    assert reply.request_id == "req_000000000001"
    assert reply.usage.input_tokens == 7
    assert reply.usage.cache_read_tokens == 5
    assert reply.usage.output_tokens == 11
    assert reply.latency > 0
    assert reply.cut is None


def test_what_came_is_accepted_when_it_is_sent_back(talk):
    here = talk(
        Reply(
            [
                thinking("One"),
                text("Two"),
                tool_use("toolu_1", "Read", {}),
                text("Three"),
                tool_use("toolu_2", "Read", {"a": "\u00e9\u2028\U0001f600"}),
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web", "input": {"q": 1}},
                {"type": "block_of_the_future", "depth": {"x": None}},
            ]
        )
    )
    reply = here.complete()
    sent = make_request(
        user("Hello"), Message("assistant", reply.blocks), results("toolu_1", "toolu_2")
    )
    with pytest.raises(ModelCallError, match="used twice"):
        here.complete(sent)  # the server plays the same ids again, which is refused here, not there
    assert here.server.refusals == []
    assert here.server.requests[1].body["messages"][1]["content"] == list(reply.blocks)


def test_text_is_given_as_it_comes(talk):
    here = talk(Reply([text("abcdefgh"), text("ij")], chunk=3))
    heard: list[str] = []
    here.complete(on_text=heard.append)
    assert heard == ["abc", "def", "gh", "ij"]


@pytest.mark.slow
def test_blank_text_is_dropped_and_an_empty_reply_has_no_blocks(talk):
    assert talk(Reply([text(" \n"), text("x")])).complete().blocks == (text("x"),)
    assert talk(Reply([])).complete().blocks == ()


@pytest.mark.parametrize(
    "reason",
    [
        "end_turn",
        "stop_sequence",
        "pause_turn",
        "refusal",
        "model_context_window_exceeded",
        "not_known_yet",
    ],
)
def test_stop_reason_is_passed_on(talk, reason):
    assert talk(Reply([text("x")], stop_reason=reason)).complete().stop_reason == reason


def test_call_cut_at_max_tokens_is_kept_apart(talk):
    calls = [tool_use("toolu_1", "Read", {"a": 1}), tool_use("toolu_2", "Read", {"b": "cut here"})]
    reply = talk(Reply(calls, stop_reason="max_tokens", cut=True)).complete()
    assert reply.blocks == (calls[0],)
    assert reply.cut is not None
    assert reply.cut["id"] == "toolu_2"
    assert reply.cut["partial_json"] == '{"b": "c'


def test_thinking_cut_at_max_tokens_is_not_a_block(talk):
    reply = talk(Reply([thinking("so")], stop_reason="max_tokens", cut=True)).complete()
    assert reply.blocks == ()
    assert reply.cut == {"type": "thinking", "thinking": "so", "signature": ""}


def test_unknown_events_are_passed_over(talk):
    events = [("tally", {"type": "tally", "n": 1}), ("tally", {"type": "content_tally"})]
    assert talk(Reply([text("x")], extra_events=events)).complete().blocks == (text("x"),)


@pytest.mark.slow
def test_huge_reply_is_whole(talk):
    words = "0123456789" * 300_000
    reply = talk(Reply([text(words)], chunk=50_000)).complete()
    assert reply.blocks == (text(words),)


def test_request_says_what_was_asked_and_marks_the_stable_prefix(talk):
    here = talk(Reply([text("x")]))
    request = make_request(
        options={
            "thinking": {"type": "adaptive"},
            "effort": "low",
            "output_config": {"format": None},
            "metadata": {"user_id": "u"},
            "betas": ["one-2026", "two-2026"],
            "extra_headers": {"x-team": "blue"},
            "extra_body": {"stop_sequences": ["END"]},
        }
    )
    here.complete(request)
    received = here.server.requests[0]
    cache = {"type": "ephemeral"}
    assert received.body == {
        "cache_control": cache,
        "thinking": {"type": "adaptive"},
        "output_config": {"format": None, "effort": "low"},
        "metadata": {"user_id": "u"},
        "model": "claude-sonnet-5",
        "max_tokens": 1000,
        "stream": True,
        "tools": [READ.definition()],
        "system": [{"type": "text", "text": "Be brief.", "cache_control": cache}],
        "messages": [{"role": "user", "content": [text("Hello")]}],
        "stop_sequences": ["END"],
    }
    assert received.headers["anthropic-beta"] == "one-2026,two-2026"
    assert received.headers["x-team"] == "blue"
    assert received.headers["anthropic-version"] == "2026-10-21"


def test_without_a_system_prompt_the_last_tool_ends_the_stable_prefix(talk):
    here = talk(Reply([text("x")]))
    here.complete(make_request(system=None))
    body = here.server.requests[0].body
    assert body["tools"][-1]["cache_control"] == {"type": "ephemeral"}
    assert "system" not in body
    assert "cache_control" not in READ.definition()


def test_cache_usage_is_counted(talk):
    here = talk(Reply([text("x")]))
    first = (user("a" * 8000),)
    written = here.complete(make_request(*first)).usage
    read = here.complete(make_request(*first, Message("assistant", (text("b"),)), user("c"))).usage
    assert (written.cache_read_tokens, written.input_tokens) == (0, 0)
    assert written.cache_creation_tokens == read.cache_read_tokens > 2000
    assert read.cache_creation_tokens > 0
    assert read.prompt_tokens == Usage.prompt_tokens.fget(read)


@pytest.mark.parametrize(
    ("hour", "options", "lifetime"),
    [
        (False, {}, None),
        (True, {}, "1h"),
        (True, {"cache_control": {"type": "ephemeral"}}, None),
        (False, {"extra_body": {"cache_control": {"type": "ephemeral", "ttl": "1h"}}}, "1h"),
    ],
    ids=str,
)
def test_breakpoints_live_as_long_as_the_call_asks_and_the_job_allows(
    talk, hour, options, lifetime
):
    here = talk(Reply([text("x")]))
    messages = (user("a"), Message("assistant", (text("b"),)), user("c"))
    here.complete(make_request(*messages, hour_cache=hour, options=options))
    body = here.server.requests[0].body
    marks = [body["cache_control"], body["system"][0]["cache_control"]]
    marks.append(body["messages"][0]["content"][0]["cache_control"])
    assert [mark.get("ttl") for mark in marks] == [lifetime] * 3


def test_summary_is_not_written_to_the_cache(talk):
    here = talk(Reply([text("x")]))
    options = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    here.complete(make_request(purpose="summary", options=options, hour_cache=True))
    assert b"cache_control" not in here.server.requests[0].raw


def test_half_a_surrogate_pair_does_not_stop_a_run(talk):
    here = talk(Reply([text("x")]))
    here.complete(make_request(user("bad \udc80, good \ud83d\ude00 \u00e9")))
    sent = here.server.requests[0].body["messages"][0]["content"][0]["text"]
    assert sent == "bad \ufffd, good \U0001f600 \u00e9"


def test_refusals_come_with_the_words_of_the_api(talk):
    here = talk(Reply([text("x")]))
    with pytest.raises(ModelCallError) as caught:
        here.complete(make_request(Message("assistant", (text("I begin"),))))
    error = caught.value
    assert (error.kind, error.status, error.billed) == ("invalid_request_error", 400, False)
    assert error.message == 'messages: first message must use the "user" role'
    assert error.request_id == "req_000000000001"


def test_missing_key_says_what_to_do(monkeypatch, tmp_path):
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
    with pytest.raises(ModelCallError, match="ANTHROPIC_API_KEY") as caught:
        AnthropicModel().complete(make_request(), Interrupt(), ignore)
    error = caught.value
    assert (error.kind, error.status, error.billed) == ("authentication_error", 401, False)


def test_key_and_address_come_from_the_environment(talk, monkeypatch):
    here = talk(Reply([text("x")]))
    monkeypatch.setenv("ANTHROPIC_BASE_URL", here.server.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-wrong")
    model = AnthropicModel()
    with pytest.raises(ModelCallError, match="invalid x-api-key") as caught:
        model.complete(make_request(), Interrupt(), ignore)
    model.close()
    assert (caught.value.kind, caught.value.status) == ("authentication_error", 401)


@pytest.mark.slow
def test_calls_of_many_threads_stream_at_once(talk):
    everyone = 100
    gate = threading.Barrier(everyone)
    all_are_in = threading.Event()
    here = talk(lambda request: Reply([text(request.first_text)], held_until=all_are_in))
    replies: dict[int, str] = {}

    def call(number: int) -> None:
        gate.wait()
        reply = here.complete(make_request(user(f"I am {number}")))
        replies[number] = reply.blocks[0]["text"]

    threads = [threading.Thread(target=call, args=(number,)) for number in range(everyone)]
    for thread in threads:
        thread.start()
    try:
        here.server.wait_for(lambda server: server.in_flight == everyone, 60)
    finally:
        all_are_in.set()
    for thread in threads:
        thread.join()
    assert replies == {number: f"I am {number}" for number in range(everyone)}


def test_one_connection_serves_call_after_call(talk):
    here = talk(Reply([text("x")]))
    for _ in range(40):
        here.complete()
    assert here.server.connections == 1


def test_proxy_of_the_environment_is_used(talk, monkeypatch):
    here = talk(Reply([text("x")]))
    monkeypatch.setenv("HTTP_PROXY", here.server.url)
    model = AnthropicModel(base_url="http://api.invalid", api_key=API_KEY)
    assert model.complete(make_request(), Interrupt(), ignore).blocks == (text("x"),)
    model.close()


def test_body_goes_out_as_json_of_the_request(talk):
    here = talk(Reply([text("x")]))
    here.complete()
    assert json.loads(here.server.requests[0].raw) == here.server.requests[0].body


def test_nothing_in_extra_body_replaces_what_runner_sets(talk):
    here = talk(Reply([text("x")]))
    extra = {
        "max_tokens": 60_000,
        "model": "claude-opus-5",
        "stream": False,
        "messages": [{"role": "user", "content": "Else"}],
        "system": "Else",
        "tools": [],
        "service_tier": "auto",
        "output_config": {"format": {"type": "json"}},
    }
    here.complete(make_request(options={"extra_body": extra, "effort": "low"}))
    here.complete()
    changed, plain = (request.body for request in here.server.requests)
    assert changed == {
        **plain,
        "service_tier": "auto",
        "output_config": {"format": {"type": "json"}, "effort": "low"},
    }

"""The strict server, by the SDK's own client and over a bare connection."""

from __future__ import annotations

import gc
import json
import socket
import subprocess
import sys
import warnings
from contextlib import ExitStack

import anthropic
import pytest

from tests.messages_api import API_KEY, Break, MessagesServer, Reply, Script, text, tool_use
from tests.messages_api.prompt_cache import Prompt

HELLO = {"role": "user", "content": "Hello"}


def client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key=API_KEY, max_retries=0)


def create(url: str, messages, **options):
    with client(url) as api:
        return api.messages.create(
            model="claude-sonnet-5", max_tokens=100, messages=messages, **options
        )


def test_call_without_a_stream_gets_the_whole_message():
    with MessagesServer(lambda request: Reply([text("Hi")])) as server:
        message = create(server.url, [HELLO])
    assert message.content[0].text == "Hi"
    assert message.stop_reason == "end_turn"
    assert message.usage.input_tokens > 0


@pytest.mark.slow
def test_streamed_message_is_the_same_by_the_sdks_own_accumulation():
    reply = Reply([text("Hi there"), tool_use("toolu_1", "Read", {"a": [1, "b"]})], chunk=3)
    with MessagesServer(lambda request: reply) as server:
        whole = create(server.url, [HELLO])
        with (
            client(server.url) as api,
            api.messages.stream(
                model="claude-sonnet-5", max_tokens=100, messages=[HELLO]
            ) as stream,
        ):
            streamed = stream.get_final_message()
    blocks = [[block.to_dict() for block in message.content] for message in (whole, streamed)]
    assert blocks[0][0]["text"] == blocks[1][0]["text"] == "Hi there"
    assert blocks[0][1] == blocks[1][1]
    assert whole.stop_reason == streamed.stop_reason == "tool_use"
    assert whole.usage.output_tokens == streamed.usage.output_tokens


def test_models_and_token_counts_are_answered():
    with MessagesServer(lambda request: Reply()) as server, client(server.url) as api:
        assert "claude-sonnet-5" in [model.id for model in api.models.list()]
        counted = api.messages.count_tokens(model="claude-sonnet-5", messages=[HELLO])
        assert counted.input_tokens > 0


def test_list_of_models_says_how_large_their_windows_are():
    with MessagesServer(lambda request: Reply(), window=9_000) as server, client(server.url) as api:
        assert api.models.retrieve("claude-sonnet-5").max_input_tokens == 9_000
        with pytest.raises(anthropic.NotFoundError):
            api.models.retrieve("claude-none")
        assert [request.path for request in server.others] == [
            "/v1/models/claude-sonnet-5",
            "/v1/models/claude-none",
        ]
    assert server.requests == []


def test_count_takes_no_field_that_the_api_does_not_count():
    body = {"model": "claude-sonnet-5", "messages": [HELLO], "max_tokens": 9}
    with MessagesServer(lambda request: Reply()) as server, client(server.url) as api:
        with pytest.raises(anthropic.BadRequestError, match="max_tokens: Extra inputs"):
            api.post("/v1/messages/count_tokens", body=body, cast_to=object)
        assert [refusal.status for refusal in server.refusals] == [400]


def test_count_is_what_the_call_is_billed_for():
    with MessagesServer(lambda request: Reply()) as server, client(server.url) as api:
        counted = api.messages.count_tokens(model="claude-sonnet-5", messages=[HELLO], system="x")
        assert create(server.url, [HELLO], system="x").usage.input_tokens == counted.input_tokens


@pytest.mark.slow
def test_prompt_that_the_window_does_not_hold_is_refused():
    long = {"role": "user", "content": "x" * 400}
    with MessagesServer(lambda request: Reply([text("x")]), window=100) as server:
        assert create(server.url, [HELLO]).stop_reason == "end_turn"
        with pytest.raises(anthropic.BadRequestError) as caught:
            create(server.url, [long])
    assert caught.value.api_message == "prompt is too long: 107 tokens > 100 maximum"
    assert [refusal.message for refusal in server.refusals] == [caught.value.api_message]


def test_reply_that_the_window_does_not_hold_is_cut():
    with (
        MessagesServer(lambda request: Reply([text("x" * 400)]), window=100) as server,
        client(server.url) as api,
        api.messages.stream(model="claude-sonnet-5", max_tokens=900, messages=[HELLO]) as stream,
    ):
        message = stream.get_final_message()
    assert message.stop_reason == "model_context_window_exceeded"
    assert message.content[0].text == "x" * 200


@pytest.mark.slow
def test_cached_prefix_is_read_and_nothing_is_when_the_cache_does_not_work():
    long = {"role": "user", "content": "x" * 5_000}
    for caching in (True, False):
        with MessagesServer(lambda request: Reply([text("x")]), caching=caching) as server:
            usages = [
                create(server.url, [long], cache_control={"type": "ephemeral"}).usage
                for _ in range(2)
            ]
        read = [usage.cache_read_input_tokens for usage in usages]
        assert read == [0, Prompt.of(server.requests[0].body).tokens if caching else 0]


def test_request_that_is_no_model_call_breaks_as_it_is_said():
    broken = {"/v1/models/claude-sonnet-5": Break("status", status=503)}
    with MessagesServer(lambda request: Reply(), broken=broken) as server:
        with client(server.url) as api, pytest.raises(anthropic.InternalServerError):
            api.models.retrieve("claude-sonnet-5")
        assert create(server.url, [HELLO]).stop_reason == "end_turn"


def test_refused_request_is_recorded_and_never_planned():
    asked = []
    with (
        MessagesServer(lambda request: asked.append(request) or Reply()) as server,
        pytest.raises(anthropic.BadRequestError) as caught,
    ):
        create(server.url, [])
    assert asked == []
    assert caught.value.api_message == server.refusals[0].message
    assert server.requests[0].body["messages"] == []


def test_body_that_is_no_json_is_refused():
    with (
        MessagesServer(lambda request: Reply()) as server,
        client(server.url) as api,
        pytest.raises(anthropic.BadRequestError, match="not valid JSON"),
    ):
        api.post("/v1/messages", content=b"{", cast_to=object)


@pytest.mark.slow
def test_script_answers_each_conversation_by_its_place():
    script = Script({"Hello": [Reply([text("one")]), Reply([text("two")])], "*": []})
    second = [HELLO, {"role": "assistant", "content": "one"}, HELLO]
    with MessagesServer(script) as server:
        said = [
            create(server.url, messages).content[0].text
            for messages in ([HELLO], second, second, [{"role": "user", "content": "Other"}])
        ]
    assert said == ["one", "two", "two", "Done."]


def test_script_by_turn_goes_on_although_nothing_was_appended():
    script = Script({"*": [Reply([]), Reply([text("now")])]}, by="turn")
    with MessagesServer(script) as server:
        assert [len(create(server.url, [HELLO]).content) for _ in range(2)] == [0, 1]


@pytest.mark.slow
def test_reply_fails_first_and_then_comes():
    broken = (Break("status", status=529), Break("status", status=500))
    script = Script({"*": [Reply([text("x")], fail_first=broken)]})
    with MessagesServer(script) as server:
        with pytest.raises(anthropic.APIStatusError) as first:
            create(server.url, [HELLO])
        with pytest.raises(anthropic.InternalServerError):
            create(server.url, [HELLO])
        assert first.value.status_code == 529
        assert create(server.url, [HELLO]).content[0].text == "x"


@pytest.mark.slow
def test_server_runs_as_a_process_of_its_own_and_records(tmp_path):
    reply = {"blocks": [text("x")], "fail_first": [{"kind": "status", "status": 503}]}
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"*": [reply]}))
    record = tmp_path / "bodies"
    command = [sys.executable, "-m", "tests.messages_api", "--script", script, "--record", record]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        url = process.stdout.readline().strip()
        with pytest.raises(anthropic.InternalServerError):
            create(url, [HELLO])
        assert create(url, [HELLO]).content[0].text == "x"
        process.stdin.close()
    assert process.returncode == 0
    bodies = [json.loads(line) for line in record.read_text().splitlines()]
    assert [sent["messages"] for sent in bodies] == [[HELLO], [HELLO]]


@pytest.mark.slow
def test_stopped_server_leaves_no_socket_open():
    """A socket that lingers is reported in whichever test the garbage collector runs next."""
    long = Reply([text("x" * 5_000_000)])
    body = json.dumps({"model": "claude-sonnet-5", "max_tokens": 9, "messages": [HELLO]})
    head = (
        "POST /v1/messages HTTP/1.1\r\ncontent-type: application/json\r\n"
        f"x-api-key: {API_KEY}\r\nanthropic-version: 2023-06-01\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(20):
            with ExitStack() as clients:
                server = MessagesServer(lambda request: long).start()
                address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
                for sent in ("", "POST /v1", head, head + body, "") * 4:
                    connection = clients.enter_context(socket.create_connection(address))
                    connection.sendall(sent.encode())
                server.stop()
            gc.collect()
    assert [str(warning.message) for warning in caught] == []

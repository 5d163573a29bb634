"""The Message Batches API by the strict server, and the replies in its results."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from runner.core.batches import GOES_ALONE, create_body
from runner.core.entries import PROMPT_TOO_LONG
from runner.errors import ModelCallError
from runner.llm.batches import AnthropicBatches, read_result
from tests.llm.conftest import make_request
from tests.messages_api import API_KEY, Break, MessagesServer, Reply, text, thinking, tool_use
from tests.messages_api.batches import CreateFault

WORDS = "Two\u2028lines and a NUL \0."


def play(request: Any) -> Reply:
    return Reply([thinking("Hm."), text(WORDS), tool_use("toolu_1", "Read", {"path": "a"})])


@pytest.fixture
def server() -> Iterator[MessagesServer]:
    with MessagesServer(play) as server:
        yield server


@pytest.fixture
def api(server: MessagesServer) -> Iterator[AnthropicBatches]:
    api = AnthropicBatches(base_url=server.url, api_key=API_KEY)
    yield api
    api.close()


def make(api: AnthropicBatches, count: int = 1) -> str:
    body = api.body(make_request(batch=True))
    return api.create(create_body([(f"c{n}", body) for n in range(count)]), {}).id


def test_a_reply_in_a_batch_is_what_it_would_have_been_in_a_stream(
    api: AnthropicBatches, talk: Any
) -> None:
    batch_id = make(api)
    ((name, result),) = api.results(batch_id, "")
    assert name == "c0"
    batched = read_result(make_request(), result, 0.0)
    streamed = talk(play(None)).complete(make_request())
    known = {"latency": 0.0, "request_id": None}
    assert replace(batched, **known) == replace(streamed, **known)


@pytest.mark.slow
def test_the_list_of_batches_is_read_over_all_pages_to_a_time(
    api: AnthropicBatches, server: MessagesServer
) -> None:
    old = {"requests": [{"custom_id": "a", "params": {}}]}
    server.shelf.create(old, "2023-06-01").created_at = time.time() - 1_000
    ids = [make(api) for _ in range(230)]
    since = time.time() - 500
    found = list(api.listed(since, ""))
    assert [each.id for each in found] == ids[::-1]
    assert {each.count for each in found} == {1}


def test_the_organization_of_the_key_is_in_the_answers(api: AnthropicBatches) -> None:
    assert api.organization() == "org_test"


def test_a_batch_that_has_not_ended_has_no_results() -> None:
    with MessagesServer(play, batch_takes=lambda number: 60.0) as slow:
        api = AnthropicBatches(base_url=slow.url, api_key=API_KEY)
        batch_id = make(api, 3)
        assert api.look(batch_id, "").ended_at is None
        with pytest.raises(ModelCallError, match="no results yet"):
            list(api.results(batch_id, ""))
        api.cancel(batch_id, "")
        assert api.look(batch_id, "").ended_at is not None
        kinds = {result["type"] for _, result in api.results(batch_id, "")}
        assert kinds == {"canceled"}
        api.close()


@pytest.mark.parametrize(
    ("fault", "may_exist"),
    [
        (Break("reset_before_headers"), True),
        (Break("status", status=500), True),
        (Break("status", status=504, html=True), True),
        (Break("status", status=408), True),
        (Break("status", status=400), False),
        (Break("status", status=429), False),
    ],
)
def test_a_failed_creation_says_if_there_may_be_a_batch(
    api: AnthropicBatches, server: MessagesServer, fault: Break, may_exist: bool
) -> None:
    server.shelf.faults.append(CreateFault(fault, made=True))
    with pytest.raises(ModelCallError) as failed:
        make(api)
    assert failed.value.billed is may_exist
    assert len(server.shelf.batches) == 1  # it is not made twice


def test_a_batch_is_not_there_where_nobody_listens() -> None:
    with MessagesServer(play) as ended:
        url = ended.url
    api = AnthropicBatches(base_url=url, api_key=API_KEY)
    with pytest.raises(ModelCallError) as failed:
        make(api)
    api.close()
    assert not failed.value.billed


@pytest.mark.parametrize(
    ("result", "kind", "billed"),
    [
        ({"type": "expired"}, "batch_expired", False),
        ({"type": "canceled"}, "batch_canceled", False),
        ({"type": "lost"}, "batch_lost", True),
        ({"type": "something new"}, "batch_lost", True),
        ({"type": "withdrawn"}, "withdrawn", False),
        (GOES_ALONE, "warms_cache", False),
        ({"type": "errored", "error": None}, "api_error", False),
        (
            {"type": "errored", "error": {"error": {"type": "overloaded_error"}}},
            "overloaded_error",
            False,
        ),
        (
            {
                "type": "errored",
                "error": {
                    "error": {
                        "type": "invalid_request_error",
                        "message": "prompt is too long: 3 > 2",
                    }
                },
            },
            PROMPT_TOO_LONG,
            False,
        ),
        ({"type": "succeeded"}, "stream_broken", True),
        ({"type": "succeeded", "message": {"content": 7}}, "stream_broken", True),
    ],
)
def test_a_result_without_a_reply_is_a_failed_call(
    result: dict[str, Any], kind: str, billed: bool
) -> None:
    with pytest.raises(ModelCallError) as failed:
        read_result(make_request(), result, 0.0)
    assert (failed.value.kind, failed.value.billed) == (kind, billed)


def test_a_request_in_a_batch_is_the_streamed_one_without_the_stream(api: AnthropicBatches) -> None:
    assert b'"stream"' not in api.body(make_request(batch=True))
    options = {"betas": ["a", "b"], "workspace_id": "wrkspc_1", "extra_headers": {"x-y": "z"}}
    assert api.shared(options) == {
        "anthropic-beta": "a,b",
        "anthropic-workspace-id": "wrkspc_1",
        "x-y": "z",
    }

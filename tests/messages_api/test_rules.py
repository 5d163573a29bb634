"""The strict server refuses what the API refuses, and takes what it takes."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from tests.media import image, pdf
from tests.messages_api.conversation_rules import Refusal, sign
from tests.messages_api.rules import check_headers, check_request

VERSION = "2026-10-21"


def said(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def heard(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(call_id: str = "toolu_1") -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "Read", "input": {}}


def result(call_id: str = "toolu_1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "", **more}


def thought(signature: str | None = None) -> dict[str, Any]:
    signature = sign("Hm") if signature is None else signature
    return {"type": "thinking", "thinking": "Hm", "signature": signature}


SHORT = {"type": "ephemeral"}
LONG = {"type": "ephemeral", "ttl": "1h"}
TOOL = {"name": "Read", "description": "Reads.", "input_schema": {"type": "object"}}
HELLO = heard(text("Hello"))


def body(*messages: dict[str, Any], **changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "model": "claude-sonnet-5",
        "max_tokens": 2000,
        "messages": list(messages) or [HELLO],
        "tools": [TOOL],
    }
    whole.update(changes)
    return whole


def media(kind: str, media_type: str, data: bytes | str) -> dict[str, Any]:
    encoded = data if isinstance(data, str) else b64encode(data).decode()
    return {"type": kind, "source": {"type": "base64", "media_type": media_type, "data": encoded}}


PNG = media("image", "image/png", image())
PDF = media("document", "application/pdf", pdf(2))
TAKEN = {
    "an image and a document": body(heard(PNG, PDF, text("Hello"))),
    "an image in a result": body(HELLO, said(call()), heard(result(content=[text("a"), PNG]))),
    "string content": body({"role": "user", "content": "Hello"}),
    "user messages in a row": body(HELLO, HELLO),
    "a call and its result": body(HELLO, said(call()), heard(result())),
    "text after the results": body(HELLO, said(call()), heard(result(), text("and"))),
    "results in another order": body(
        HELLO, said(call("a"), call("b")), heard(result("b"), result("a"))
    ),
    "a result without content": body(
        HELLO, said(call()), heard({"type": "tool_result", "tool_use_id": "toolu_1"})
    ),
    "a result of blocks": body(HELLO, said(call()), heard(result(content=[text("x")]))),
    "an error result": body(HELLO, said(call()), heard(result(is_error=True))),
    "thinking as it was": body(HELLO, said(thought(), call()), heard(result())),
    "an assistant message at the end": body(HELLO, said(text("I"))),
    "four breakpoints": body(system=[{**text("x"), "cache_control": SHORT}] * 4),
    "a breakpoint where the automatic one goes": body(
        heard({**text("x"), "cache_control": SHORT}),
        system=[{**text("x"), "cache_control": SHORT}] * 3,
        cache_control=SHORT,
    ),
    "a long lifetime before a short one": body(
        system=[{**text("x"), "cache_control": LONG}], cache_control=SHORT
    ),
    "a breakpoint on an empty result": body(
        HELLO, said(call()), heard({**result(), "cache_control": SHORT})
    ),
    "adaptive thinking": body(thinking={"type": "adaptive"}, output_config={"effort": "low"}),
    "a budget where the model takes one": body(
        model="claude-sonnet-4-6", thinking={"type": "enabled", "budget_tokens": 1024}
    ),
    "tools": body(tools=[TOOL]),
    "citations of null": body(HELLO, said({**text("x"), "citations": None}), HELLO),
    "a block that the server issued": body(HELLO, said({"type": "issued", "x": 1}), HELLO),
}

REFUSED = {
    "an image of another type": (
        body(heard(media("image", "image/png", image("GIF")))),
        "appears to be GIF",
    ),
    "a broken image": (body(heard(media("image", "image/png", image()[:80]))), "Could not process"),
    "an image of 9000 pixels": (
        body(heard(media("image", "image/png", image(size=(9_000, 1))))),
        "exceed max allowed size",
    ),
    "many images, one of 2100 pixels": (
        body(heard(*[PNG] * 20, media("image", "image/png", image(size=(2_100, 1))))),
        "many-image",
    ),
    "too many images": (body(heard(*[PNG] * 101)), "Too many images"),
    "bytes by their digest": (
        body(heard(media("image", "image/png", "sha256:ab"))),
        "Invalid base64",
    ),
    "a source that names a blob": (
        body(heard({"type": "image", "source": {"type": "blob", "sha256": "ab"}})),
        "does not match",
    ),
    "a document that is none": (
        body(heard(media("document", "application/pdf", b"%PDF-1.7"))),
        "not valid",
    ),
    "no object": ([], "valid dictionary"),
    "an unknown field": (body(temprature=1), "temprature: Extra inputs"),
    "temperature": (body(temperature=1), "temperature: Extra inputs"),
    "no model": ({"max_tokens": 1, "messages": [HELLO]}, "model: Field required"),
    "no max_tokens": (
        {"model": "claude-opus-5", "messages": [HELLO]},
        "max_tokens: Field required",
    ),
    "no messages": ({"model": "claude-opus-5", "max_tokens": 1}, "messages: Field required"),
    "an unknown model": (body(model="gpt"), "model: gpt"),
    "max_tokens of 0": (body(max_tokens=0), "greater than or equal to 1"),
    "max_tokens as text": (body(max_tokens="9"), "valid integer"),
    "an empty conversation": (body(messages=[]), "at least one message"),
    "the assistant first": (body(said(text("x"))), 'must use the "user" role'),
    "an unknown role": (body({"role": "tool", "content": "x"}), "messages.0.role"),
    "a field beside content": (body({**HELLO, "id": 1}), "messages.0.id: Extra inputs"),
    "an empty message": (body(HELLO, said()), "messages.1: messages must have non-empty"),
    "blank content": (body({"role": "user", "content": " "}), "non-empty content"),
    "an empty text": (body(heard(text(""))), "must be non-empty"),
    "a blank text": (body(heard(text(" \n"))), "non-whitespace"),
    "an unknown block": (body(heard({"type": "video"})), "Input tag 'video'"),
    "an unknown field of a block": (body(heard({**text("x"), "id": 1})), "text.id: Extra inputs"),
    "a block without its field": (body(heard({"type": "text"})), "text.text: Field required"),
    "a call by the user": (body(heard(call())), "not allowed in user messages"),
    "a result by the assistant": (body(HELLO, said(result())), "not allowed in assistant"),
    "a call without a result": (
        body(HELLO, said(call()), HELLO),
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after",
    ),
    "a call at the end": (body(HELLO, said(call())), "messages.1: `tool_use` ids were found"),
    "one result missing": (
        body(HELLO, said(call("a"), call("b")), heard(result("a"))),
        "immediately after: b.",
    ),
    "a result too late": (
        body(HELLO, said(call()), HELLO, heard(result())),
        "`tool_use` ids were found without",
    ),
    "a result after text": (
        body(HELLO, said(call()), heard(text("x"), result())),
        "must come first",
    ),
    "a result of nothing": (body(heard(result())), "unexpected `tool_use_id`"),
    "two results of a call": (
        body(HELLO, said(call()), heard(result(), result())),
        "each tool_use must have a single result",
    ),
    "an id twice in a message": (
        body(HELLO, said(call(), call()), heard(result())),
        "ids must be unique",
    ),
    "an id twice": (
        body(HELLO, said(call()), heard(result()), said(call()), heard(result())),
        "ids must be unique",
    ),
    "text after a call": (
        body(HELLO, said(call(), text("x")), heard(result())),
        "`text` blocks cannot follow",
    ),
    "an input that is no object": (
        body(HELLO, said({**call(), "input": []}), heard(result())),
        "tool_use.input: Input should be a valid dictionary",
    ),
    "thinking that was changed": (
        body(HELLO, said({**thought(), "thinking": "Ha"}, call()), heard(result())),
        "Invalid `signature`",
    ),
    "thinking without a signature": (
        body(HELLO, said({"type": "thinking", "thinking": "Hm"}, text("x"))),
        "thinking.signature: Field required",
    ),
    "thinking at the end": (body(HELLO, said(text("x"), thought())), "cannot be `thinking`"),
    "no thinking first": (
        body(
            HELLO,
            said(call()),
            heard(result()),
            model="claude-sonnet-4-6",
            thinking={"type": "enabled", "budget_tokens": 1024},
        ),
        "must start with a thinking block",
    ),
    "a budget": (body(thinking={"type": "enabled", "budget_tokens": 1024}), "budget_tokens"),
    "a budget as large as the reply": (
        body(model="claude-sonnet-4-6", thinking={"type": "enabled", "budget_tokens": 2000}),
        "must be greater than",
    ),
    "thinking of an unknown kind": (body(thinking={"type": "hard"}), "thinking.type"),
    "white space at the end": (body(HELLO, said(text("I "))), "trailing whitespace"),
    "a call without tools": (
        body(HELLO, said(call()), heard(result()), tools=[]),
        "must define tools",
    ),
    "two tools alike": (body(tools=[TOOL, TOOL]), "Tool names must be unique"),
    "a bad name of a tool": (body(tools=[{**TOOL, "name": "a b"}]), "match pattern"),
    "a tool without a schema": (body(tools=[{"name": "Read"}]), "input_schema: Field required"),
    "a schema of no object": (
        body(tools=[{**TOOL, "input_schema": {"type": "array"}}]),
        "input_schema.type",
    ),
    "an unknown field of a tool": (body(tools=[{**TOOL, "read_only": True}]), "read_only: Extra"),
    "five breakpoints": (
        body(cache_control=SHORT, system=[{**text("x"), "cache_control": SHORT}] * 4),
        "A maximum of 4 blocks",
    ),
    "a long lifetime after a short one": (
        body(system=[{**text("x"), "cache_control": SHORT}], cache_control=LONG),
        "must not come after a ttl='5m'",
    ),
    "two lifetimes at the end": (
        body(heard({**text("x"), "cache_control": LONG}), cache_control=SHORT),
        "already has cache_control with ttl='1h'",
    ),
    "a lifetime that there is not": (
        body(cache_control={"type": "ephemeral", "ttl": "1d"}),
        "should be '5m' or '1h'",
    ),
    "a breakpoint of no type": (body(cache_control={}), "should be 'ephemeral'"),
    "a breakpoint on thinking": (
        body(HELLO, said({**thought(), "cache_control": SHORT}, text("x"))),
        "thinking.cache_control: Extra inputs",
    ),
    "an empty system block": (body(system=[text("")]), "non-empty"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_request_is_taken_with(name):
    check_request(TAKEN[name], VERSION, {"issued"})


@pytest.mark.parametrize("name", REFUSED)
def test_request_is_refused_with(name):
    request, words = REFUSED[name]
    with pytest.raises(Refusal) as caught:
        check_request(request, VERSION)
    assert words in caught.value.message
    if name == "an unknown model":
        assert (caught.value.status, caught.value.kind) == (404, "not_found_error")
    else:
        assert (caught.value.status, caught.value.kind) == (400, "invalid_request_error")


def test_an_older_version_takes_temperature():
    check_request(body(temperature=1), "2023-06-01")


@pytest.mark.parametrize(
    ("headers", "status"), [({}, 401), ({"x-api-key": "wrong"}, 401), ({"x-api-key": "key"}, 400)]
)
def test_headers_are_refused(headers, status):
    with pytest.raises(Refusal) as caught:
        check_headers(headers, "key")
    assert caught.value.status == status


@pytest.mark.parametrize("key", [{"x-api-key": "key"}, {"authorization": "Bearer key"}])
def test_either_way_to_give_the_key_is_taken(key):
    check_headers({**key, "anthropic-version": VERSION}, "key")

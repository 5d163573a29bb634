"""Requests of the Messages API as JSON, with their headers and cache breakpoints. Pure.

Sources: https://docs.claude.com/en/api/messages; prompt caching:
https://docs.claude.com/en/docs/build-with-claude/prompt-caching.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from runner.core.conversation import Message, ModelRequest, text_block
from runner.core.media import LoadBlob, left_out, media_blocks, media_line, with_bytes

_CACHE: Mapping[str, str] = {"type": "ephemeral"}
_HOUR_CACHE: Mapping[str, str] = {"type": "ephemeral", "ttl": "1h"}

# Options that go beside the body, and the ones that are not fields of the API.
_HEADERS = {
    "user_profile_id": "anthropic-user-profile-id",
    "workspace_id": "anthropic-workspace-id",
}
_APART = frozenset({"betas", "effort", "extra_body", "extra_headers", *_HEADERS})


def request_headers(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that a call's options ask for (``betas``, ``extra_headers`` …)."""
    headers = {header: str(options[name]) for name, header in _HEADERS.items() if name in options}
    if options.get("betas"):
        headers["anthropic-beta"] = ",".join(options["betas"])
    return {**headers, **options.get("extra_headers", {})}


def request_body(request: ModelRequest, load: LoadBlob | None = None) -> bytes:
    """Return the request as JSON, with the bytes of its media; without ``load`` their digests instead.

    What does not change from turn to turn comes first and byte for byte the same. There are at most
    four cache breakpoints, as many as the API takes: the tools and the system prompt end with one,
    the API sets one at the last block of all, and two are in between (``_places``). They share their
    ``cache_control``, the job's own if its options have one, else the request's: the API refuses a
    long lifetime after a short one. A summary is asked for once, so nothing of it is cached. The
    stored blocks are not changed. ``effort`` stands for ``output_config.effort``. No option, and
    nothing in ``extra_body``, takes the place of what Runner sets itself.
    """
    return encoded(body_of(request, load))


def body_of(request: ModelRequest, load: LoadBlob | None) -> dict[str, Any]:
    options = request.options
    given = {name: value for name, value in options.items() if name not in _APART}
    given |= options.get("extra_body", {})
    cache = given.pop("cache_control", _HOUR_CACHE if request.hour_cache else _CACHE)
    mark = {"cache_control": cache} if request.purpose == "turn" else {}
    body: dict[str, Any] = {
        **mark,
        **given,
        "model": request.model,
        "max_tokens": request.max_tokens,
        **({} if request.batch else {"stream": True}),
    }
    if "effort" in options:
        body["output_config"] = {**body.get("output_config", {}), "effort": options["effort"]}
    tools = [tool.definition() for tool in request.tools]
    if tools:
        body["tools"] = tools
    if request.system:
        body["system"] = [{"type": "text", "text": request.system, **mark}]
    elif tools:
        tools[-1].update(mark)
    sent = with_media([message.as_api() for message in request.messages], load)
    for place in _places(request):
        content = sent[place]["content"]
        content[-1] = {**content[-1], **mark}
    body["messages"] = sent
    return body


def with_media(messages: list[dict[str, Any]], load: LoadBlob | None) -> list[dict[str, Any]]:
    """Return messages with the bytes of their media, as the API takes them. If there are too many for a
    request, the oldest are sent as a line (https://docs.claude.com/en/api/messages, image and
    document blocks with a ``base64`` source, in a ``tool_result`` too)."""
    media = [each for one in messages for block in one["content"] for each in media_blocks(block)]
    if not media:
        return messages
    too_many = {id(each) for each in media[: left_out(media)]}

    def sent(block: Any) -> Any:
        if not isinstance(block, dict):
            return block
        if isinstance(block.get("content"), list):
            return {**block, "content": [*map(sent, block["content"])]}
        return text_block(media_line(block)) if id(block) in too_many else with_bytes(block, load)

    return [{**one, "content": [*map(sent, one["content"])]} for one in messages]


_LOOK_BACK = 20  # positions before a breakpoint at which the API looks for what it has cached


def _places(request: ModelRequest) -> tuple[int, ...]:
    """Return the places of messages that end with a breakpoint, two at most: where compacted
    messages end, because the next compaction keeps that much of the prompt; and where they ended
    before the last compaction, or where the previous request ended, before the last reply. The
    breakpoint at the end finds the latter by itself unless the turn added many blocks."""
    messages = request.messages
    replies = [at for at, message in enumerate(messages) if message.role == "assistant"]
    before = messages[: replies[-1]] if replies else ()
    heard = [at for at, message in enumerate(before) if message.role == "user"][-1:]
    since = messages[heard[-1] + 1 :] if heard else ()
    stable = [place for place in request.stable[::-1] if place < len(messages) - 1]
    if sum(len(message.blocks) for message in since) >= _LOOK_BACK:
        stable = stable[:1]
    return tuple(dict.fromkeys([*stable, *heard]))[:2]


def encoded(body: Mapping[str, Any]) -> bytes:
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Half a surrogate pair is no text and the API refuses it; it becomes a replacement mark.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def call_ids(messages: Sequence[Message]) -> frozenset[str]:
    blocks = (block for message in messages for block in message.blocks)
    return frozenset(block["id"] for block in blocks if block["type"] == "tool_use")

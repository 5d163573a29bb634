"""A model call as the Messages API takes it: the body's bytes, and the headers beside it.

Source: https://docs.claude.com/en/api/messages; prompt caching:
https://docs.claude.com/en/docs/build-with-claude/prompt-caching.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from runner.core.conversation import Message, ModelRequest

_CACHE: Mapping[str, str] = {"type": "ephemeral"}
_HOUR_CACHE: Mapping[str, str] = {"type": "ephemeral", "ttl": "1h"}

# Options that go beside the body, and the ones that are not fields of the API.
_HEADERS = {
    "user_profile_id": "anthropic-user-profile-id",
    "workspace_id": "anthropic-workspace-id",
}
_APART = frozenset({"betas", "effort", "extra_body", "extra_headers", *_HEADERS})

# What a count of tokens takes: https://docs.claude.com/en/api/messages-count-tokens.
_COUNTED = frozenset(
    {
        "cache_control",
        "messages",
        "model",
        "output_config",
        "speed",
        "system",
        "thinking",
        "tool_choice",
        "tools",
    }
)


def request_headers(options: Mapping[str, Any]) -> dict[str, str]:
    """The headers that a call's options ask for (``betas``, ``extra_headers`` …)."""
    headers = {header: str(options[name]) for name, header in _HEADERS.items() if name in options}
    if options.get("betas"):
        headers["anthropic-beta"] = ",".join(options["betas"])
    return {**headers, **options.get("extra_headers", {})}


def request_body(request: ModelRequest) -> bytes:
    """The request as JSON.

    What does not change from turn to turn comes first and byte for byte the same. There are three
    cache breakpoints: the tools and the system prompt end with one, the last block of the previous
    request has one, and the API sets one at the last block of all. They share their
    ``cache_control``, the job's own if its options have one, else the request's: the API refuses a
    long lifetime after a short one. A summary is asked for once, so nothing of it is cached. The
    stored blocks are not changed. ``effort`` stands for ``output_config.effort``. No option, and
    nothing in ``extra_body``, takes the place of what Runner sets itself.
    """
    return _encoded(_body(request))


def count_body(request: ModelRequest) -> bytes:
    """The part of a request that its tokens are counted by, as JSON."""
    body = _body(request)
    return _encoded({name: value for name, value in body.items() if name in _COUNTED})


def _body(request: ModelRequest) -> dict[str, Any]:
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
        "stream": True,
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
    body["messages"] = _marked(request.messages, mark)
    return body


def _marked(messages: Sequence[Message], mark: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages, with a breakpoint where the previous request ended: before the last reply.

    From the breakpoint at the end the API looks back at 20 positions at most, and a turn may have
    added more.
    """
    sent = [message.as_api() for message in messages]
    replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
    before = messages[: replies[-1]] if replies else ()
    heard = [index for index, message in enumerate(before) if message.role == "user"]
    if heard:
        content = sent[heard[-1]]["content"]
        content[-1] = {**content[-1], **mark}
    return sent


def _encoded(body: Mapping[str, Any]) -> bytes:
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Half a surrogate pair is no text and the API refuses it; it becomes a replacement mark.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()

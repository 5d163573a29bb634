"""A model call as the Messages API takes it: the body's bytes, and the headers beside it.

Source: https://docs.claude.com/en/api/messages; prompt caching:
https://docs.claude.com/en/docs/build-with-claude/prompt-caching.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from runner.core.conversation import ModelRequest

_CACHE: Mapping[str, str] = {"type": "ephemeral"}

# Options that go beside the body, and the ones that are not fields of the API.
_HEADERS = {
    "user_profile_id": "anthropic-user-profile-id",
    "workspace_id": "anthropic-workspace-id",
}
_APART = frozenset({"betas", "effort", "extra_body", "extra_headers", *_HEADERS})


def request_headers(options: Mapping[str, Any]) -> dict[str, str]:
    """The headers that a call's options ask for (``betas``, ``extra_headers`` …)."""
    headers = {header: str(options[name]) for name, header in _HEADERS.items() if name in options}
    if options.get("betas"):
        headers["anthropic-beta"] = ",".join(options["betas"])
    return {**headers, **options.get("extra_headers", {})}


def request_body(request: ModelRequest) -> bytes:
    """The request as JSON.

    What does not change from turn to turn comes first and byte for byte the same. The tools and the
    system prompt end with a cache breakpoint, and the API sets one at the last block of all. The
    stored blocks are not changed. ``effort`` stands for ``output_config.effort``. No option, and
    nothing in ``extra_body``, takes the place of what Runner sets itself.
    """
    options = request.options
    body: dict[str, Any] = {
        "cache_control": _CACHE,
        **{name: value for name, value in options.items() if name not in _APART},
        **options.get("extra_body", {}),
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
        body["system"] = [{"type": "text", "text": request.system, "cache_control": _CACHE}]
    elif tools:
        tools[-1]["cache_control"] = _CACHE
    body["messages"] = [message.as_api() for message in request.messages]
    return _encoded(body)


def _encoded(body: Mapping[str, Any]) -> bytes:
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Half a surrogate pair is no text and the API refuses it; it becomes a replacement mark.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()

"""What the Messages API refuses, and in which words.

Sources: https://docs.claude.com/en/api/messages, https://docs.claude.com/en/api/errors, the
parameter types of the anthropic package 2.12, and ``anthropic-version`` 2026-10-21.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tests.messages_api.conversation_rules import (
    NAME,
    Refusal,
    blocks_of,
    check_block,
    check_messages,
)

MODELS = frozenset(
    {
        "claude-fable-5",
        "claude-haiku-4-5",
        "claude-haiku-5",
        "claude-opus-4-6",
        "claude-opus-5",
        "claude-sonnet-4-6",
        "claude-sonnet-5",
        "claude-sonnet-5-5",
    }
)
MOST_BREAKPOINTS = 4

_FIELDS = frozenset(
    {
        "model",
        "messages",
        "max_tokens",
        "cache_control",
        "container",
        "diagnostics",
        "inference_geo",
        "metadata",
        "output_config",
        "service_tier",
        "speed",
        "stop_sequences",
        "stream",
        "system",
        "thinking",
        "tool_choice",
        "tools",
    }
)
_COUNTED_FIELDS = frozenset(
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
_TOOL_FIELDS = frozenset(
    {
        "type",
        "name",
        "description",
        "input_schema",
        "cache_control",
        "allowed_callers",
        "defer_loading",
        "eager_input_streaming",
        "input_examples",
        "strict",
    }
)


def check_headers(headers: dict[str, str], api_key: str) -> None:
    """Raise Refusal unless the request is authenticated and names a version."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    key = headers.get("x-api-key") or (token if scheme == "Bearer" else None)
    if key is None:
        raise Refusal("x-api-key header is required", 401, "authentication_error")
    if key != api_key:
        raise Refusal("invalid x-api-key", 401, "authentication_error")
    if "anthropic-version" not in headers:
        raise Refusal("anthropic-version: header is required")


def check_request(body: Any, version: str, issued: Collection[str] = ()) -> None:
    """Raise Refusal unless the API would take this request.

    Args:
        version: the ``anthropic-version`` header.
        issued: block types beyond the documented ones that a reply of this server had.
    """
    if not isinstance(body, dict):
        raise Refusal("Input should be a valid dictionary")
    _check_fields(body, version)
    _check_tools(body.get("tools", []))
    _check_system(body.get("system"))
    check_messages(body["messages"], issued)
    _check_tools_defined(body)
    _check_thinking(body)
    _check_breakpoints(body)


def check_count(body: Any, version: str, issued: Collection[str] = ()) -> None:
    """Raise Refusal unless the API would count the tokens of this request:
    https://docs.claude.com/en/api/messages-count-tokens."""
    if isinstance(body, dict):
        for name in sorted(body.keys() - _COUNTED_FIELDS):
            raise Refusal(f"{name}: Extra inputs are not permitted")
        thinking = body.get("thinking") or {}
        budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
        body = {"max_tokens": 1 + (budget or 0), **body}
    check_request(body, version, issued)


def check_window(tokens: int, window: int | None) -> None:
    """Raise Refusal when a prompt of so many tokens is longer than the model's window."""
    if window is not None and tokens > window:
        raise Refusal(f"prompt is too long: {tokens} tokens > {window} maximum")


def _check_fields(body: dict[str, Any], version: str) -> None:
    for name in ("model", "max_tokens", "messages"):
        if name not in body:
            raise Refusal(f"{name}: Field required")
    sampling = {"temperature", "top_p", "top_k"} & body.keys()
    if sampling and version < "2026-10-21":
        sampling = set()
    for name in sorted((body.keys() - _FIELDS - {"temperature", "top_p", "top_k"}) | sampling):
        raise Refusal(f"{name}: Extra inputs are not permitted")
    if not isinstance(body["model"], str) or not body["model"]:
        raise Refusal("model: String should have at least 1 character")
    if body["model"] not in MODELS:
        raise Refusal(f"model: {body['model']}", 404, "not_found_error")
    limit = body["max_tokens"]
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise Refusal("max_tokens: Input should be a valid integer")
    if limit < 1:  # 0 warms the cache; Runner never means that
        raise Refusal("max_tokens: Input should be greater than or equal to 1")
    if not isinstance(body.get("stream", False), bool):
        raise Refusal("stream: Input should be a valid boolean")


def _check_tools(tools: Any) -> None:
    if not isinstance(tools, list):
        raise Refusal("tools: Input should be a valid list")
    names: set[str] = set()
    for index, tool in enumerate(tools):
        at = f"tools.{index}"
        if not isinstance(tool, dict):
            raise Refusal(f"{at}: Input should be a valid dictionary")
        if tool.get("type", "custom") != "custom":
            continue  # a server tool: its fields are its own
        for name in sorted(tool.keys() - _TOOL_FIELDS):
            raise Refusal(f"{at}.custom.{name}: Extra inputs are not permitted")
        if not isinstance(tool.get("name"), str) or not NAME.fullmatch(tool["name"]):
            raise Refusal(f"{at}.custom.name: String should match pattern '^{NAME.pattern}$'")
        if tool["name"] in names:
            raise Refusal("tools: Tool names must be unique.")
        names.add(tool["name"])
        if not isinstance(tool.get("description", ""), str):
            raise Refusal(f"{at}.custom.description: Input should be a valid string")
        _check_schema(tool.get("input_schema"), f"{at}.custom.input_schema")


def _check_tools_defined(body: dict[str, Any]) -> None:
    """https://github.com/anthropics/anthropic-sdk-python/issues/494"""
    asks = {block["type"] for message in body["messages"] for block in blocks_of(message)}
    if not body.get("tools") and asks & {"tool_use", "tool_result"}:
        raise Refusal("Requests which include `tool_use` or `tool_result` blocks must define tools")


def _check_schema(schema: Any, at: str) -> None:
    if not isinstance(schema, dict):
        raise Refusal(f"{at}: Field required")
    if schema.get("type") != "object":
        raise Refusal(f"{at}.type: Input should be 'object'")
    if not isinstance(schema.get("properties", {}), dict):
        raise Refusal(f"{at}: JSON schema is invalid. It must match JSON Schema draft 2020-12")


def _check_system(system: Any) -> None:
    if system is None or isinstance(system, str):
        return
    if not isinstance(system, list):
        raise Refusal("system: Input should be a valid list")
    for index, block in enumerate(system):
        if not isinstance(block, dict) or block.get("type") != "text":
            raise Refusal(f"system.{index}.type: Input should be 'text'")
        check_block(block, f"system.{index}", ())
        if not block["text"].strip():
            raise Refusal("system: text content blocks must be non-empty")


def _check_thinking(body: dict[str, Any]) -> None:
    thinking = body.get("thinking")
    if thinking is None:
        return
    if not isinstance(thinking, dict) or thinking.get("type") not in (
        "enabled",
        "disabled",
        "adaptive",
        "between_tools",
    ):
        raise Refusal("thinking.type: Input should be 'enabled', 'disabled' or 'adaptive'")
    if "budget_tokens" in thinking and body["model"].endswith("-5"):
        raise Refusal(
            "thinking.budget_tokens: not supported by this model; use thinking.type 'adaptive' "
            "with output_config.effort"
        )
    if thinking["type"] != "enabled":
        return
    budget = thinking.get("budget_tokens")
    if not isinstance(budget, int) or budget < 1024:
        raise Refusal(
            "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
        )
    if budget >= body["max_tokens"]:
        raise Refusal("`max_tokens` must be greater than `thinking.budget_tokens`.")
    _check_thinking_first(body["messages"])


def _check_thinking_first(messages: list[dict[str, Any]]) -> None:
    for index in range(len(messages) - 1, -1, -1):
        if messages[index]["role"] != "assistant":
            continue
        blocks = blocks_of(messages[index])
        called = any(block["type"] == "tool_use" for block in blocks)
        if called and blocks[0]["type"] not in ("thinking", "redacted_thinking"):
            raise Refusal(
                f"messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but "
                f"found `{blocks[0]['type']}`. When `thinking` is enabled, a final `assistant` "
                "message must start with a thinking block."
            )
        return


def _check_breakpoints(body: dict[str, Any]) -> None:
    """https://docs.claude.com/en/docs/build-with-claude/prompt-caching: how many, and in what order."""
    places: list[Any] = [*body.get("tools", [])]
    if isinstance(body.get("system"), list):
        places += body["system"]
    for message in body["messages"]:
        places += blocks_of(message)
    marks = [mark for place in places if (mark := place.get("cache_control")) is not None]
    automatic = body.get("cache_control")
    if automatic is not None:
        at_the_end = places[-1].get("cache_control") if places else None
        if at_the_end is None:
            marks.append(automatic)
        elif _lifetime(at_the_end) != _lifetime(automatic):
            raise Refusal(
                f"Top-level cache_control has ttl='{_lifetime(automatic)}' but the target block "
                f"already has cache_control with ttl='{_lifetime(at_the_end)}'"
            )
    if len(marks) > MOST_BREAKPOINTS:
        raise Refusal(
            f"A maximum of {MOST_BREAKPOINTS} blocks with cache_control may be provided. "
            f"Found {len(marks)}."
        )
    lifetimes = [_lifetime(mark) for mark in marks]
    if lifetimes != sorted(lifetimes):  # "1h" before "5m"
        raise Refusal(
            "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. Note "
            "that blocks are processed in the following order: `tools`, `system`, `messages`."
        )


def _lifetime(mark: dict[str, Any]) -> str:
    if mark.get("type") != "ephemeral":
        raise Refusal("cache_control.type: Input should be 'ephemeral'")
    lifetime = mark.get("ttl", "5m")
    if lifetime not in ("5m", "1h"):
        raise Refusal("cache_control.ephemeral.ttl: Input should be '5m' or '1h'")
    return str(lifetime)

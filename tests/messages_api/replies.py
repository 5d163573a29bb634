"""What the model says, and how a call breaks: values, and the stream of events they make."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.messages_api.conversation_rules import sign

BreakKind = Literal[
    "status",  # an error status with the API's JSON, or the HTML of a proxy
    "reset_before_headers",
    "reset_in_headers",
    "reset",  # in the stream
    "close",  # the connection ends inside the body
    "cut",  # the body ends as it should, without message_stop
    "stall",  # nothing more comes, save pings when ``pings``
    "stall_before_headers",
    "error_event",  # inside a 200 stream
    "malformed",  # an event whose data is no JSON
]

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


@dataclass(frozen=True)
class Break:
    """How a call fails.

    Args:
        after: events of the reply that are sent first (in a stream).
        status, error_type, message, details, headers, html: of an error answer.
        pings: a stalled stream goes on sending pings.
    """

    kind: BreakKind
    after: int = 0
    status: int = 529
    error_type: str | None = None
    message: str = "Overloaded"
    details: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    html: bool = False
    pings: bool = False

    def error_body(self, request_id: str) -> bytes:
        """The body of an error answer."""
        if self.html:
            return f"<html><head><title>{self.status}</title></head><body>{self.message}".encode()
        return json.dumps(self.error(request_id)).encode()

    def error(self, request_id: str) -> dict[str, Any]:
        """The API's error object."""
        kind = self.error_type or ERROR_TYPES.get(self.status, "api_error")
        error: dict[str, Any] = {"type": kind, "message": self.message}
        error |= {"details": dict(self.details)} if self.details else {}
        return {"type": "error", "error": error, "request_id": request_id}


@dataclass(frozen=True)
class Reply:
    """One reply of the model.

    Args:
        blocks: as they are to be accumulated by the client; a thinking block is signed here.
        stop_reason: by default ``tool_use`` when there is a tool call, else ``end_turn``.
        latency: seconds before the response begins.
        held_until: the response does not begin before this is set.
        pause: seconds between two events.
        chunk: characters in one delta.
        cut: the last block is cut in its middle, as at max_tokens.
        partial_json: block index -> what is streamed as its input, whatever ``blocks`` says.
        extra_events: (name, data) sent right after message_start.
        usage: overrides of the counted usage.
        broken: how the call breaks, always.
        fail_first: how it breaks the first times that it is asked for.
    """

    blocks: Sequence[Mapping[str, Any]] = ()
    stop_reason: str | None = None
    latency: float = 0.0
    held_until: threading.Event | None = None
    pause: float = 0.0
    chunk: int = 64
    cut: bool = False
    partial_json: Mapping[int, str] = field(default_factory=dict)
    extra_events: Sequence[tuple[str, Mapping[str, Any]]] = ()
    usage: Mapping[str, int] = field(default_factory=dict)
    broken: Break | None = None
    fail_first: Sequence[Break] = ()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reply:
        """A reply from a script file: the same names, breaks as objects."""
        values = dict(data)
        if values.get("broken"):
            values["broken"] = Break(**values["broken"])
        values["fail_first"] = tuple(Break(**item) for item in values.get("fail_first", ()))
        return cls(**values)

    def signed_blocks(self) -> list[dict[str, Any]]:
        """The blocks as the client is to have them in the end."""
        return [
            {"signature": sign(block["thinking"]), **block}
            if block["type"] == "thinking"
            else dict(block)
            for block in self.blocks
        ]

    def reason(self) -> str:
        if self.stop_reason is not None:
            return self.stop_reason
        called = any(block["type"] == "tool_use" for block in self.blocks)
        return "tool_use" if called else "end_turn"

    def message(self, message_id: str, model: str, usage: Mapping[str, int]) -> dict[str, Any]:
        """The whole message, for a call without a stream."""
        return {
            **_head(message_id, model),
            "content": self.signed_blocks(),
            "stop_reason": self.reason(),
            "stop_sequence": None,
            "usage": {**usage, "output_tokens": self.output_tokens(), **self.usage},
        }

    def output_tokens(self) -> int:
        return 1 + sum(len(json.dumps(block)) for block in self.blocks) // 4

    def events(
        self, message_id: str, model: str, usage: Mapping[str, Any]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """The stream, as (event name, data)."""
        usage = {**usage, **self.usage}
        first = {**usage, "output_tokens": 1}
        start = {
            **_head(message_id, model),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": first,
        }
        yield "message_start", {"type": "message_start", "message": start}
        yield "ping", {"type": "ping"}
        for name, data in self.extra_events:
            yield name, dict(data)
        last = len(self.blocks) - 1
        for index, block in enumerate(self.signed_blocks()):
            yield from self._block_events(index, block, self.cut and index == last)
        delta = {"stop_reason": self.reason(), "stop_sequence": None}
        total = self.usage.get("output_tokens", self.output_tokens())
        yield (
            "message_delta",
            {"type": "message_delta", "delta": delta, "usage": {"output_tokens": total}},
        )
        yield "message_stop", {"type": "message_stop"}

    def _block_events(
        self, index: int, block: dict[str, Any], cut: bool
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        head, deltas = _streamed(block, self.chunk, cut, self.partial_json.get(index))
        yield (
            "content_block_start",
            {"type": "content_block_start", "index": index, "content_block": head},
        )
        for delta in deltas:
            yield (
                "content_block_delta",
                {"type": "content_block_delta", "index": index, "delta": delta},
            )
        yield "content_block_stop", {"type": "content_block_stop", "index": index}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def thinking(words: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": words}


def tool_use(call_id: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": dict(arguments)}


def sse(name: str, data: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def _head(message_id: str, model: str) -> dict[str, Any]:
    return {"id": message_id, "type": "message", "role": "assistant", "model": model}


def _streamed(
    block: dict[str, Any], chunk: int, cut: bool, partial_json: str | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as content_block_start has it, and its deltas."""
    kind = block["type"]
    if kind == "text":
        words = block["text"][: len(block["text"]) // 2] if cut else block["text"]
        parts = [{"type": "text_delta", "text": part} for part in _parts(words, chunk)]
        for citation in block.get("citations") or ():
            parts.append({"type": "citations_delta", "citation": citation})
        return {"type": "text", "text": "", "citations": None}, parts
    if kind == "thinking":
        words = block["thinking"]
        parts = [{"type": "thinking_delta", "thinking": part} for part in _parts(words, chunk)]
        if not cut:
            parts.append({"type": "signature_delta", "signature": block["signature"]})
        return {"type": "thinking", "thinking": "", "signature": ""}, parts
    if kind in ("tool_use", "server_tool_use"):
        whole = json.dumps(block["input"]) if block["input"] else ""
        if partial_json is not None:
            whole = partial_json
        elif cut:
            whole = whole[: len(whole) // 2]
        parts = [
            {"type": "input_json_delta", "partial_json": part} for part in _parts(whole, chunk)
        ]
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": ""}, *parts]
    return block, []


def _parts(words: str, chunk: int) -> list[str]:
    return [words[at : at + chunk] for at in range(0, len(words), chunk)]

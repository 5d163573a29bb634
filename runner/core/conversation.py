"""Values of a model call: blocks, messages, requests, replies, results.

Blocks are plain JSON objects exactly as in the Messages API; unknown kinds pass through untouched.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from runner.core.media import Media, media_tokens
from runner.core.network import Connection

Block = dict[str, Any]
Role = Literal["user", "assistant"]
Purpose = Literal["turn", "summary"]  # what a model call is for

# The outcome of a tool call. All but "succeeded" are errors for the model.
ToolOutcome = Literal[
    "succeeded",
    "failed",  # the tool ran and reported an error, or raised
    "denied",  # no permission
    "unknown_tool",
    "invalid_input",  # not an object, or does not fit the schema
    "timed_out",
    "interrupted",  # cut by a cancel or a shutdown
    "unknown",  # started by a worker that died; whether it took effect is not known
]


# Arguments that are no JSON object cannot be stored as a call's input, because the API takes only
# objects back: they are kept as text under this one name, and answered as invalid.
UNREADABLE_INPUT = "unreadable_arguments"


# Stop reasons of a reply that was cut off and must be continued.
CONTEXT_EXCEEDED = "model_context_window_exceeded"
CUT_REASONS = frozenset({"max_tokens", CONTEXT_EXCEEDED})


# The kinds of the fields that a block has, by its type.
_FIELDS: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "text": {"text": str},
    "tool_use": {"id": str, "name": str, "input": object},
    "tool_result": {"tool_use_id": str, "content": (str, list)},
}


def check_block(block: Any) -> Block:
    """Return a block. Raises ``ValueError`` if it lacks a valid field that readers of its type need."""
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        raise ValueError("a block has no type")
    for name, of_kind in _FIELDS.get(kind, {}).items():
        if name not in block or not isinstance(block[name], of_kind):
            raise ValueError(f"a block of type {kind} has no valid {name}")
    checked: Block = block
    return checked


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    blocks: tuple[Block, ...]

    def as_api(self) -> dict[str, Any]:
        return {"role": self.role, "content": list(self.blocks)}


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or more model calls, in the API's four kinds."""

    input_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    output_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Everything that the model read: input, cache reads and cache writes."""
        return self.input_tokens + self.cache_read_tokens + self.cache_creation_tokens

    @property
    def total(self) -> int:
        return self.prompt_tokens + self.output_tokens

    def by_kind(self) -> dict[str, int]:
        """Return the tokens by the names of the columns that hold them."""
        return {kind: getattr(self, kind) for kind in self.__slots__}

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, kind) + getattr(other, kind) for kind in self.__slots__))


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    input_schema: Mapping[str, Any]
    read_only: bool = False  # may run beside others, and again after a crash
    repeatable: bool = False  # may run again after a crash
    source: str = "builtin"  # or ``package.module:function@/folder to import it from``

    def definition(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "input_schema": dict(self.input_schema),
        }


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call. The fields from ``item_key`` on are for a scripted model only."""

    model: str
    system: str | None
    tools: tuple[Tool, ...]
    messages: tuple[Message, ...]
    max_tokens: int
    options: Mapping[str, Any]  # passed to the API as they are (thinking, output_config …)
    run_id: str
    item_key: str
    reply_number: int  # 0 for the first reply of the conversation
    purpose: Purpose = "turn"
    hour_cache: bool = False  # what it writes to the prompt cache lives for an hour
    batch: bool = False  # it goes into a Message Batch: its reply is not streamed
    stable: tuple[int, ...] = ()  # places of messages up to which a later prompt may be the same
    agent_type: str = ""  # empty for the run of an item


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A whole reply: the stream ended with ``message_stop``."""

    # The finished blocks. A text or thinking block is finished when its ``content_block_stop`` came
    # (thinking needs its signature too), a tool call when its input is a whole JSON object. Arguments
    # of a whole reply that are something else stand under ``UNREADABLE_INPUT``.
    blocks: tuple[Block, ...]
    stop_reason: str
    usage: Usage
    model: str
    request_id: str | None = None
    latency: float = 0.0  # seconds
    cut: Block | None = None  # that ``max_tokens`` parted: kept for audit, never run


@dataclass(frozen=True, slots=True)
class ToolResult:
    content: str  # for the model, already capped
    outcome: ToolOutcome = "succeeded"
    # The whole output as UTF-8, at most 10 MB, if it is longer than ``content``.
    output: bytes | None = field(default=None, repr=False)
    duration: float = 0.0  # seconds
    details: Mapping[str, Any] | None = None  # for hooks: what its tool tells beside the content
    containment: str | None = None  # what contained its processes; None: it started none
    connections: tuple[Connection, ...] = ()  # that it made or asked for over the proxy
    media: tuple[Media, ...] = ()  # shown to the model after the content

    @property
    def is_error(self) -> bool:
        return self.outcome != "succeeded"


_AS_JSON = json.JSONEncoder(ensure_ascii=False)


def content_text(block: Block) -> str:
    """Return a block as JSON, on which its size is counted."""
    return _AS_JSON.encode(block)


def content_bytes(block: Block) -> int:
    """UTF-8 bytes of a block as JSON: an upper bound of its tokens (a token is at least one byte). Media
    count as the most tokens that they may have."""
    return text_bytes(content_text(block)) + media_tokens(block)[1]


def text_bytes(text: str) -> int:
    """UTF-8 bytes of a text, half a surrogate pair among it or not."""
    return len(text.encode("utf-8", "surrogatepass"))


def result_block(call_id: str, result: ToolResult) -> Block:
    content: str | list[Block] = result.content
    if result.media:
        content = [text_block(result.content), *(each.block() for each in result.media)]
    block: Block = {"type": "tool_result", "tool_use_id": call_id, "content": content}
    if result.is_error:
        block["is_error"] = True
    return block


def text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def tool_uses(blocks: Iterable[Block]) -> list[Block]:
    """The client tool calls among a reply's blocks, in order."""
    return [block for block in blocks if block["type"] == "tool_use"]


def message_blocks(reply: ModelReply) -> tuple[Block, ...]:
    """The blocks of a reply that become a message; none means that it becomes no message.

    The API gives blank texts and refuses them back, as it does a message that is or ends with
    thinking. What a model said before refusing is not sent back to it
    (https://docs.claude.com/en/docs/test-and-evaluate/strengthen-guardrails/handle-streaming-refusals).
    """
    if reply.stop_reason == "refusal":
        return ()
    kept = [b for b in reply.blocks if b["type"] != "text" or b["text"].strip()]
    while kept and kept[-1]["type"] in ("thinking", "redacted_thinking"):
        kept.pop()
    return tuple(kept)

"""Assemble a reply from the events of a streamed message. Pure.

Blocks are kept as the API sent them, so that they can be sent back; nothing depends on a block's
type. Source: https://docs.claude.com/en/docs/build-with-claude/streaming.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from runner.core.budget import written_in
from runner.core.conversation import (
    UNREADABLE_INPUT,
    Block,
    ModelReply,
    Usage,
    content_bytes,
    text_bytes,
)
from runner.core.text import read_json

# With these the API may part the last block; with any other reason an unfinished block is a fault.
_PARTING_REASONS = frozenset({"max_tokens", "model_context_window_exceeded", "refusal"})
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME = 128
_MOST_UNREADABLE = 10_000
_MOST_TOKENS = 2**53
_USAGE_FIELDS = (
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens",
)

_SHOWN = ("text", "tool_use")  # types of blocks that are streamed whole
_UNDERWAY_SECONDS = 0.5  # how much earlier than it comes an event was sent
_UNDERWAY_RATE = 300  # tokens a second meanwhile: half more than fast mode writes
_LEAST_COUNTED_BYTES = 100  # less text is not worth a question
_COUNT_MARGIN = 1.1  # the API calls its counts estimates

# The API's data is not ours: whatever shape it has, it must not pass for a fault of our own.
_SHAPE_ERRORS = (KeyError, TypeError, AttributeError, IndexError)


class BrokenStreamError(ValueError):
    """The events do not make a message. Its text says why, in one line."""


class Accumulator:
    """Takes the events of one message, in order, and gives the reply. ``taken_ids`` gives the ids of
    the tool calls in the request; a reply may not use them again."""

    def __init__(self, taken_ids: Callable[[], Collection[str]] = frozenset) -> None:
        self.request_id: str | None = None  # the API's, set by the caller
        self.started = False  # ``message_start`` has come
        self.whole = False  # ``message_stop`` has come
        self._taken_ids = taken_ids
        self._model = ""
        self._stop_reason: str | None = None
        self._usage: dict[str, int] = dict.fromkeys(_USAGE_FIELDS, 0)
        self._has_counted = False  # ``message_start`` said what the prompt was
        self._is_final = False  # the usage is that of the whole message
        self._parts: list[_Part] = []
        self._shown_bytes = 0  # of the blocks so far
        self._hides = False  # the model may have written more than was streamed

    def add(self, event: Any) -> str:
        """Take an event. Return the text that it added, or "". Raises BrokenStreamError when it cannot
        follow what came before, or lacks what its type needs."""
        try:
            return self._add(event)
        except _SHAPE_ERRORS as error:
            raise BrokenStreamError(
                f"an event of an unexpected shape: {str(event)[:200]}"
            ) from error

    def finish(self, latency: float) -> ModelReply:
        """Return the whole reply, after ``message_stop``; the call took ``latency`` seconds. Raises
        BrokenStreamError when what came is no whole reply."""
        if not self.whole or self._stop_reason is None:
            raise BrokenStreamError("the message has no stop_reason")
        parted = self._stop_reason in _PARTING_REASONS
        cut: Block | None = None  # what remains of a last block that was cut off
        blocks: list[Block] = []
        try:
            for part in self._parts:
                may_be_parted = parted and part is self._parts[-1]
                block = part.finish(may_be_parted)
                if block is not None:
                    blocks.append(block)
                elif may_be_parted:
                    cut = part.grown()
        except _SHAPE_ERRORS as error:
            raise BrokenStreamError("a block of an unexpected shape") from error
        ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
        taken = self._taken_ids() if ids else ()
        for number, call_id in enumerate(ids):
            if call_id in taken or call_id in ids[:number]:
                raise BrokenStreamError(f"the tool call id {call_id} is used twice")
        return ModelReply(
            blocks=tuple(_sendable(blocks)),
            stop_reason=self._stop_reason,
            usage=Usage(*self._usage.values()),
            model=self._model,
            request_id=self.request_id,
            latency=latency,
            cut=cut,
        )

    def counted(self) -> Usage | None:
        """Return the tokens that the API has counted, without output before its end; None if it has
        counted none."""
        usage = Usage(*self._usage.values())
        if not self._is_final:
            usage = replace(usage, output_tokens=0)
        return usage if self._has_counted else None

    @property
    def shown(self) -> str:
        """The blocks so far as JSON, for the API to count; "" if its count would bound nothing."""
        if self._is_final or self._hides or self._shown_bytes < _LEAST_COUNTED_BYTES:
            return ""
        return json.dumps([part.grown() for part in self._parts], ensure_ascii=False)

    def most_output(self, seconds: float, silent: float, shown_tokens: int | None = None) -> int:
        """Return the most tokens that the model can have written when the call was cut, ``seconds`` after
        its start and ``silent`` after its last event. Text and calls come as they are written, and have
        at most one token a byte, or ``shown_tokens`` by the API's count; of thinking the API may stream
        a summary, or nothing."""
        if self._is_final:
            return self._usage["output_tokens"]
        by_time = written_in(seconds + _UNDERWAY_SECONDS)
        if self._hides or not self.started:
            return by_time
        shown = self._shown_bytes
        if shown_tokens is not None:
            shown = min(shown, math.ceil(shown_tokens * _COUNT_MARGIN))
        return min(by_time, shown + written_in(silent + _UNDERWAY_SECONDS, _UNDERWAY_RATE))

    def _add(self, event: Any) -> str:
        match event["type"]:
            case "content_block_delta":
                part: _Part = self._parts[event["index"]]
                for name, value in event["delta"].items():
                    if isinstance(value, str):
                        self._shown_bytes += text_bytes(value) if name != "type" else 0
                    else:
                        self._hides = True
                return part.add(event["delta"])
            case "content_block_start":
                if event["index"] != len(self._parts):
                    raise BrokenStreamError(f"block {event['index']} began out of order")
                self._parts.append(_Part(event["content_block"]))
                self._shown_bytes += content_bytes(event["content_block"])
                self._hides |= event["content_block"]["type"] not in _SHOWN
            case "content_block_stop":
                self._parts[event["index"]].stopped = True
            case "message_start":
                if self.started:
                    raise BrokenStreamError("a second message began in the stream")
                self.started = True
                self._model = event["message"]["model"]
                self._count(event["message"].get("usage"))
                usage = event["message"].get("usage") or {}
                self._has_counted = usage.get("input_tokens") is not None
            case "message_delta":
                self._stop_reason = event["delta"].get("stop_reason") or self._stop_reason
                self._count(event.get("usage"))
                has_output = (event.get("usage") or {}).get("output_tokens") is not None
                self._is_final = has_output and self._has_counted and self._stop_reason is not None
            case "message_stop":
                self.whole = self.started
            case kind:
                self._hides |= kind != "ping"
        return ""

    def _count(self, usage: Mapping[str, Any] | None) -> None:
        """Counts are totals; a missing one does not change."""
        for name in _USAGE_FIELDS:
            value = (usage or {}).get(name)
            if value is None:
                continue
            if type(value) is not int or not 0 <= value <= _MOST_TOKENS:
                raise BrokenStreamError(f"usage.{name} is not a number of tokens")
            self._usage[name] = value


class _Part:
    """A block as it grows."""

    def __init__(self, block: Block) -> None:
        self.stopped = False
        self._block = dict(block)
        self._type = block["type"]
        self._texts: dict[str, list[str]] = {}

    def add(self, delta: Mapping[str, Any]) -> str:
        """Take a delta. Return the text that it added. Strings grow and other values are set, so
        unknown kinds of delta work too."""
        if delta["type"] == "citations_delta":
            self._block["citations"] = [*(self._block.get("citations") or ()), delta["citation"]]
            return ""
        for name, value in delta.items():
            if isinstance(value, str) and name != "type":
                self._texts.setdefault(name, []).append(value)
            elif name != "type":
                self._block[name] = value
        return str(delta["text"]) if delta["type"] == "text_delta" else ""

    def grown(self) -> Block:
        """Return the block so far; what came of its input is in ``partial_json``."""
        block = dict(self._block)
        for name, parts in self._texts.items():
            block[name] = "".join([block.get(name) or "", *parts])
        return block

    def finish(self, may_be_parted: bool) -> Block | None:
        """Return the finished block; None when there is nothing to keep. Raises BrokenStreamError when
        it is unfinished, unless it is the last block of a reply that was cut off."""
        if not self.stopped:
            self._refuse_unfinished("did not end", may_be_parted)
            return None
        block = self.grown()
        source = block.pop("partial_json", "")
        if self._type == "text":
            if block.get("citations", ()) is None:
                del block["citations"]
            return block if block["text"].strip() else None
        if self._type == "thinking":
            return block if block.get("signature") else None
        if self._type in ("tool_use", "server_tool_use"):
            return self._finish_call(block, source, may_be_parted)
        if source:
            block["input"] = _parsed(source)
        return block

    def _finish_call(self, block: Block, source: str, may_be_parted: bool) -> Block | None:
        if not source and may_be_parted:  # a call without arguments, or one cut before them
            return None
        try:
            block["input"] = _parsed(source) if source else block["input"]
        except BrokenStreamError as error:
            if may_be_parted or self._type != "tool_use":
                self._refuse_unfinished(str(error), may_be_parted)
                return None
            block["input"] = {UNREADABLE_INPUT: source[:_MOST_UNREADABLE]}
        if self._type == "tool_use" and isinstance(block.get("name"), str):
            # A name that the API would refuse when it is sent back is no tool of ours either.
            block["name"] = _NOT_IN_NAMES.sub("_", block["name"])[:_LONGEST_NAME] or "_"
        for name, kind in (("id", str), ("name", str), ("input", dict)):
            if not isinstance(block.get(name), kind) or (kind is str and not block[name]):
                raise BrokenStreamError(f"a {self._type} block has no usable {name}")
        if self._type == "tool_use" and _NOT_IN_NAMES.search(block["id"]):
            # It names the call in the result too, so the API would refuse every later request.
            raise BrokenStreamError("a tool_use block has no usable id")
        return block

    def _refuse_unfinished(self, why: str, may_be_parted: bool) -> None:
        if not may_be_parted:
            raise BrokenStreamError(f"a {self._type} block {why}")


def _parsed(source: str) -> dict[str, Any]:
    try:
        value = read_json(source)
    except (ValueError, RecursionError) as error:
        raise BrokenStreamError(f"has an input that is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise BrokenStreamError("has an input that is not a JSON object")
    return value


def _sendable(blocks: list[Block]) -> list[Block]:
    """Return the blocks in an order that the API takes back: it refuses text after a tool call, and
    thinking as the last block. A reply of only thinking does not change."""
    types = [block["type"] for block in blocks]
    first_call = types.index("tool_use") if "tool_use" in types else len(blocks)
    ordered = blocks[:first_call] + sorted(blocks[first_call:], key=lambda b: b["type"] != "text")
    end = len(ordered)
    while end and ordered[end - 1]["type"] in ("thinking", "redacted_thinking"):
        end -= 1
    return ordered[:end] if end else ordered

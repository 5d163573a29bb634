"""A run as it is recorded, as one value: what other formats are made of.

The content of messages as text and images, for formats that know nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from runner.core.agents import place_of
from runner.core.conversation import Block, Usage
from runner.core.prices import (
    Calls,
    PriceList,
    Terms,
    spending,
)
from runner.core.spec import JobSpec

Row = Mapping[str, Any]

# The key in a run's item that says that it was a session of Claude Code's.
SESSION = "claude_code"


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """A message: the rows of its blocks, in order, results of an incomplete one among them."""

    number: int
    role: str
    rows: tuple[Row, ...]

    @property
    def at(self) -> float:
        """When its first block was stored, in seconds since the epoch."""
        return float(self.rows[0]["created_at"])

    @property
    def turn(self) -> int:
        return int(self.rows[0]["turn"])

    @property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(row["content"] for row in self.rows)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run with what belongs to it: rows by the names of their columns. ``spec`` is what it works by,
    ``calls`` are tool calls by message and position, ``children`` the runs that it has started by the
    call that asked for them (None: no call did); ``prices`` price its model calls."""

    run: Row
    item: Any
    job_name: str
    spec: JobSpec
    blocks: tuple[Row, ...]
    calls: Mapping[tuple[int, int], Row]
    model_calls: tuple[Row, ...]
    compactions: tuple[Row, ...]
    verifications: tuple[Row, ...]
    prices: PriceList
    children: Mapping[tuple[int, int] | None, tuple[str, ...]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return str(self.run["id"])

    @property
    def root(self) -> str:
        """The run of the item in whose tree it is."""
        return place_of(self.id)["root"]

    @property
    def inherited(self) -> frozenset[tuple[int, int]]:
        """The places of the blocks that a sub-agent has from its parent: of those that its conversation
        began with all but the last."""
        if self.run["parent_run"] is None:
            return frozenset()
        began = [(row["message"], row["position"]) for row in self.blocks if row["turn"] == 0]
        return frozenset(began[:-1])

    @property
    def model(self) -> str:
        """The model that the run calls."""
        return self.run["model"] or self.spec.model

    @property
    def session(self) -> Mapping[str, Any] | None:
        """What is known of the session of Claude Code's that it was, None for a run of our own."""
        found = self.item.get(SESSION) if isinstance(self.item, dict) else None
        return found if isinstance(found, dict) else None

    def messages(self) -> Iterator[RecordedMessage]:
        """All messages in order."""
        rows: list[Row] = []
        for row in self.blocks:
            if rows and row["message"] != rows[0]["message"]:
                yield _message(rows)
                rows = []
            rows.append(row)
        if rows:
            yield _message(rows)

    def replies(self) -> dict[int, Row]:
        """The model call that gave each turn's reply. Turns that were copied from another run have
        none here."""
        return {
            call["turn"]: call
            for call in self.model_calls
            if call["purpose"] == "turn" and call["stop_reason"] is not None
        }

    def cost(self, call: Row) -> float | None:
        """What a model call cost in USD; None when its model has no price or its usage is not known."""
        if call["input_tokens"] is None:
            return None
        usage = usage_of(call)
        own = call["purpose"] == "turn" or self.spec.context.summary_model in (None, self.model)
        terms = Terms.of(self.spec.provider, self.spec.model_options, own_model=own)
        if call["hour_cache"] is not None:
            terms = replace(terms, hour_cache=bool(call["hour_cache"]))
        above = max(
            (each for each in self.prices.thresholds if usage.prompt_tokens > each), default=0
        )
        spent = spending(self.prices, Calls(call["model"], terms, above, 1, usage))
        return None if spent.unpriced else float(spent.usd)


def usage_of(call: Row) -> Usage:
    """The tokens of a model call whose usage is known."""
    return Usage(
        call["input_tokens"],
        call["cache_read_tokens"] or 0,
        call["cache_creation_tokens"] or 0,
        call["output_tokens"] or 0,
    )


def iso(seconds: float) -> str:
    """A time as ISO 8601 in UTC, to the millisecond: ``2026-11-22T11:40:00.123Z``."""
    at = datetime.fromtimestamp(round(seconds * 1000) // 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{round(seconds * 1000) % 1000:03d}Z"


def _message(rows: Sequence[Row]) -> RecordedMessage:
    return RecordedMessage(rows[0]["message"], rows[0]["role"], tuple(rows))


IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})

Part = dict[str, Any]


def parts(blocks: Sequence[Any]) -> str | list[Part]:
    """Blocks of the Messages API as ATIF's content: one text where there is nothing but text, else a
    list of texts and images. What is neither becomes text, as JSON."""
    made = [_part(block) for block in blocks]
    if all(part["type"] == "text" for part in made):
        return "\n\n".join(part["text"] for part in made)
    return made


def _part(block: Any) -> Part:
    if isinstance(block, dict):
        if isinstance(block.get("text"), str):
            return {"type": "text", "text": block["text"]}
        path = _image(block)
        if path is not None:
            return path
    return {"type": "text", "text": json.dumps(block, ensure_ascii=False)}


def _image(block: dict[str, Any]) -> Part | None:
    """An image by its URL; one that was sent within the message has a ``data:`` URL."""
    source = block.get("source")
    if block.get("type") != "image" or not isinstance(source, dict):
        return None
    kind, data = source.get("media_type"), source.get("data")
    if kind in IMAGE_TYPES and isinstance(data, str):
        return {
            "type": "image",
            "source": {"media_type": kind, "path": f"data:{kind};base64,{data}"},
        }
    return None

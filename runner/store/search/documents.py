"""Documents: the texts that a search finds, each of one block, or of what stands beside the blocks."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from runner.core.agents import item_of
from runner.core.conversation import Block
from runner.core.search.query import Role, Source
from runner.core.search.words import LONG, LONGEST_WORD, MARK, facet, fold, split

# What a document is of. The order is how they are numbered in the index.
Kind = Literal["text", "thinking", "input", "output", "system", "compaction", "verification", "ran"]
KINDS: tuple[Kind, ...] = (
    "text",
    "thinking",
    "input",
    "output",
    "system",
    "compaction",
    "verification",
    "ran",
)

SOURCES: dict[Kind, Source] = {
    "text": "text",
    "thinking": "thinking",
    "input": "input",
    "output": "output",
    "system": "system",
    "compaction": "text",
    "verification": "output",
    "ran": "input",
}

# What is kept for the API to read again, and says nothing to a person; of what is of these types its
# data does not either.
_SEALED = frozenset({"signature", "encrypted_content", "encrypted_index", "type", "id"})
_WITH_SEALED_DATA = frozenset({"base64", "redacted_thinking"})


# What is indexed together has so many characters at most, and one text more: a process holds no more
# of them at a time.
MOST_CHARACTERS = 2 * 1024 * 1024

# Marks a document whose text could not be read: it has no words.
UNREAD = f"{MARK}unread"

DAY_SECONDS = 86_400.0
AHEAD = "ahead"


class Place(NamedTuple):
    """Where a document's text is. Of a job's own text ``run_id`` is empty. ``message`` is the number
    of a compaction or a verification where it is one."""

    kind: Kind
    job_id: str
    run_id: str = ""
    message: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Document:
    """A text to be indexed, None where it could not be read, and what it can be filtered by. ``at`` is
    in seconds since the epoch."""

    place: Place
    at: float
    text: str | None
    role: Role | None = None
    tool: str | None = None
    model: str | None = None
    item: str | None = None


class Entry(NamedTuple):
    """A document as the index has it: its words in order, its facets before them."""

    place: Place
    at: float
    words: Sequence[str]
    length: int


def entry_of(document: Document, now: float) -> Entry:
    """What the index holds of a document. ``now`` is in seconds since the epoch."""
    folded = fold(document.text or "")
    words = folded.split()
    marks = [UNREAD] if document.text is None else []
    if max(map(len, words), default=0) >= LONGEST_WORD:  # pieces of that length, one at least
        words = split(folded)
        marks.append(LONG)
    every = [*_facets(document, now), *marks, *words]
    return Entry(document.place, document.at, every, len(words))


def _facets(document: Document, now: float) -> Iterator[str]:
    place = document.place
    yield facet("in", SOURCES[place.kind])
    yield facet("job", place.job_id)
    yield facet("day", day_of(document.at, now))
    if place.run_id:
        yield facet("run", place.run_id)
    if document.role is not None:
        yield facet("role", document.role)
    if document.tool is not None:
        yield facet("tool", document.tool)
    if document.model is not None:
        yield facet("model", document.model)
    if document.item is not None:
        yield facet("item", document.item)
        if (of_tree := item_of(place.run_id, document.item)) != document.item:
            yield facet("item", of_tree)


def day_of(at: float, now: float) -> str:
    """The day of a time in UTC, as ``2026-11-22``; ``AHEAD`` for one that is to come."""
    if at >= now + DAY_SECONDS:
        return AHEAD
    return _day(int(max(at, 0.0) // DAY_SECONDS))


@lru_cache(maxsize=1024)
def _day(number: int) -> str:
    return str(datetime.fromtimestamp(number * DAY_SECONDS, UTC).date())


def kind_of(block_type: str) -> Kind:
    """What the document of a block is; of a kind of block that is not known, by its name."""
    match block_type:
        case "text" | "thinking":
            return block_type
        case kind if kind.endswith("_use"):
            return "input"
        case kind if kind.endswith("_result"):
            return "output"
        case _:
            return "text"


def block_text(block: Block, compressed: bytes | None = None) -> str:
    """The text of a block.

    Args:
        compressed: the whole output of a call where more was kept than its block has. What the block
            has besides (how it ended, what was left out) comes after it.
    """
    shown = _block_text(block)
    if compressed is None:
        return shown
    whole = output_text(compressed)
    lines = set(whole.splitlines())
    return "\n".join([whole, *(line for line in shown.splitlines() if line not in lines)])


def _block_text(block: Block) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "thinking":
            return str(block.get("thinking", ""))
        case "tool_use":
            return "\n".join(_scalars(block.get("input")))
        case str(kind) if kind.endswith("_use"):
            return "\n".join([str(block.get("name", "")), *_scalars(block.get("input"))])
        case "tool_result":
            return "\n".join(_texts(block.get("content")))
        case _:
            return "\n".join(_texts(block))


def output_text(compressed: bytes) -> str:
    """A whole output as it was kept."""
    return zlib.decompress(compressed).decode(errors="replace")


def _scalars(value: Any, depth: int = 0) -> Iterator[str]:
    """The texts and numbers in a tool's input, in order. The names of its parameters are the tool's,
    those within them were given with it."""
    if isinstance(value, dict):
        for name, each in value.items():
            if depth > 0:
                yield str(name)
            yield from _scalars(each, depth + 1)
    elif isinstance(value, list):
        for each in value:
            yield from _scalars(each, depth + 1)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)


def _texts(value: Any) -> Iterator[str]:
    """The texts in a JSON value, those left out that are sealed."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        seals_data = value.get("type") in _WITH_SEALED_DATA
        for name, each in value.items():
            if name not in _SEALED and not (name == "data" and seals_data):
                yield from _texts(each)

"""What a reading of a run consists of: values that the terminal and the page lay out each in their way.

``Note`` and what is called words are Runner's own and safe to print; texts, inputs and contents are as
the model, tools and people gave them, and are not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Tone = Literal["plain", "good", "bad", "wait"]


@dataclass(frozen=True, slots=True)
class Note:
    """One line of Runner's own words."""

    words: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Text:
    """What was said."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """What the model thought; empty where the API keeps it to itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model asked for it. ``edited`` is the input that a person or a hook had it run with
    instead, None: there is none. ``label`` is what it is called in its tree, and ``started`` says what
    became of the sub-agents that it has started."""

    id: str
    tool: str
    arguments: Any
    decided: tuple[Note, ...] = ()
    edited: Any = None
    label: str = ""
    started: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model was shown of a call's output. ``whole_bytes`` is the length of the stored output
    where that is longer, else None."""

    call_id: str
    tool: str
    outcome: Note
    content: Any
    whole_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class OtherBlock:
    """A block of a kind that is shown as it is."""

    kind: str
    content: Any


Piece = Text | Thinking | ToolCall | ToolResult | OtherBlock


@dataclass(frozen=True, slots=True)
class Message:
    """Blocks of one message. ``at`` is in seconds since the epoch, ``words`` say what it cost."""

    role: str
    turn: int
    at: float
    pieces: tuple[Piece, ...]
    words: str = ""


@dataclass(frozen=True, slots=True)
class Compaction:
    """What the model is sent from ``turn`` on in place of something. ``text`` stands in for messages,
    empty where none does."""

    turn: int
    at: float
    words: str
    notes: tuple[Note, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What the job's commands said after ``turn``."""

    number: int
    turn: int
    at: float
    verdict: Note
    output: str


@dataclass(frozen=True, slots=True)
class Event:
    """What happened beside what was said: what a person did, a wait, the end."""

    at: float
    note: Note
    is_by_person: bool


@dataclass(frozen=True, slots=True)
class SubAgent:
    """A run that another has started, told where it was. ``note`` says what became of it."""

    label: str
    note: Note
    reading: Reading


Part = Message | Compaction | Verification | Event | SubAgent


@dataclass(frozen=True, slots=True)
class Reading:
    """A run from its beginning to its end, or some of its turns.

    Args:
        title: the run's item, in words.
        facts: names with words (job, state, cost …) or times in seconds since the epoch.
        state: where the run stands.
        system: the system prompt as the run has it.
        parts: what was said and done; read once.
    """

    run_id: str
    title: str
    facts: tuple[tuple[str, str | float], ...]
    state: Note
    system: str
    parts: Iterator[Part]


def text_of(content: Any) -> str:
    """A tool result's content as text; blocks that are no text are as JSON."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [content]
    return "\n".join(
        block["text"]
        if isinstance(block, dict) and isinstance(block.get("text"), str)
        else json.dumps(block, ensure_ascii=False)
        for block in blocks
    )

"""The transcript of a run as values that the terminal and the page lay out each in their way.

A ``Note`` is Runner's own words and safe to print. Texts, inputs and contents are as the model, tools and
people gave them, and are not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from runner.core.text import visible

Tone = Literal["plain", "good", "bad", "wait"]


@dataclass(frozen=True, slots=True)
class Note:
    """A line of Runner's own words."""

    words: str  # what is untrusted in them becomes visible
    tone: Tone = "plain"

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", visible(self.words))


@dataclass(frozen=True, slots=True)
class Text:
    """What the model or a person said."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """What the model thought."""

    text: str  # empty where the API keeps it to itself


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model asked for it."""

    id: str
    tool: str
    arguments: Any
    decided: tuple[Note, ...] = ()  # what decided on it
    edited: Any = None  # the input that a person or a hook had it run with instead, if any
    label: str = ""  # its name in its tree
    started: tuple[Note, ...] = ()  # the outcome of each sub-agent that it started


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The output of a call as the model was shown it."""

    call_id: str
    tool: str
    outcome: Note
    content: Any
    whole_bytes: int | None = None  # length of the stored output where that is longer


@dataclass(frozen=True, slots=True)
class OtherBlock:
    """A block of a kind that is shown as it is."""

    kind: str
    content: Any


Piece = Text | Thinking | ToolCall | ToolResult | OtherBlock


@dataclass(frozen=True, slots=True)
class Message:
    """The blocks of one message."""

    role: str
    turn: int
    at: float  # seconds since the epoch
    pieces: tuple[Piece, ...]
    words: str = ""  # what it cost

    @property
    def is_results(self) -> bool:
        """True if the message is nothing but the results of tool calls."""
        return self.role == "user" and all(isinstance(each, ToolResult) for each in self.pieces)


@dataclass(frozen=True, slots=True)
class Compaction:
    """A change of what the model is sent."""

    turn: int  # the first that is sent so
    at: float
    words: str
    notes: tuple[Note, ...]
    text: str  # stands in for messages; empty where none does


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of the job's verification commands."""

    number: int
    turn: int  # the turn before it
    at: float
    verdict: Note
    output: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened beside the conversation: a person's action, a wait, the end."""

    at: float
    note: Note
    is_by_person: bool


@dataclass(frozen=True, slots=True)
class SubAgent:
    """A run that this one started, told where it started."""

    label: str
    note: Note  # its outcome
    transcript: Transcript


Part = Message | Compaction | Verification | Event | SubAgent


@dataclass(frozen=True, slots=True)
class Transcript:
    """A run from its beginning to its end, or some of its turns."""

    run_id: str
    title: str  # the run's item, safe to print
    facts: tuple[tuple[str, str | float], ...]  # names with words, or times since the epoch
    state: Note
    system: str  # the system prompt as the run has it
    parts: Iterator[Part]  # read once


def text_of(content: Any) -> str:
    """Return a tool result's content as text; blocks that are no text are JSON."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [content]
    return "\n".join(
        block["text"]
        if isinstance(block, dict) and isinstance(block.get("text"), str)
        else json.dumps(block, ensure_ascii=False)
        for block in blocks
    )

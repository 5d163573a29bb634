"""A transcript as lines of text. What is not Runner's own is indented, so that none of it can pass for a
heading (``terminal.wrapped`` keeps long lines behind the margin, too)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from runner.app.humanize import Note, Tone, input_lines, moment
from runner.app.transcript import (
    Compaction,
    Event,
    Message,
    OtherBlock,
    Part,
    Piece,
    SubAgent,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Transcript,
    Verification,
    text_of,
)
from runner.cli.terminal import MARGIN, Line, Span

_MOST_LINES = 20
_FIRST_LINES = 12
_LAST_LINES = 4
_LONGEST_LINE = 1_000
_TONES: dict[Tone, str] = {"plain": "dim", "good": "green", "bad": "red", "wait": "yellow"}
_HEADING = "bold yellow"
_ROLES = {"user": "bold green", "assistant": "bold cyan"}


def lines_of(transcript: Transcript, *, is_folded: bool) -> Iterator[Line]:
    """Yield the lines of a transcript as its parts are read.

    Args:
        is_folded: of what is long only the beginning and the end.
    """
    width = max((len(name) for name, _ in transcript.facts), default=0)
    for name, value in transcript.facts:
        words = moment(value) if isinstance(value, float) else value
        style = _TONES[transcript.state.tone] if name == "state" else ""
        yield [(name.ljust(width), "dim"), ("  ", ""), (words, style)]
    yield []
    layout = _Layout(is_folded)
    if transcript.system:
        yield [("[system prompt]", "dim")]
        yield from layout.text(transcript.system, "dim")
        yield []
    after_event = False
    for part in transcript.parts:
        if after_event and not isinstance(part, Event):
            yield []
        yield from layout.part(part)
        after_event = isinstance(part, Event)


class _Layout:
    """Lays out the parts of a transcript in lines."""

    def __init__(self, is_folded: bool) -> None:
        self._is_folded = is_folded

    def part(self, part: Part) -> Iterator[Line]:
        match part:
            case Message():
                turn = f", turn {part.turn}" if part.turn else ""
                style = _ROLES.get(part.role, _HEADING)
                yield _heading(f"{part.role}{turn}", part.at, part.words, style)
                for index, piece in enumerate(part.pieces):
                    if index and isinstance(piece, ToolResult):
                        yield []
                    yield from self._piece(piece)
            case Compaction():
                yield _heading(f"compacted before turn {part.turn}", part.at, part.words)
                yield from map(_noted, part.notes)
                if part.text:
                    yield from self.text(part.text)
            case Verification():
                yield _heading(f"verification {part.number}, after turn {part.turn}", part.at)
                yield _noted(part.verdict)
                if part.output:
                    yield from self.text(part.output)
            case SubAgent():
                yield from self._sub_agent(part)
            case Event():
                style = "bold magenta" if part.is_by_person else _TONES[part.note.tone]
                yield [("• ", "dim"), (part.note.words, style), (f" · {moment(part.at)}", "dim")]
                return
        yield []

    def _sub_agent(self, part: SubAgent) -> Iterator[Line]:
        """All of it behind its label, so that it cannot pass for a part of the run that started it."""
        name = (f"── sub-agent {part.label}", "bold magenta")
        yield [name, (" · ", ""), (part.note.words, _TONES[part.note.tone])]
        for line in lines_of(part.transcript, is_folded=self._is_folded):
            yield [(f"{part.label} │{' ' if line else ''}", "dim"), *line]

    def _piece(self, piece: Piece) -> Iterator[Line]:
        match piece:
            case Text():
                yield from (_margined(line) for line in _lines(piece.text))
            case Thinking():
                yield [("[thinking]", "dim")]
                yield from self.text(piece.text or "(kept by the API)", "dim")
            case ToolCall():
                yield from self._call(piece)
            case ToolResult():
                outcome = (piece.outcome.words, _TONES[piece.outcome.tone])
                yield [(f"[result {piece.call_id}: ", "dim"), outcome, ("]", "dim")]
                yield from self.text(self._content(piece.content))
                if piece.whole_bytes is not None:
                    told = f"[all {piece.whole_bytes:,} bytes: runner show {piece.call_id}]"
                    yield [(told, "dim")]
            case OtherBlock():
                yield [(f"[{piece.kind}]", "dim")]
                yield from self.text(json.dumps(piece.content, ensure_ascii=False))

    def _call(self, call: ToolCall) -> Iterator[Line]:
        label = f" {call.label}" if call.label else ""
        yield [("[", "dim"), (call.tool, _HEADING), (f"{label} {call.id}]", "dim")]
        yield from self._folded(list(input_lines(call.arguments)))
        if call.edited is not None:
            yield [("[ran with this input instead]", "yellow")]
            yield from self._folded(list(input_lines(call.edited)))
        yield from map(_noted, (*call.decided, *call.started))

    def _content(self, content: Any) -> str:
        """A result's content as text; of what no terminal shows, what and how much it is."""
        if not isinstance(content, list):
            return text_of(content)
        return "\n".join(_encoded(block) or text_of([block]) for block in content)

    def text(self, text: str, style: str = "") -> Iterator[Line]:
        """Lines of untrusted text behind the margin."""
        return self._folded(_lines(text), style)

    def _folded(self, lines: Sequence[str], style: str = "") -> Iterator[Line]:
        """Lines behind the margin; of many, when they are folded, the first and the last."""
        if not self._is_folded:
            yield from (_margined(line, style) for line in lines)
            return
        is_long = len(lines) > _MOST_LINES
        for line in lines[:_FIRST_LINES] if is_long else lines:
            yield _margined(_cut(line), style)
        if is_long:
            more = len(lines) - _FIRST_LINES - _LAST_LINES
            yield [(f"{MARGIN}… {more:,} lines more (--full shows them)", "dim")]
            for line in lines[-_LAST_LINES:]:
                yield _margined(_cut(line), style)


def _heading(name: str, at: float, words: str = "", style: str = _HEADING) -> Line:
    more = f" · {moment(at)}" + (f" · {words}" if words else "")
    return [(f"── {name}", style), (more, "dim")]


def _noted(note: Note) -> Line:
    return [(f"[{note.words}]", _TONES[note.tone])]


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").expandtabs(8).split("\n")


def _margined(line: str, style: str = "") -> list[Span]:
    return [((MARGIN + line).rstrip(), style)]


def _cut(line: str) -> str:
    more = len(line) - _LONGEST_LINE
    return line if more <= 0 else f"{line[:_LONGEST_LINE]} … {more:,} characters more"


def _encoded(block: Any) -> str:
    source = block.get("source") if isinstance(block, dict) else None
    if not isinstance(source, dict) or source.get("type") != "base64":
        return ""
    kind, size = source.get("media_type"), len(str(source.get("data"))) * 3 // 4
    return f"({block.get('type')}, {kind}, about {size:,} bytes)"

"""A reading as lines of text, in colours or without. What is not Runner's own is indented, so that none
of it can pass for a heading (``wrapping`` sees to long lines), and its control characters are visible."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from runner.app.humanize import cell, input_lines, moment
from runner.app.transcript import (
    Compaction,
    Event,
    Message,
    Note,
    OtherBlock,
    Part,
    Piece,
    SubAgent,
    Text,
    Thinking,
    Tone,
    ToolCall,
    ToolResult,
    Transcript,
    Verification,
    text_of,
)
from runner.cli.look.reading.wrapping import MARGIN

_MOST_LINES = 20
_FIRST_LINES = 12
_LAST_LINES = 4
_LONGEST_LINE = 1_000

# Select Graphic Rendition, ECMA-48 8.3.117: colours and weight, the only sequences ever printed.
_BOLD, _DIM, _RED, _GREEN, _YELLOW, _CYAN, _MAGENTA = "1", "2", "31", "32", "33", "36", "35"
_TONE_STYLES: dict[Tone, str] = {"plain": _DIM, "good": _GREEN, "bad": _RED, "wait": _YELLOW}
_ROLE_STYLES = {"user": f"{_BOLD};{_GREEN}", "assistant": f"{_BOLD};{_CYAN}"}


@dataclass(frozen=True, slots=True)
class Look:
    """How to lay it out. ``is_folded`` shows the beginning and the end of what is long."""

    is_coloured: bool = False
    is_folded: bool = False

    def style(self, text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self.is_coloured and text else text

    def note(self, note: Note, text: str | None = None) -> str:
        return self.style(note.words if text is None else text, _TONE_STYLES[note.tone])


def lines_of(reading: Transcript, look: Look) -> Iterator[str]:
    """The lines of a reading, each without its end, as its parts come."""
    width = max(len(name) for name, _ in reading.facts)
    for name, value in reading.facts:
        words = moment(value) if isinstance(value, float) else value
        shown = look.note(reading.state, words) if name == "state" else words
        yield f"{look.style(name.ljust(width), _DIM)}  {shown}"
    yield ""
    if reading.system:
        yield look.style("[system prompt]", _DIM)
        yield from _indented(reading.system, look, _DIM)
        yield ""
    after_event = False
    for part in reading.parts:
        if after_event and not isinstance(part, Event):
            yield ""
        yield from _part(part, look)
        after_event = isinstance(part, Event)


def _part(part: Part, look: Look) -> Iterator[str]:
    match part:
        case Message():
            turn = f", turn {part.turn}" if part.turn else ""
            yield _heading(f"{part.role}{turn}", part.at, part.words, look)
            for index, piece in enumerate(part.pieces):
                if index and isinstance(piece, ToolResult):
                    yield ""
                yield from _piece(piece, look)
            yield ""
        case Compaction():
            yield _heading(f"compacted before turn {part.turn}", part.at, part.words, look)
            yield from (look.note(note, f"[{note.words}]") for note in part.notes)
            if part.text:
                yield from _indented(part.text, look)
            yield ""
        case Verification():
            name = f"verification {part.number}, after turn {part.turn}"
            yield _heading(name, part.at, "", look)
            yield look.note(part.verdict, f"[{part.verdict.words}]")
            if part.output:
                yield from _indented(part.output, look)
            yield ""
        case Event():
            said = look.note(part.note)
            if part.is_by_person:
                said = look.style(part.note.words, f"{_BOLD};{_MAGENTA}")
            yield f"{look.style('•', _DIM)} {said}{look.style(f' · {moment(part.at)}', _DIM)}"
        case SubAgent():
            yield from _sub_agent(part, look)


def _sub_agent(part: SubAgent, look: Look) -> Iterator[str]:
    """All of it behind its label, so that it cannot pass for a part of the run that started it."""
    before = look.style(f"{part.label} │ ", _DIM)
    yield (
        look.style(f"── sub-agent {part.label}", f"{_BOLD};{_MAGENTA}")
        + " · "
        + look.note(part.note)
    )
    for line in lines_of(part.transcript, look):
        yield f"{before}{line}".rstrip()
    yield ""


def _heading(name: str, at: float, words: str, look: Look) -> str:
    style = _ROLE_STYLES.get(name.split(",")[0], f"{_BOLD};{_YELLOW}")
    more = f" · {moment(at)}" + (f" · {words}" if words else "")
    return look.style(f"── {name}", style) + look.style(more, _DIM)


def _piece(piece: Piece, look: Look) -> Iterator[str]:
    match piece:
        case Text():
            yield from _margined(_lines(piece.text))
        case Thinking():
            yield look.style("[thinking]", _DIM)
            yield from _indented(piece.text or "(kept by the API)", look, _DIM)
        case ToolCall():
            yield from _call(piece, look)
        case ToolResult():
            head = look.style(f"[result {piece.call_id}: ", _DIM)
            yield head + look.note(piece.outcome) + look.style("]", _DIM)
            yield from _indented(_content(piece.content), look)
            if piece.whole_bytes is not None:
                told = f"[all {piece.whole_bytes:,} bytes: runner show {piece.call_id}]"
                yield look.style(told, _DIM)
        case OtherBlock():
            yield look.style(f"[{piece.kind}]", _DIM)
            yield from _indented(json.dumps(piece.content, ensure_ascii=False), look)


def _content(content: Any) -> str:
    """A result's content as text; of what no terminal shows, what and how much it is."""
    if not isinstance(content, list):
        return text_of(content)
    return "\n".join(_encoded(block) or text_of([block]) for block in content)


def _encoded(block: Any) -> str:
    source = block.get("source") if isinstance(block, dict) else None
    if not isinstance(source, dict) or source.get("type") != "base64":
        return ""
    kind, size = source.get("media_type"), len(str(source.get("data"))) * 3 // 4
    return f"({block.get('type')}, {kind}, about {size:,} bytes)"


def _call(call: ToolCall, look: Look) -> Iterator[str]:
    name = look.style(call.tool, f"{_BOLD};{_YELLOW}")
    label = f" {call.label}" if call.label else ""
    yield look.style("[", _DIM) + name + look.style(f"{label} {call.id}]", _DIM)
    yield from _folded(list(input_lines(call.arguments)), look)
    if call.edited is not None:
        yield look.style("[ran with this input instead]", _YELLOW)
        yield from _folded(list(input_lines(call.edited)), look)
    yield from (look.note(note, f"[{note.words}]") for note in (*call.decided, *call.started))


def _indented(text: str, look: Look, style: str = "") -> Iterator[str]:
    yield from _folded(_lines(text), look, style)


def _lines(text: str) -> list[str]:
    """The lines of a text with what could steer a terminal made visible."""
    return [cell(line) for line in text.removesuffix("\n").expandtabs(8).split("\n")]


def _margined(lines: Sequence[str]) -> Iterator[str]:
    return ((MARGIN + line).rstrip() for line in lines)


def _folded(lines: Sequence[str], look: Look, style: str = "") -> Iterator[str]:
    """Lines with a margin; when they are many, only the first and the last."""
    if not look.is_folded:
        yield from (look.style(line, style) if style else line for line in _margined(lines))
        return
    left_out = len(lines) - _FIRST_LINES - _LAST_LINES
    is_long = len(lines) > _MOST_LINES
    shown = lines[:_FIRST_LINES] if is_long else lines
    for line in _margined([_cut(line) for line in shown]):
        yield look.style(line, style) if style else line
    if is_long:
        yield look.style(f"{MARGIN}… {left_out:,} lines more (--full shows them)", _DIM)
        for line in _margined([_cut(line) for line in lines[-_LAST_LINES:]]):
            yield look.style(line, style) if style else line


def _cut(line: str) -> str:
    more = len(line) - _LONGEST_LINE
    return line if more <= 0 else f"{line[:_LONGEST_LINE]} … {more:,} characters more"

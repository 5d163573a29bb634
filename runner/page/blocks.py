"""Blocks of a message as HTML. Every text of others goes through ``shown``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from runner.page.characters import shown
from runner.page.parts import (
    Note,
    OtherBlock,
    Piece,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    text_of,
)

_FIRST_LINES = 12
_FIRST_CHARACTERS = 2_000
_WORTH_FOLDING = 400
_FENCE = re.compile(r"^ {0,3}(?:`{3,}|~{3,})")
_MARKED = re.compile(r"(`[^`]+`)|(\*\*[^*]+\*\*)")
_HEADING = re.compile(r"#{1,6} ")
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}", re.ASCII)


def piece(block: Piece) -> str:
    """One block."""
    match block:
        case Text():
            return f'<div class="text">{prose(block.text)}</div>'
        case Thinking():
            return _thinking(block)
        case ToolCall():
            return _call(block)
        case ToolResult():
            return _result(block)
        case OtherBlock():
            return (
                f'<div class="other"><h3>{shown(block.kind)}</h3>{_content([block.content])}</div>'
            )


def note(said: Note) -> str:
    """A line of Runner's own words, which may repeat those of others."""
    return f'<span class="note {said.tone}">{shown(said.words)}</span>'


def folded(text: str) -> str:
    """Text as it is; of a long one the beginning, and the rest behind a click."""
    text = text.removesuffix("\n")
    first, rest = _split(text)
    if not rest:
        return f"<pre>{shown(text)}</pre>"
    more = rest.count("\n") + 1
    told = f"{more:,} more lines" if more > 1 else f"{len(rest):,} more characters"
    return (
        f"<pre>{shown(first)}</pre>"
        f"<details><summary>{told}</summary><pre>{shown(rest)}</pre></details>"
    )


def _split(text: str) -> tuple[str, str]:
    """Where a text is folded: at the end of a line where that is near."""
    at = 0
    for _ in range(_FIRST_LINES):
        at = text.find("\n", at) + 1 or len(text) + 1
    if at > _FIRST_CHARACTERS:
        at = text.rfind("\n", 0, _FIRST_CHARACTERS) + 1 or _FIRST_CHARACTERS
    rest = text[at:]
    if len(rest) < _WORTH_FOLDING and rest.count("\n") < _FIRST_LINES:
        return text, ""
    return text[:at].removesuffix("\n"), rest


def prose(text: str) -> str:
    """What was said: every character of it, with code and headings set off as their marks say."""
    return "".join(_paragraphs(text.split("\n")))


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    fence = ""
    held: list[str] = []
    for line in lines:
        found = _FENCE.match(line)
        if fence and found and found[0].strip() == fence and line.strip() == fence:
            yield from _code([*held, line])
            fence, held = "", []
        elif not fence and found:
            yield from _said(held)
            fence, held = found[0].strip(), [line]
        else:
            held.append(line)
    yield from _code(held) if fence else _said(held)


def _code(lines: list[str]) -> Iterator[str]:
    yield f'<pre class="code">{shown(chr(10).join(lines))}</pre>'


def _said(lines: list[str]) -> Iterator[str]:
    text = "\n".join(map(_marked, lines)).strip("\n")
    if text:
        yield f"<p>{text}</p>"


def _marked(line: str) -> str:
    if _HEADING.match(line):
        return f"<b>{shown(line)}</b>"
    parts = _MARKED.split(line)
    return "".join(
        shown(words)
        + (f"<code>{shown(code)}</code>" if code else "")
        + (f"<b>{shown(bold)}</b>" if bold else "")
        for words, code, bold in zip(
            parts[::3], [*parts[1::3], None], [*parts[2::3], None], strict=True
        )
    )


def _thinking(block: Thinking) -> str:
    if not block.text:
        return '<p class="thinking">Thinking that the API keeps to itself</p>'
    lines = block.text.count("\n") + 1
    told = f"Thinking, {lines:,} lines" if lines > 1 else "Thinking"
    return (
        f'<details class="thinking"><summary>{told}</summary>'
        f'<div class="text">{prose(block.text)}</div></details>'
    )


def _call(call: ToolCall) -> str:
    edited = ""
    if call.edited is not None:
        edited = f'<p class="note wait">Ran with this input instead:</p>{_input(call.edited)}'
    started = "".join(f'<p class="started">{note(each)}</p>' for each in call.started)
    return (
        f'<section class="call"><h3>{_tool(call.tool, call.id, call.label)}'
        f"{''.join(map(note, call.decided))}</h3>"
        f"{_input(call.arguments)}{edited}{started}</section>"
    )


def _tool(name: str, call_id: str, label: str = "") -> str:
    number = f'<span class="label">{shown(label)}</span>' if label else ""
    return f'<bdi class="tool">{shown(name)}</bdi>{number}<code class="id">{shown(call_id)}</code>'


def _input(arguments: Any) -> str:
    """A command as it is, else each argument after its name."""
    if not isinstance(arguments, Mapping):
        return folded(_json(arguments))
    if list(arguments) == ["command"] and isinstance(arguments["command"], str):
        return f'<div class="command">{folded(arguments["command"])}</div>'
    items = (_argument(str(name), value) for name, value in arguments.items())
    return f'<dl class="input">{"".join(items)}</dl>'


def _argument(name: str, value: Any) -> str:
    kind = ' class="command"' if name == "command" else ""
    text = value if isinstance(value, str) else _json(value)
    return f"<dt>{shown(name)}</dt><dd{kind}>{folded(text)}</dd>"


def _result(result: ToolResult) -> str:
    whole = ""
    if result.whole_bytes is not None:
        told = f"The model was shown a part: all {result.whole_bytes:,} bytes are stored"
        whole = f'<p class="note">{told} (runner show {shown(result.call_id)}).</p>'
    return (
        f'<section class="result"><h3>{_tool(result.tool, result.call_id)}'
        f"{note(result.outcome)}</h3>{_content(result.content)}{whole}</section>"
    )


def _content(content: Any) -> str:
    if not isinstance(content, list):
        return folded(text_of(content))
    return "".join(_picture(block) or folded(text_of([block])) for block in content)


def _picture(block: Any) -> str:
    """A picture that is in the block itself, of a kind that cannot hold a script; else nothing."""
    source = block.get("source") if isinstance(block, Mapping) else None
    if not isinstance(source, Mapping) or source.get("type") != "base64":
        return ""
    kind, data = source.get("media_type"), source.get("data")
    if kind not in _PICTURES or not isinstance(data, str) or not _BASE64.fullmatch(data):
        return ""
    return f'<img alt="a picture" loading="lazy" src="data:{kind};base64,{data}">'


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)

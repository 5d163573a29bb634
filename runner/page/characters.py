"""Text of others as HTML: nothing in it is markup, and what would hide or reorder text is visible."""

from __future__ import annotations

import re
from html import escape
from itertools import groupby

from runner.core.text.plain import visible

# ECMA-48 5.4: what a terminal would obey.
_SEQUENCE = re.compile(r"(\x1b\[[0-?]*[ -/]*[@-~]?)")
# Joins the parts of one emoji, as in families and flags, and hides nothing there.
_EMOJI = "\u2600-\u27bf\U0001f300-\U0001faff"
_JOINER = re.compile(f"(?<=[{_EMOJI}\ufe0f])\u200d(?=[{_EMOJI}])")
_MARK = "\ufdd0"  # no character, so in no text that is encoded; stands for a joiner meanwhile


def shown(text: str) -> str:
    """HTML of text. Line ends and tabs stay as they are."""
    return "\n".join(map(_line, text.split("\n")))


def _line(line: str) -> str:
    if line.isprintable():
        return escape(line)
    marked = _JOINER.sub(_MARK, line) if _MARK not in line else line
    parts = _SEQUENCE.split(marked)
    html = "".join(
        _control(part) if index % 2 else "".join(_run(part)) for index, part in enumerate(parts)
    )
    return html.replace(_MARK, "\u200d") if _MARK not in line else html


def _run(text: str) -> list[str]:
    return [
        _control("".join(characters)) if steers else escape("".join(characters))
        for steers, characters in groupby(text, key=_steers)
    ]


def _steers(character: str) -> bool:
    return character != "\t" and visible(character) != character


def _control(characters: str) -> str:
    return f'<span class="control">{escape(visible(characters))}</span>' if characters else ""

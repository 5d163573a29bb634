"""The patch, of one hunk, that hooks are told of a Write or Edit, as Claude Code's tools make it."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

_CONTEXT = 3  # lines before and after the change
MOST_PATCHED_BYTES = 1 << 20  # of a file before or after
_MOST_CHARACTERS = 100_000  # of the hunk, which is stored with the call
_NO_NEWLINE = "\\ No newline at end of file"


def change_of(before: bytes | None, after: bytes, *, made: bool = False) -> dict[str, Any]:
    """Return the type of a change and its patch. None is made of a large change, of a file that was
    ``made``, or of one whose content is not known (``before``: None)."""
    change: dict[str, Any] = {"type": "create" if made else "update"}
    if made or before is None or max(len(before), len(after)) > MOST_PATCHED_BYTES:
        return change
    hunk = _hunk(_lines(before), _lines(after))
    if before != after and sum(map(len, hunk["lines"])) <= _MOST_CHARACTERS:
        change["structuredPatch"] = [hunk]
    return change


def _hunk(old: list[str], new: list[str]) -> dict[str, Any]:
    """Return what stands between the first and the last line that differ, and the lines around it. No
    shortest difference is looked for: that takes time with the square of the lines."""
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    first = max(0, head - _CONTEXT)
    before, gone = old[first:head], old[head : len(old) - tail]
    come, after = new[head : len(new) - tail], new[len(new) - tail :][:_CONTEXT]
    signed = ((" ", before), ("-", gone), ("+", come), (" ", after))
    around = len(before) + len(after)
    return {
        "oldStart": first + 1,
        "oldLines": around + len(gone),
        "newStart": first + 1,
        "newLines": around + len(come),
        "lines": [text for sign, lines in signed for line in lines for text in _shown(sign, line)],
    }


def _common(old: list[str], new: list[str]) -> int:
    """The number of lines that both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))


def _lines(content: bytes) -> list[str]:
    """The lines of a text with their line feeds."""
    *whole, rest = content.decode("utf-8", "replace").split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


def _shown(sign: str, line: str) -> list[str]:
    return [sign + line[:-1]] if line.endswith("\n") else [sign + line, _NO_NEWLINE]

"""Markdown in which nothing from outside means anything: it is shown as code, on one line.

Code is the one place where Markdown has no links, mentions or HTML
(https://spec.commonmark.org/0.31.2/#code-spans, https://github.github.com/gfm/#tables-extension-).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from runner.app.humanize import cell, lines

_LONGEST = 100


def code(value: Any, longest: int = _LONGEST) -> str:
    """Text from outside in a line; nothing for nothing."""
    text = cell(value).strip()
    if not text:
        return ""
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    # A pipe would end the cell of a table, and a backslash before it would keep it from being escaped.
    text = re.sub(r"\\(?=\|)", r"\\ ", text).replace("|", r"\|")
    fence = _fence(text, 1)
    pad = " " if "`" in (text[0], text[-1]) else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def block(text: str) -> str:
    """Text from outside in lines of its own."""
    shown = lines(text.rstrip())
    fence = _fence(shown, 3)
    return f"{fence}text\n{shown}\n{fence}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown; columns in which no row says anything are left out."""
    cells = [list(row) for row in rows]
    kept = [n for n in range(len(columns)) if n == 0 or any(row[n] for row in cells)]
    heads = [columns[n] for n in kept]
    shown = [heads, ["---"] * len(kept), *([row[n] for n in kept] for row in cells)]
    return "\n".join(f"| {' | '.join(row)} |" for row in shown)


def _fence(text: str, shortest: int) -> str:
    """A run of backticks that is longer than any in the text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    return "`" * max(shortest, longest + 1)

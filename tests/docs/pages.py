"""The documentation as values: pages, their sections, and the tables in these."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

_CODE = re.compile(r"`([^`]+)`")
_CELL_END = re.compile(r"(?<!\\)\|")


def read(name: str) -> str:
    """A page's text, by its path from the repository's root."""
    return (ROOT / name).read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """What stands under a heading, up to the next one of its level or above."""
    lines = page.splitlines()
    start = lines.index(heading)
    level = heading.split(" ")[0]
    deeper = tuple(f"{'#' * n} " for n in range(1, len(level) + 1))
    in_code = False
    for end in range(start + 1, len(lines)):
        in_code ^= lines[end].startswith("```")
        if not in_code and lines[end].startswith(deeper):
            return "\n".join(lines[start + 1 : end])
    return "\n".join(lines[start + 1 :])


def rows(text: str) -> list[list[str]]:
    """The cells of each row of the first table in a text, without its head."""
    table: list[str] = []
    for line in text.splitlines():
        if line.startswith("|"):
            table.append(line)
        elif table:
            break
    return [
        [cell.strip() for cell in _CELL_END.split(line.strip().strip("|"))] for line in table[2:]
    ]


def codes(cell: str) -> list[str]:
    """What stands between backticks."""
    return _CODE.findall(cell)


def blocks(page: str, kind: str) -> list[str]:
    """The fenced blocks of a kind (``mermaid``, ``sh``)."""
    return re.findall(rf"^```{kind}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)

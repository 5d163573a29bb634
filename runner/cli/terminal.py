"""Everything that is printed goes through here: what models, tools and files say is not trusted.

Tables and text show control characters instead of obeying them; JSON is plain ASCII.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

from runner.app.humanize import cell, lines
from runner.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console

_WIDE_TERMINAL = 130
_WIDEST_COLUMN = 32
_SHORT_ID = 8
_CHILD_ID = re.compile(r"((?:run|call)_[0-9a-z]+)(\.[0-9._]+)")
_STATE_STYLES = {
    "succeeded": "green",
    "failed": "red",
    "cancelled": "magenta",
    "stopped": "yellow",
    "waiting": "cyan",
    "running": "blue",
}


def say(text: str = "") -> None:
    """Print a line of our own words on stdout; what is not ours in it has gone through ``cell``."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """Tell the person at the terminal, on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def refuse(reason: object) -> None:
    """Tell in one line why a command does not do what it was asked to; no secret is shown."""
    line = cell(" ".join(str(reason).split("\n")))
    for secret in Settings.load().secrets():
        line = line.replace(secret, "…")
    note(f"runner: {line}")


def say_json(value: Any, *, on_one_line: bool = False) -> None:
    """Print a value as JSON on stdout. ASCII only, so that no terminal obeys what is in it."""
    sys.stdout.write(json.dumps(value, indent=None if on_one_line else 2) + "\n")


def say_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table on stdout; the first column holds ids. A piped table is cut nowhere; on a narrow
    terminal ids are shown by their ends, which every command takes, and the last column gives way."""
    cells = [[cell(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _draw_table(columns, cells)
        return
    table = [list(columns), *cells]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        padded = (value.ljust(width) for value, width in zip(row, widths, strict=True))
        say("  ".join(padded).rstrip())


def _draw_table(columns: Sequence[str], cells: Sequence[list[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = console_on(sys.stdout)
    if console.width < _WIDE_TERMINAL:
        cells = [[short_id(row[0]), *row[1:]] for row in cells]
    filled = [
        column for column in zip(columns, *cells, strict=True) if any(column[1:]) or not cells
    ]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", expand=True)
    for index, (name, *values) in enumerate(filled, 1):
        width = min(max(map(len, (name, *values))), _WIDEST_COLUMN)
        is_last = index == len(filled)
        table.add_column(
            name,
            no_wrap=True,
            overflow="ellipsis",
            width=None if is_last else width,
            ratio=1 if is_last else None,
        )
    for row in zip(*(values for _, *values in filled), strict=True):
        table.add_row(*(Text(value, style=_STATE_STYLES.get(value, "")) for value in row))
    console.print(table)


def short_id(name: str) -> str:
    """The end of an id, which every command takes; a sub-agent's numbers are whole: ``k3x9f2ab.3.1``."""
    found = _CHILD_ID.fullmatch(name)
    return name[-_SHORT_ID:] if found is None else found[1][-_SHORT_ID:] + found[2]


def say_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Print names with their values, one a line; those without a value are left out."""
    shown = [(name, cell(value)) for name, value in fields if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        say(f"{name:<{width}}  {value}")


def console_on(stream: IO[str]) -> Console:
    """A rich console that reads no markup and no emoji out of what it prints."""
    from rich.console import Console

    return Console(file=stream, markup=False, emoji=False, highlight=False)


def say_bytes(content: bytes) -> None:
    """Print what is not ours, byte for byte; at a terminal made visible instead."""
    if sys.stdout.isatty():
        shown = lines(content.decode(errors="backslashreplace"))
        sys.stdout.write(shown if not content or content.endswith(b"\n") else shown + "\n")
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(content)

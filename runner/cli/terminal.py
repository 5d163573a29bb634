"""Prints all output: text from models, tools and files is untrusted.

Text and tables show control characters instead of sending them; JSON is plain ASCII. Files are written
whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from runner.app.humanize import DiffKind, cell, lines
from runner.errors import UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console

Span = tuple[str, str]  # a text, and its style in rich's words ("bold cyan", "" for none)
Line = Sequence[Span]
MARGIN = "  "  # stands before what is not Runner's own

# less ends by itself when all fits, shows colours and no other control sequences, and wraps nothing: we do,
# and a window that gets smaller hides the ends of lines.
_LESS = "-FRS"
_WIDE_TERMINAL = 130
_LEAST_LAST_COLUMN = 20
_SHORT_ID = 8
_ID = re.compile(r"(?:run|job|call|apr|worker)_([0-9a-z_]{6,})((?:\.[0-9._]+)?)")
_LONGEST_NAME = 100
_STATE_STYLES = {
    "succeeded": "green",
    "failed": "red",
    "cancelled": "magenta",
    "stopped": "yellow",
    "waiting": "cyan",
    "running": "blue",
}


def say(text: str = "") -> None:
    """Print Runner's own words on stdout. Line breaks stay, so that a value that is not ours goes through
    ``cell`` first; other control characters become visible here."""
    sys.stdout.write(lines(text) + "\n")


def note(text: str) -> None:
    """Print Runner's own words on stderr, as ``say`` does."""
    sys.stderr.write(lines(text) + "\n")
    sys.stderr.flush()


def refuse(reason: object) -> None:
    """Print in one line why a command refuses; secrets in it are left out."""
    line = cell(" ".join(str(reason).split("\n")))
    note(f"runner: {Settings.load().secrets().hide(line)}")


def say_json(value: Any, *, on_one_line: bool = False) -> None:
    """Print a value as JSON on stdout. ASCII only, so that no terminal obeys what is in it."""
    sys.stdout.write(json.dumps(value, indent=None if on_one_line else 2) + "\n")


def say_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    numbers: Collection[int] = (),
    widest: int = 32,
) -> None:
    """Print a table on stdout, the ``numbers`` among the columns aligned to the right. A piped
    table is never cut. A narrow terminal shows the ends of ids, which every command accepts, and
    cuts the last column; any other has ``widest`` characters at most."""
    say_pages(columns, [rows], numbers=numbers, widest=widest)


def say_pages(
    columns: Sequence[str],
    pages: Iterable[Iterable[Sequence[Any]]],
    *,
    numbers: Collection[int] = (),
    widest: int = 32,
) -> None:
    """Print a table page by page: a table each on a terminal, else with the first page's widths."""
    heads = [cell(name) for name in columns]
    widths: list[int] = []
    for page in pages:
        table = [[cell(value) for value in row] for row in page]
        if sys.stdout.isatty():
            _draw_table(heads, table, numbers, widest)
            continue
        if not widths:
            table.insert(0, heads)
            widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row in table:
            padded = (
                value.rjust(width) if at in numbers else value.ljust(width)
                for at, (value, width) in enumerate(zip(row, widths, strict=True))
            )
            say("  ".join(padded).rstrip())
        sys.stdout.flush()


def _draw_table(
    heads: Sequence[str], rows: list[list[str]], numbers: Collection[int], widest: int
) -> None:
    """Draw a table on a terminal: columns without values are left out, and the last one shrinks."""
    from rich.table import Table
    from rich.text import Text

    console = console_on(sys.stdout)
    if console.width < _WIDE_TERMINAL:
        rows = [[_short(value) for value in row] for row in rows]
    kept = [at for at in range(len(heads)) if not rows or any(row[at] for row in rows)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", expand=True)
    for at in kept:
        width = min(max(map(len, (heads[at], *(row[at] for row in rows)))), widest)
        is_last = at == kept[-1]
        table.add_column(
            heads[at],
            justify="right" if at in numbers and not is_last else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=None if is_last else width,
            min_width=min(width, _LEAST_LAST_COLUMN) if is_last else None,
            ratio=1 if is_last else None,
        )
    for row in rows:
        table.add_row(*(Text(row[at], style=_STATE_STYLES.get(row[at], "")) for at in kept))
    console.print(table)


def _short(value: str) -> str:
    """The end of an id, with all numbers of a sub-agent (``k3x9f2ab.3.1``); else the text."""
    found = _ID.fullmatch(value)
    return value if found is None else found[1][-_SHORT_ID:] + found[2]


def say_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Print names with their values, one a line; names without a value are left out."""
    shown = [(name, cell(value)) for name, value in fields if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        say(f"{name:<{width}}  {value}")


def console_on(stream: IO[str]) -> Console:
    """Return a rich console that finds no markup, links or emoji codes in what it prints."""
    from rich.console import Console

    return Console(file=stream, markup=False, emoji=False, highlight=False)


def say_bytes(content: bytes, path: Path | None = None) -> None:
    """Write untrusted bytes to a file or stdout; a terminal shows their control characters."""
    if path is not None:
        write_file(path, content)
    elif sys.stdout.isatty():
        shown = lines(content.decode(errors="backslashreplace"))
        sys.stdout.write(shown if not content or content.endswith(b"\n") else shown + "\n")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)


# Long texts at a terminal


def print_lines(lines: Iterable[Line], *, paged: bool) -> None:
    """Print lines as they come. Untrusted text in them becomes visible; at a terminal they have
    colours, none is wider than it, and ``paged`` they go through PAGER, else less, if a person is
    there."""
    visible = ([(cell(text), style) for text, style in line] for line in lines)
    if not sys.stdout.isatty():
        sys.stdout.writelines("".join(text for text, _ in line) + "\n" for line in visible)
        return
    columns = 0  # the terminal's own, whatever COLUMNS says; that only where it has none
    with suppress(OSError):  # stdout is no file, or none that is a terminal
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    width = columns or shutil.get_terminal_size().columns
    rows = (_coloured(row) + "\n" for line in visible for row in wrapped(line, width))
    if not (paged and sys.stdin.isatty()):
        sys.stdout.writelines(rows)
        return
    if not os.environ.get("PAGER"):
        os.environ.setdefault("LESS", _LESS)
    with click.get_pager_file() as pager:
        pager.writelines(rows)


_DIFF_STYLES: dict[DiffKind, str] = {
    "": "",
    "file": "bold",
    "place": "cyan",
    "added": "green",
    "removed": "red",
}


def diff_lines(found: Iterable[tuple[DiffKind, str]], margin: str = "") -> Iterator[Line]:
    """Yield the lines of a diff in its colours."""
    for kind, line in found:
        yield [(margin + line.expandtabs(8), _DIFF_STYLES[kind])]


def _coloured(row: Line) -> str:
    """A row with its styles, unless NO_COLOR (https://no-color.org) or the terminal forbids it."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return "".join(text for text, _ in row)
    from rich.color import ColorSystem
    from rich.style import Style

    return "".join(
        Style.parse(style).render(text, color_system=ColorSystem.STANDARD) if style else text
        for text, style in row
    )


def wrapped(line: Line, width: int) -> Iterator[Line]:
    """Yield the rows of a line, each of at most ``width`` cells however a terminal draws them. The
    margin keeps them out of the first column, where they could pass for Runner's own lines. rich's
    wrapping drops blanks, and counts 👍🏽 as two cells where many terminals draw four."""
    row: list[Span] = []
    room = width = max(width, len(MARGIN) + 1)
    least = 0
    for text, style in line:
        at = 0
        while (found := _row_end(text, at, room, least))[0] < len(text):
            end = found[0]
            yield [*row, (text[at:end], style)]
            row, room, least, at = [(MARGIN, "")], width - len(MARGIN), 1, end
        if at < len(text):
            row.append((text[at:], style))
            room, least = found[1], 0
    yield row


def _row_end(text: str, at: int, room: int, least: int) -> tuple[int, int]:
    """Return where a row ends that begins at ``at`` (behind a blank where one is near, not between a
    letter and its accent) and has at least ``least`` characters, and the cells that are left."""
    if text.isascii() and len(text) - at <= room:
        return len(text), room - len(text) + at
    for end in range(at, len(text)):
        cells = _cells(text[end])
        if cells > room and end - at >= least:
            break
        room -= cells
    else:
        return len(text), room
    blank = text.rfind(" ", (at + end) // 2, end)
    if blank >= 0:
        return blank + 1, 0
    letter = end
    while letter > at and unicodedata.combining(text[letter]):
        letter -= 1
    return letter if letter > at else end, 0


@lru_cache(maxsize=16_384)
def _cells(character: str) -> int:
    """The most cells that any terminal takes for a character. Terminals differ in characters of no
    width of their own, so each counts as one; less shows one that Unicode does not define as
    ``<U+10FFFF>``."""
    if unicodedata.category(character) in ("Cn", "Co"):
        return 10
    if "\U0001f1e6" <= character <= "\U0001f1ff":  # half a flag
        return 2
    from rich.cells import get_character_cell_size

    return max(get_character_cell_size(character), 1)


@contextmanager
def output(path: Path | None, mode: int = 0o600) -> Iterator[Callable[[bytes], object]]:
    """Write to a file that only its owner can read, or to stdout for None. The file exists once the block
    ends, and not if it raises; a link at ``path`` is replaced. Raises ``UsageError`` if it cannot be
    written."""
    if path is None:
        sys.stdout.flush()
        yield sys.stdout.buffer.write
        sys.stdout.buffer.flush()
        return
    temporary = path.with_name(f".{path.name[:_LONGEST_NAME]}.{os.getpid()}")
    try:
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with open(number, "wb") as file:
                yield file.write
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def write_file(path: Path, content: bytes) -> None:
    """Write a file that others may read. Raises ``UsageError`` if it cannot be written."""
    with output(path, 0o666) as write:
        write(content)


def remove_file(path: Path) -> None:
    """Remove a file. Raises ``UsageError`` if it cannot be removed."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"the file {path} cannot be removed: {error.strerror}") from error


def make_folder(path: Path) -> None:
    """Make a folder if there is none. Raises ``UsageError`` if it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the folder {path} cannot be made: {error.strerror}") from error

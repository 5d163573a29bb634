"""Prints all output: text from models, tools and files is untrusted.

Text and tables show control characters instead of sending them; JSON is plain ASCII. Files are written
whole or not at all.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

import click

from runner.app.humanize import ID, SHORT_ID, DiffKind, cell, iso_time, lines, short_ids
from runner.errors import SpecError, UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console

Span = tuple[str, str]  # a text, and its style in rich's words ("bold cyan", "" for none)
Line = Sequence[Span]
MARGIN = "  "  # stands before what is not Runner's own

# less ends by itself when all fits, shows colours and no other control sequences, and wraps nothing: we do,
# and a window that gets smaller hides the ends of lines.
_LESS = "-FRS"
_GAP = 2  # cells between columns
_WIDEST = 32
_PATIENCE_SECONDS, _BETWEEN_SECONDS = 1.0, 0.2
_ERASE_LINE = "\r\x1b[K"
MOST_ALIKE = 10  # lines that say the same of different runs; beyond that, one line
_LEADING = 3  # columns that stay
_LEAST_COLUMN = 8
_LEAST_LAST_COLUMN = 24
_LONGEST_ID = 26
_LONGEST_NAME = 100
_NOT_OURS = frozenset(
    [
        "input",
        "edited_input",
        "updated_input",
        "content",
        "output",
        "item",
        "result",
        "spec",
        "items",
    ]
)
STATE_STYLES = {
    "succeeded": "green",
    "failed": "red",
    "cancelled": "magenta",
    "stopped": "yellow",
    "waiting": "cyan",
    "running": "blue",
    "queued": "dim",
    "interrupted": "bold red",
}


def lasting(stream: TextIO) -> TextIO:
    """Return a standard stream for all output: it escapes characters that it cannot encode. A terminal,
    and stderr wherever it leads, drops what cannot be written, so that a closed terminal, a closed pipe
    and a full disk stop no work."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    # FileIO: with PYTHONUNBUFFERED
    is_file = isinstance(getattr(stream, "buffer", None), io.BufferedWriter | io.FileIO)
    if not (is_file and (stream.isatty() or stream is sys.stderr)):
        return stream
    buffer = io.BufferedWriter(_Lasting(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=True)


class _Lasting(io.FileIO):
    def write(self, content: Any, /) -> int:
        try:
            return super().write(content)
        except OSError:
            return len(content)


def drop_stdout() -> None:
    """Write nothing more on stdout, not even what is left in its buffer at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str = "", *, indent: int | None = None) -> None:
    """Print Runner's own words on stdout, with short ids. Control characters become visible, except line
    breaks: so pass untrusted values through ``cell`` first. A terminal wraps long lines, with ``indent``
    spaces before the rest (default: two more than the line's own)."""
    sys.stdout.write(_shown(text, sys.stdout, indent) + "\n")


def say_whole(id: str) -> None:
    """Print the id of something new: short at a terminal, whole for a script that reads it."""
    sys.stdout.write(f"{short_ids(id) if sys.stdout.isatty() else id}\n")


def note(text: str) -> None:
    """Print Runner's own words on stderr, as ``say`` does."""
    sys.stderr.write(_shown(text, sys.stderr) + "\n")
    sys.stderr.flush()


def _shown(text: str, stream: IO[str], indent: int | None = None) -> str:
    shown = lines(short_ids(text))
    if not stream.isatty():
        return shown
    room = shutil.get_terminal_size().columns
    return "\n".join(row for line in shown.split("\n") for row in _rows(line, room, indent))


def _rows(line: str, room: int, indent: int | None) -> Sequence[str]:
    """Return the rows of a wrapped line. No word is cut, so an address stays whole."""
    if len(line) <= room:
        return [line]
    below = len(line) - len(line.lstrip()) + 2 if indent is None else indent
    if room - below < _LEAST_LAST_COLUMN:
        return [line]
    how: Any = {"break_on_hyphens": False, "break_long_words": False}
    return textwrap.wrap(line, room, subsequent_indent=" " * below, **how)


def refuse(reason: object) -> None:
    """Print in one line why a command refuses; secrets in it are left out."""
    line = cell(" ".join(str(reason).split("\n")))
    note(f"runner: {Settings.load().secrets().hide(line)}")


def refuse_file(error: SpecError) -> None:
    """Print every problem of a job file, with its line and carets under the value, and its path once."""
    if len(error.problems) == 1:
        refuse(f"{error.source}: {error.problems[0]}")
    else:
        refuse(f"{error.source}: {len(error.problems)} problems")
    secrets = Settings.load().secrets()
    for problem in error.problems:
        if len(error.problems) > 1:
            note(f"{MARGIN}{cell(secrets.hide(str(problem)))}")
        for line in secrets.hide(problem.excerpt).splitlines():
            note(f"{MARGIN * 3}{cell(line)}")


def say_json(value: Any, *, on_one_line: bool = False) -> None:
    """Print a value as JSON on stdout, its times in ISO 8601. ASCII only, so that no terminal obeys what is
    in it."""
    told = with_iso_times(value)
    sys.stdout.write(json.dumps(told, indent=None if on_one_line else 2) + "\n")


def with_iso_times(value: Any, name: str = "") -> Any:
    """Return a value for JSON in which times, by the names of their keys, are texts. What came from models
    and people stays as it is."""
    if isinstance(value, dict):
        return {
            key: each if key in _NOT_OURS else with_iso_times(each, str(key))
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [with_iso_times(each, name) for each in value]
    is_time = name in ("at", "finish_by") or name.endswith("_at")
    return iso_time(value) if is_time and type(value) in (int, float) else value


def say_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    numbers: Collection[int] = (),
    spare: Sequence[str] = (),
    excerpt: bool = False,
    empty: str = "",
) -> None:
    """Print a table on stdout, the ``numbers`` among the columns aligned to the right. It shows the
    ends of ids, which every command accepts, and cuts nothing. A terminal that is too narrow for it shows
    fewer columns: the ``spare`` ones go first, in this order, then others from the right. The first three
    and the last one stay; long texts in them go on below. An ``excerpt`` in the last column, which is cut
    anyway, has one line, and goes where there is no room for it. Without rows it says ``empty``."""
    say_pages(columns, [rows], numbers=numbers, spare=spare, excerpt=excerpt, empty=empty)


def say_outcomes(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table of what became of runs: each row is a run's id, its item and the outcome. Many runs
    with the same outcome share a row."""
    by_outcome: dict[Sequence[str], list[Sequence[str]]] = {}
    for row in rows:
        by_outcome.setdefault(tuple(row[2:]), []).append(row)
    table: list[Sequence[str]] = []
    for outcome, alike in by_outcome.items():
        if len(alike) > MOST_ALIKE:
            items = f"{alike[0][1]} and {len(alike) - 1:,} more"
            alike = [(f"{len(alike):,} runs", items, *outcome)]
        table += alike
    say_table(columns, table)


def say_listing(
    found: Sequence[Any],
    as_json: bool,
    columns: Sequence[str],
    row: Callable[[Any], Sequence[Any]],
    **table: Any,
) -> None:
    """Print the found values: as JSON, or as a table (``say_table``) with a ``row`` for each."""
    if as_json:
        say_json(found)
    else:
        say_table(columns, map(row, found), **table)


def say_pages(
    columns: Sequence[str],
    pages: Iterable[Iterable[Sequence[Any]]],
    *,
    numbers: Collection[int] = (),
    spare: Sequence[str] = (),
    excerpt: bool = False,
    empty: str = "",
) -> None:
    """Print a table page by page: a table each on a terminal, else with the first page's widths."""
    heads = [cell(name) for name in columns]
    widths: list[int] = []
    left_out: dict[str, None] = {}
    for page in pages:
        table = with_short_ids([[cell(value) for value in row] for row in page])
        if empty and not table:
            note(empty)
            continue
        if sys.stdout.isatty():
            left_out |= dict.fromkeys(_draw_table(heads, table, numbers, spare, excerpt))
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
    if left_out:
        note(f"no room for {', '.join(left_out)}: a wider terminal or --json shows them")


def _draw_table(
    heads: Sequence[str],
    rows: list[list[str]],
    numbers: Collection[int],
    spare: Sequence[str],
    excerpt: bool,
) -> list[str]:
    """Draw a table on a terminal, without the columns that have no value. Returns the heads of those
    that it has no room for."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    console = console_on(sys.stdout)
    full = {
        at: max(map(cell_len, (heads[at], *(row[at] for row in rows))))
        for at in range(len(heads))
        if not rows or any(row[at] for row in rows)
    }
    widths = _fitting(full, heads, console.width, spare, excerpt) if full else {}
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for at, width in widths.items():
        is_cut = excerpt and at == len(heads) - 1
        table.add_column(
            heads[at],
            justify="right" if at in numbers else "left",
            width=width,
            no_wrap=is_cut or width >= full[at],
            overflow="ellipsis" if is_cut else "fold",
        )
    for row in rows:
        table.add_row(*(Text(row[at], style=STATE_STYLES.get(row[at], "")) for at in widths))
    console.print(table)
    return [heads[at] for at in full if at not in widths]


def _fitting(
    full: Mapping[int, int], heads: Sequence[str], room: int, spare: Sequence[str], excerpt: bool
) -> dict[int, int]:
    """Return the columns that fit into ``room`` cells with their widths there.

    ``full`` has the widths of all columns if nothing is cut.
    """
    widths, last = dict(full), len(heads) - 1
    by_name = {heads[at]: at for at in full}
    going = [by_name[name] for name in spare if name in by_name]
    going += [at for at in reversed([*full][_LEADING:]) if at not in (*going, last)]
    going += [last] if excerpt and last in full else []
    least = min(full.get(last, 0), _LEAST_LAST_COLUMN)

    def excess() -> int:
        return sum(widths.values()) + _GAP * (len(widths) - 1) - room

    if excess() > 0:
        widths |= {at: min(width, _WIDEST) for at, width in widths.items() if at != last}
    dropped: dict[int, int] = {}
    for at in going:
        if excess() > max(widths.get(last, 0) - least, 0):
            dropped[at] = widths.pop(at)
    for at in reversed(dropped):  # a wide column may have made room for a narrow one
        free = max(widths.get(last, 0) - least, 0) - excess() - _GAP
        if dropped[at] <= free or (full[at] > _LEAST_LAST_COLUMN and free >= 2 * _LEAST_COLUMN):
            widths[at] = min(dropped[at], free)
    widths = {at: widths[at] for at in full if at in widths}
    for at in (last, max(widths.keys() - {last}, key=widths.__getitem__, default=last)):
        if at in widths and (too_wide := excess()) > 0:  # its texts go on below
            widths[at] = max(widths[at] - too_wide, _LEAST_COLUMN)
    return widths


def with_short_ids(rows: list[list[str]]) -> list[list[str]]:
    """Return rows in which ids are cut to their ends, all to the same length, which tells them apart. The
    numbers of a sub-agent and of a call stay: ``k3x9f2ab.3.1``."""
    found = {value: match for row in rows for value in row if (match := ID.fullmatch(value))}
    for length in range(SHORT_ID, _LONGEST_ID + 1):
        short = {value: match[1][-length:] + match[2] for value, match in found.items()}
        if len({*short.values()}) == len(short):
            break
    return [[short.get(value) or short_ids(value) for value in row] for row in rows]


def say_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Print names with their values, one a line; names without a value are left out."""
    shown = [(name, cell(value)) for name, value in fields if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        say(f"{name:<{width}}  {value}", indent=width + _GAP)


def console_on(stream: IO[str]) -> Console:
    """Return a rich console that finds no markup, links or emoji codes in what it prints."""
    from rich.console import Console

    return Console(file=stream, markup=False, emoji=False, highlight=False)


@contextmanager
def progress(words: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with the number done and the total. If the block takes long, a terminal
    shows them on one line."""
    due, has_begun = time.monotonic() + _PATIENCE_SECONDS, False

    def show(done: int, all_: int) -> None:
        nonlocal due, has_begun
        if time.monotonic() >= due and sys.stderr.isatty():
            due, has_begun = time.monotonic() + _BETWEEN_SECONDS, True
            share = f"{done:,} of {all_:,} ({100 * done // max(all_, 1)}%)"
            sys.stderr.write(f"{_ERASE_LINE}{words}: {share}")
            sys.stderr.flush()

    try:
        yield show
    finally:
        if has_begun:
            sys.stderr.write(_ERASE_LINE)
            sys.stderr.flush()


def say_bytes(content: bytes, path: Path | None = None) -> None:
    """Write untrusted bytes to a file or stdout; a terminal shows their control characters."""
    if path is not None:
        write_file(path, content)
    elif sys.stdout.isatty():
        if content:
            say_content(content.decode(errors="backslashreplace").removesuffix("\n"))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)


# Long texts at a terminal


def say_content(text: str) -> None:
    """Print untrusted text; only its control characters are changed, to visible ones."""
    print_lines(([(line, "")] for line in text.expandtabs(8).split("\n")), paged=False)


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
        needed = cells(text[end])
        if needed > room and end - at >= least:
            break
        room -= needed
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
def cells(character: str) -> int:
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

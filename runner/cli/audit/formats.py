"""How rows are printed: as a table for people, or as JSON, JSON lines or CSV for programs.

Text in them is not trusted. A table shows control characters instead of obeying them, JSON is plain
ASCII, and in CSV there is an apostrophe before what a spreadsheet would take for a formula, be it at
the beginning of a cell, or after what other spreadsheets take for a separator
(https://owasp.org/www-community/attacks/CSV_Injection).
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from runner.app.humanize import cell, dollars, duration, lines, moment
from runner.cli.terminal import console_on, note, say

if TYPE_CHECKING:
    from runner.queries.rows import Column, Rows

FORMATS = ("table", "json", "jsonl", "csv")

_FORMULA = re.compile(r"^(?=[\t\r\n])|(?:^|[;\t\r\n])(?= *[=+\-@＝＋－＠])")
_NUMBERS = ("integer", "real", "seconds", "usd")
_ID = re.compile(r"(?:run|job|call|apr|worker)_[0-9a-z_]{6,}")
_SHORT_ID = 8
_WIDE_TERMINAL = 130
_WIDEST_COLUMN = 40
_LEAST_LAST_COLUMN = 20


def format_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Take how rows are printed, and give it to the command as ``format``, one of ``FORMATS``."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        given, as_json = options.pop("format"), options.pop("as_json")
        if as_json and given not in (None, "json"):
            raise click.UsageError(f"--json is --format json, and not {given}: give one of them")
        return command(*arguments, format="json" if as_json else given or "table", **options)

    run = click.option("--json", "as_json", is_flag=True, help="The same as --format json.")(run)
    return click.option(
        "--format",
        "format",
        type=click.Choice(FORMATS),
        help="Print a table (the default), a JSON array, JSON lines, or CSV (times in UTC).",
    )(run)


def say_rows(rows: Rows, format: str) -> None:
    """Print rows on stdout as they come, and then on stderr what is to be said of them.

    Args:
        format: one of ``FORMATS``.
    """
    _WRITERS[format](rows)
    if rows.note:
        sys.stdout.flush()
        note(cell(rows.note))


def _say_table(rows: Rows) -> None:
    heads = [cell(column.name.replace("_", " ")) for column in rows.columns]
    cells = [[_shown(column, row[column.name]) for column in rows.columns] for row in rows]
    if sys.stdout.isatty():
        _draw_table(rows.columns, heads, cells)
        return
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    is_number = [column.kind in _NUMBERS for column in rows.columns]
    for row in (heads, *cells):
        padded = (
            value.rjust(width) if number else value.ljust(width)
            for value, width, number in zip(row, widths, is_number, strict=True)
        )
        say("  ".join(padded).rstrip())


def _shown(column: Column, value: Any) -> str:
    """A value as a person reads it, on one line; one that is none of its column's kind as it is."""
    try:
        return "" if value is None else _said(column, value)
    except (ValueError, TypeError, ArithmeticError, OSError):  # as of a time far beyond all years
        return cell(value)


def _said(column: Column, value: Any) -> str:
    match column.kind:
        case "time":
            return moment(value)
        case "seconds":
            return duration(value)
        case "usd":
            return dollars(Decimal(str(value)))
        case "integer":
            return f"{value:,}"
        case "real":
            return f"{value:,.4g}"
        case "boolean":
            return "yes" if value else "no"
        case "json":
            return cell(json.dumps(value, ensure_ascii=False))
        case "text":
            return cell(value)


def _draw_table(columns: Sequence[Column], heads: Sequence[str], cells: list[list[str]]) -> None:
    """A terminal's table: columns without a value are left out, and the last one gives way."""
    from rich.table import Table
    from rich.text import Text

    console = console_on(sys.stdout)
    if console.width < _WIDE_TERMINAL:  # every command takes an id by its end
        cells = [[v[-_SHORT_ID:] if _ID.fullmatch(v) else v for v in row] for row in cells]
    kept = [at for at in range(len(columns)) if not cells or any(row[at] for row in cells)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", expand=True)
    for at in kept:
        width = min(
            max(len(value) for value in (heads[at], *(r[at] for r in cells))), _WIDEST_COLUMN
        )
        is_last = at == kept[-1]
        table.add_column(
            heads[at],
            justify="right" if columns[at].kind in _NUMBERS and not is_last else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=None if is_last else width,
            min_width=min(width, _LEAST_LAST_COLUMN) if is_last else None,
            ratio=1 if is_last else None,
        )
    for row in cells:
        table.add_row(*(Text(row[at]) for at in kept))
    console.print(table)


def _say_json(rows: Rows) -> None:
    between = "[\n"
    for row in rows:
        sys.stdout.write(f"{between}  {_json(row)}")
        between = ",\n"
    say("\n]" if between == ",\n" else "[]")


def _say_json_lines(rows: Rows) -> None:
    for row in rows:
        say(_json(row))


def _json(row: Mapping[str, Any]) -> str:
    return json.dumps(row, default=str)


def _say_csv(rows: Rows) -> None:
    _say_csv_row([harmless(column.name) for column in rows.columns])
    for row in rows:
        _say_csv_row([_csv_cell(column, row[column.name]) for column in rows.columns])


def _csv_cell(column: Column, value: Any) -> Any:
    if column.kind == "time" and value is not None:
        return harmless(str(_utc(value)))
    if column.kind == "boolean" and value is not None:
        return "true" if value else "false"
    if column.kind == "json" and value is not None:
        value = json.dumps(value, ensure_ascii=False)
    return harmless(value) if isinstance(value, str) else value


def _utc(value: Any) -> Any:
    """A time as ISO 8601 has it; what is none as it is."""
    try:
        return datetime.fromtimestamp(value, UTC).isoformat(timespec="milliseconds")
    except (ValueError, TypeError, OverflowError, OSError):
        return value


def harmless(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return _FORMULA.sub(lambda found: f"{found[0]}'", text)


def _say_csv_row(values: Sequence[Any]) -> None:
    written = io.StringIO()
    csv.writer(written).writerow(values)
    text = written.getvalue()
    sys.stdout.write(lines(text.removesuffix("\r\n")) + "\n" if sys.stdout.isatty() else text)


_WRITERS: dict[str, Callable[[Rows], None]] = {
    "table": _say_table,
    "json": _say_json,
    "jsonl": _say_json_lines,
    "csv": _say_csv,
}

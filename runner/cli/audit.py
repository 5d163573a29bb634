"""``runner audit``: questions about the record, SQL over it, and how their rows are printed.

Text in rows is not trusted. A table shows control characters instead of obeying them, JSON is plain
ASCII, and in CSV an apostrophe stands before what a spreadsheet would take for a formula, at the start
of a cell or after what other spreadsheets take for a separator
(https://owasp.org/www-community/attacks/CSV_Injection).
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import wraps
from typing import IO, TYPE_CHECKING, Any

import click

from runner.app.humanize import cell, dollars, duration, lines, moment
from runner.cli.costs import BY
from runner.cli.options import Command, Duration, opened, with_settings
from runner.cli.terminal import console_on, note, say
from runner.errors import UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.audit import Audit, Column, Rows

FORMATS = ("table", "json", "jsonl", "csv")
MOST_ROWS = 2**31 - 1  # more than a database has, and a number that every database takes

_AGO = re.compile(r"([0-9]{1,6})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_FILTERS = ("job", "run", "since", "until", "tool", "item", "model")

_FORMULA = re.compile(r"^(?=[\t\r\n])|(?:^|[;\t\r\n])(?= *[=+\-@＝＋－＠])")
_NUMBERS = ("integer", "real", "seconds", "usd")
_ID = re.compile(r"(?:run|job|call|apr|worker)_[0-9a-z_]{6,}")
_SHORT_ID = 8
_WIDE_TERMINAL = 130
_WIDEST_COLUMN = 40
_LEAST_LAST_COLUMN = 20


class Moment(click.ParamType[float]):
    """A day, a time, or how long ago, as seconds since the epoch."""

    name = "TIME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip()
        if ago := _AGO.fullmatch(text):
            return time.time() - int(ago[1]) * _SECONDS[ago[2]]
        try:
            return datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError, OSError):
            self.fail(
                f"{value!r} is no time: use 2026-11-22, 2026-11-22T22:00, or how long ago: 3d, 12h, "
                "30m",
                param,
                ctx,
            )


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Take the filters, and pass those that were given to the command as ``only``: ``audit.Only``."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        given = {name: _storable(name, options.pop(name)) for name in _FILTERS}
        only = {name: value for name, value in given.items() if value is not None}
        if "since" in only and "until" in only and only["since"] >= only["until"]:
            raise click.UsageError("--since is not before --until: nothing lies between them")
        return command(*arguments, only=only, **options)

    for decorate in (
        click.option("--model", metavar="NAME", help="Only of this model, as the API names it."),
        click.option("--item", metavar="KEY", help="Only of runs of this item, sub-agents too."),
        click.option("--tool", metavar="NAME", help="Only of this tool."),
        click.option("--until", type=Moment(), help="Only before this time."),
        click.option(
            "--since",
            type=Moment(),
            help="Only from this time on: 2026-11-22, 2026-11-22T22:00 (here), 3d, 12h, 30m (ago).",
        ),
        click.option("--run", metavar="ID", help="Only of this run and its sub-agents."),
        click.option("--job", metavar="ID", help="Only of this job."),
    ):
        run = decorate(run)
    return run


def _storable(name: str, value: Any) -> Any:
    try:
        str(value).encode()
    except UnicodeEncodeError as error:
        raise click.UsageError(f"--{name} is no text in UTF-8: nothing is named so") from error
    return value


def limit_option(default: int) -> Callable[[Command], Command]:
    """Take how many rows to print at most, as ``limit``; None for all."""
    return click.option(
        "--limit",
        type=click.IntRange(0, MOST_ROWS),
        default=default,
        show_default=True,
        metavar="N",
        callback=lambda _context, _parameter, value: value or None,
        help="At most so many; 0: all.",
    )


def format_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Take how to print rows, and pass it to the command as ``format``, one of ``FORMATS``."""

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
    """Print rows on stdout as they come, and then their note on stderr.

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
    """A value as a person reads it, on one line; as it is if it is not of its column's kind."""
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
    """Draw a table on a terminal: columns without values are left out, and the last one shrinks."""
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
    """A time in ISO 8601; as it is if it is not a time."""
    try:
        return datetime.fromtimestamp(value, UTC).isoformat(timespec="milliseconds")
    except (ValueError, TypeError, OverflowError, OSError):
        return value


def harmless(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
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


@click.group()
def audit() -> None:
    """Ask the record what agents did, who allowed it, and what it cost.

    All questions take the same filters and can give JSON, JSON lines or CSV. Nothing is changed by
    asking.

    \b
    Example:
      runner audit tools --since 7d
      runner audit commands 'git push *' --job job_01jd9k
      runner audit decisions --tool Bash --format csv > decisions.csv
    """


def question(limit: int) -> Callable[[Callable[..., Rows]], Callable[..., None]]:
    """Make a command that prints the rows of a question, with the options that all questions have.

    Args:
        limit: how many rows it prints by default.
    """

    def decorate(ask: Callable[..., Rows]) -> Callable[..., None]:
        @wraps(ask)
        def run(settings: Settings, format: str, only: dict[str, Any], **options: Any) -> None:
            from runner.audit import Audit

            with opened(settings) as handle:
                database = handle.database
                say_rows(ask(Audit.of(settings, database), **options, **only), format)

        command: Callable[..., Any] = run
        for take in (with_settings, format_options, limit_option(limit), filter_options):
            command = take(command)
        return command

    return decorate


@audit.command()
@question(100)
def tools(audit: Audit, **only: Any) -> Rows:
    """Count tool calls by what came of them.

    With how long they took, in all, on average and at most. The copies of calls that a fork began
    with are not counted.

    \b
    Example:
      runner audit tools --since 7d
      runner audit tools --job job_01jd9k --format csv
    """
    return audit.tools(**only)


@audit.command()
@click.argument("pattern", required=False)
@question(100)
def commands(audit: Audit, pattern: str | None, **only: Any) -> Rows:
    """List commands, and who let them run.

    All that Bash was called with, the newest first, whether it ran or not. PATTERN is one as in
    Bash(…) rules if it has a *, and is tried on each command of a script: 'git push *' finds `cd
    app && git push origin`. Else it is words, all of which must be in the command. What a command
    hides (g\\it, $cmd) is found by ':opaque' alone, which is tried on the newest 1,000 commands.

    \b
    Example:
      runner audit commands --since 12h
      runner audit commands 'git push *'
      runner audit commands 'rm -rf' --format jsonl --limit 0
    """
    return audit.commands(pattern, **only)


@audit.command()
@click.argument("pattern", required=False)
@question(100)
def files(audit: Audit, pattern: str | None, **only: Any) -> Rows:
    """List who read or changed which file.

    A line for each call and file, the newest first. It is known from the inputs of tools, from what
    commands say that they write and read, and from the trees that were recorded of a workspace,
    where these are on this host. PATTERN is a path, in which * stands for anything; a part from one
    of its folders on will do.

    \b
    Example:
      runner audit files src/billing.py
      runner audit files '*.env' --since 30d
      runner audit files --run k3x9f2 --format json
    """
    return audit.files(pattern, **only)


@audit.command()
@question(100)
def errors(audit: Audit, **only: Any) -> Rows:
    """Count what went wrong, the same together.

    Runs that failed or were stopped, calls of models, calls of tools. Those are counted together
    that say the same but for numbers, ids, paths and items, as in `runner report`. The newest of
    each is named: look at it with `runner show`.

    \b
    Example:
      runner audit errors --since 24h
      runner audit errors --job job_01jd9k --tool Bash
    """
    return audit.errors(**only)


@audit.command()
@click.option("--each", is_flag=True, help="List every call by itself, the newest first.")
@question(100)
def decisions(audit: Audit, each: bool, **only: Any) -> Rows:
    """Count what was allowed or denied, and by whom.

    By which rule a call was decided on, who wrote it, and who answered what was asked. The verdict
    is what became of a call: allowed, denied, waiting (for an answer), undecided, or interrupted
    (its run ended first). A call that no rule matched went by the job's default.

    \b
    Example:
      runner audit decisions --job job_01jd9k
      runner audit decisions --each --tool Bash --since 3d
    """
    return audit.decisions(each=each, **only)


@audit.command()
@question(100)
def approvals(audit: Audit, **only: Any) -> Rows:
    """List what people were asked and answered.

    With who answered what, and how long that took, the newest first. What waits for an answer now
    is in it, too; `runner approvals` shows how to give one.

    \b
    Example:
      runner audit approvals --since 30d
      runner audit approvals --job job_01jd9k --format csv > approvals.csv
    """
    return audit.approvals(**only)


@audit.command()
@question(100)
def limits(audit: Audit, **only: Any) -> Rows:
    """List the limits that runs have reached.

    With who let them go on, and with which limits; the newest first. Runs that wait for their job's
    budget now are in it, too.

    \b
    Example:
      runner audit limits --since 7d
      runner audit limits --job job_01jd9k
    """
    return audit.limits(**only)


@audit.command()
@click.option(
    "--by",
    type=click.Choice(BY),
    default="job",
    show_default=True,
    help="A row for each of these. Days are UTC.",
)
@question(100)
def costs(audit: Audit, by: Any, **only: Any) -> Rows:
    """Say what model calls cost.

    The dearest first, with the same sums as in `runner costs`. Costs are list prices times tokens,
    in USD. Calls of which nobody knows what they used are apart, with what they can have cost at
    most. With --tool it is the turns that called it.

    \b
    Example:
      runner audit costs --by day --since 30d
      runner audit costs --by run --job job_01jd9k --limit 10
    """
    return audit.costs(by, **only)


@audit.command()
@question(100)
def models(audit: Audit, **only: Any) -> Rows:
    """Say how each model did, and what it cost.

    How often it was called and failed, how long its replies took, what it used.

    \b
    Example:
      runner audit models --since 30d
      runner audit models --job job_01jd9k --json
    """
    return audit.models(**only)


@audit.command()
@click.argument("id", metavar="RUN")
@question(0)
def timeline(audit: Audit, id: str, **only: Any) -> Rows:
    """List all that happened to a run.

    Turns, calls, decisions, waits, what people did, and what it cost, in order. What people did to
    its job while it was there is in it, too.

    \b
    Example:
      runner audit timeline k3x9f2
      runner audit timeline k3x9f2 --tool Bash --format csv
    """
    return audit.timeline(id, **only)


@audit.command()
@click.argument("sql", required=False)
@click.option(
    "--file", type=click.File("r", encoding="utf-8"), help="Read the SQL there; - is stdin."
)
@click.option(
    "--timeout", type=Duration(), default="30s", show_default=True, help="How long it may take."
)
@click.option(
    "--role",
    envvar="RUNNER_AUDIT_ROLE",
    metavar="NAME",
    help="On Postgres, have only this role's rights (default: RUNNER_AUDIT_ROLE).",
)
@limit_option(1_000)
@format_options
@with_settings
def sql(
    settings: Settings,
    sql: str | None,
    file: IO[str] | None,
    timeout: float,
    role: str | None,
    limit: int | None,
    format: str,
) -> None:
    """Ask with a SELECT of your own, over the views that `runner audit views` lists.

    It reads and can do nothing else, whatever the SQL says: on SQLite the file is opened for reading
    only, on Postgres it is one statement in a read-only transaction that is rolled back. It is stopped
    when it takes too long, or more than 1 GiB of memory.

    \b
    Example:
      runner audit sql 'SELECT item, turns FROM v_runs ORDER BY turns DESC LIMIT 10'
      runner audit sql 'SELECT * FROM v_costs' --limit 0 --format csv > costs.csv
    """
    from runner.audit import Audit

    if (sql is None) == (file is None):
        raise UsageError("give the SQL, or --file with it")
    asked = file.read() if file is not None else str(sql)
    with opened(settings) as handle:
        database = handle.database
        answer = Audit.of(settings, database).sql(asked, limit=limit, timeout=timeout, role=role)
        say_rows(answer, format)


@audit.command()
@click.argument("view", required=False)
@format_options
def views(view: str | None, format: str) -> None:
    """List the views that SQL is asked over: their columns, and what these mean.

    \b
    Example:
      runner audit views
      runner audit views v_costs
    """
    from runner.audit import views as view_rows

    say_rows(view_rows(view), format)

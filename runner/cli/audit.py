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
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import IO, TYPE_CHECKING, Any

import click

from runner.app import handle
from runner.app.humanize import cell, iso_time, lines
from runner.app.tables import MOST_ROWS, csv_values, shown
from runner.cli.options import Command, filter_options, seconds, with_app
from runner.cli.terminal import note, say, say_table
from runner.errors import UsageError

if TYPE_CHECKING:
    from runner.audit import Column, Rows

FORMATS = ("table", "json", "jsonl", "csv")
_NUMBERS = ("integer", "real", "seconds", "usd")
_LONGEST_TEXT = 160  # at a terminal
# The columns that a narrow terminal drops first: the others say who did what.
_SPARE = (
    *("label", "snapshot", "containment", "seconds", "rule from", "rule by", "why", "decision"),
    *("turn", "run id", "job id", "ran", "via", "waited", "answered at", "edited", "first at"),
    *("longest", "cache creation tokens", "input tokens", "output tokens", "at", "asked at"),
)


def limit_option(default: int) -> Callable[[Command], Command]:
    """Take how many rows to print at most, as ``limit``; None for all."""
    return click.option(
        "--limit",
        type=click.IntRange(0, MOST_ROWS),
        default=default,
        show_default=True,
        metavar="N",
        callback=lambda _context, _parameter, value: value or None,
        help="Print at most N rows; 0: all.",
    )


format_option = click.option(
    "--format",
    "format",
    type=click.Choice(FORMATS),
    help="Print a table (the default), a JSON array, JSON lines, or CSV (times in UTC).",
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
    return format_option(run)


def say_rows(rows: Rows, format: str) -> None:
    """Print rows in one of ``FORMATS`` on stdout as they come, and then their note on stderr."""
    columns = rows.columns
    match format:
        case "table":
            say_table(
                [column.name.replace("_", " ") for column in columns],
                ([_cut(shown(column, row[column.name])) for column in columns] for row in rows),
                numbers=[at for at, column in enumerate(columns) if column.kind in _NUMBERS],
                spare=_SPARE,
                empty="" if rows.note else "nothing found",
            )
        case "json":
            between = "[\n"
            for row in rows:
                sys.stdout.write(f"{between}  {_json_row(columns, row)}")
                between = ",\n"
            say("\n]" if between == ",\n" else "[]")
        case "jsonl":
            for row in rows:
                sys.stdout.write(_json_row(columns, row) + "\n")
        case "csv":
            _say_csv_row([column.name for column in columns])
            for row in rows:
                _say_csv_row(csv_values(columns, row))
    if rows.note:
        sys.stdout.flush()
        note(cell(rows.note))


def _json_row(columns: Sequence[Column], row: Mapping[str, Any]) -> str:
    times = {column.name for column in columns if column.kind == "time"}
    told = {
        name: iso_time(value) if name in times and isinstance(value, int | float) else value
        for name, value in row.items()
    }
    return json.dumps(told, default=str)


def _cut(text: str) -> str:
    is_cut = len(text) > _LONGEST_TEXT and sys.stdout.isatty()
    return f"{text[:_LONGEST_TEXT]}…" if is_cut else text


def _say_csv_row(values: Sequence[Any]) -> None:
    written = io.StringIO()
    csv.writer(written).writerow(values)
    text = written.getvalue()
    sys.stdout.write(lines(text.removesuffix("\r\n")) + "\n" if sys.stdout.isatty() else text)


@click.group()
def audit() -> None:
    """Ask the record what agents did, who allowed it, and what it cost.

    All questions take the same filters, print a table, JSON, JSON lines or CSV, and change nothing.

    \b
    Example:
      runner audit tools --since 7d
      runner audit commands 'git push *' --job job_01jd9k
      runner audit decisions --tool Bash --format csv > decisions.csv
    """


def question(*takes: Callable[[Command], Command]) -> Callable[[Callable[[], None]], click.Command]:
    """Make a command that prints the rows of the ``runner.audit.Audit`` method with its name, and
    has parameters beside the common ones."""

    def decorate(described: Callable[[], None]) -> click.Command:
        @wraps(described)
        def run(app: handle.App, format: str, only: dict[str, Any], **options: Any) -> None:
            from runner.audit import Audit

            ask = getattr(Audit.of(app), described.__name__)
            say_rows(ask(**options, **only), format)

        command: Any = run
        all_take: Any = (with_app, format_options, limit_option(100), filter_options)
        for take in (*all_take, *takes):
            command = take(command)
        return audit.command()(command)

    return decorate


_pattern = click.argument("pattern", required=False)


@question()
def tools() -> None:
    """Count tool calls by outcome.

    Also shows the total, average and longest time of the calls of each tool. Calls that a fork
    copied are not counted.

    \b
    Example:
      runner audit tools --since 7d
      runner audit tools --job job_01jd9k --format csv
    """


@question(_pattern)
def commands() -> None:
    """List commands, and who allowed them.

    Lists all calls of Bash, the newest first, including calls that did not run. A PATTERN with a *
    is matched like a Bash(…) rule, against each command of a script: 'git push *' finds `cd app &&
    git push origin`. A PATTERN without a * finds commands that contain all its words.
    ':unanalyzable' lists commands that hide what they run (g\\it, $cmd), among the newest 1,000.

    \b
    Example:
      runner audit commands --since 12h
      runner audit commands 'git push *'
      runner audit commands 'rm -rf' --format jsonl --limit 0
    """


@question(_pattern)
def files() -> None:
    """List who read or changed which file.

    Lists one line for each call and file, the newest first. The files come from inputs of tools,
    arguments of commands, and snapshots of workspaces on this host. PATTERN is a path or its end,
    such as a file name; * stands for anything.

    \b
    Example:
      runner audit files src/billing.py
      runner audit files '*.env' --since 30d
      runner audit files --run k3x9f2 --format json
    """


@question(_pattern)
def connections() -> None:
    """List the hosts that calls reached or were refused.

    Lists the newest first, with bytes sent and received, for jobs whose sandbox names the hosts
    that calls may reach. After the first 100 connections of a call, those to the same port share a
    row. PATTERN is HOST[:PORT]; * stands for anything.

    \b
    Example:
      runner audit connections --job job_01jd9k
      runner audit connections '*.example.com' --since 7d
    """


@question()
def errors() -> None:
    """Count errors, equal ones together.

    Counts failed and stopped runs, failed model calls and failed tool calls. Errors that differ
    only in numbers, ids, paths and items count as equal, as in `runner report`. Each line names its
    newest error: see it with `runner show`.

    \b
    Example:
      runner audit errors --since 24h
      runner audit errors --job job_01jd9k --tool Bash
    """


@question(click.option("--each", is_flag=True, help="List every call by itself, the newest first."))
def decisions() -> None:
    """Count decisions on tool calls, by rule or person.

    Shows the rule that decided, who wrote it, and who answered a question. The verdict of a call is
    allowed, denied, waiting (for an answer), undecided, or interrupted (its run ended first). The
    job's default decides calls that no rule matches.

    \b
    Example:
      runner audit decisions --job job_01jd9k
      runner audit decisions --each --tool Bash --since 3d
    """


@question()
def approvals() -> None:
    """List questions to people and their answers.

    Shows who answered what, and after how long, the newest first. Open questions are listed too;
    `runner approvals` shows how to answer them.

    \b
    Example:
      runner audit approvals --since 30d
      runner audit approvals --job job_01jd9k --format csv > approvals.csv
    """


@question()
def limits() -> None:
    """List the limits that runs have reached.

    Shows who continued each run, and with which new limits; the newest first. Runs that wait for
    their job's budget are listed too.

    \b
    Example:
      runner audit limits --since 7d
      runner audit limits --job job_01jd9k
    """


@question()
def models() -> None:
    """Show calls, failures and cost of each model.

    Also shows how long replies took, and the tokens used.

    \b
    Example:
      runner audit models --since 30d
      runner audit models --job job_01jd9k --json
    """


@audit.command()
@click.argument("sql", required=False)
@click.option(
    "--file",
    type=click.File("r", encoding="utf-8"),
    help="Read the SQL from this file; - is stdin.",
)
@click.option(
    "--timeout",
    type=seconds,
    metavar="DURATION",
    default="30s",
    show_default=True,
    help="Time limit of the query.",
)
@click.option(
    "--role",
    envvar="RUNNER_AUDIT_ROLE",
    metavar="NAME",
    help="On Postgres, use only this role's rights (default: RUNNER_AUDIT_ROLE).",
)
@limit_option(1_000)
@format_options
@with_app
def sql(app: handle.App, sql: str | None, file: IO[str] | None, format: str, **bounds: Any) -> None:
    """Run a SELECT of your own on the views of the record.

    `runner audit views` lists the views. The SQL can only read: SQLite opens the file read-only,
    and Postgres runs one statement in a read-only transaction that is rolled back. A query is
    stopped after --timeout, or when it takes more than 1 GiB of memory.

    \b
    Example:
      runner audit sql 'SELECT item, turns FROM v_runs ORDER BY turns DESC'
      runner audit sql 'SELECT * FROM v_costs' --limit 0 --format csv > costs.csv
    """
    from runner.audit import Audit

    if (sql is None) == (file is None):
        raise UsageError("give the SQL, or --file with it")
    asked = file.read() if file is not None else str(sql)
    say_rows(Audit.of(app).sql(asked, **bounds), format)


@audit.command()
@click.argument("view", required=False)
@format_options
def views(view: str | None, format: str) -> None:
    """List the views for SQL with their columns and meanings.

    \b
    Example:
      runner audit views
      runner audit views v_costs
    """
    from runner.audit import views as view_rows

    say_rows(view_rows(view), format)

"""What every question of the record takes: the same filters, and how many rows."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

import click

from runner.cli.options import Command

if TYPE_CHECKING:
    from runner.audit import Only
    from runner.queries.filters import Filters
    from runner.store.database import Database

_AGO = re.compile(r"([0-9]{1,6})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
# More than a database has, and a number that each takes.
MOST_ROWS = 2**31 - 1
_NAMES = ("job", "run", "since", "until", "tool", "item", "model")


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


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The filters as they were typed: ``job`` and ``run`` may be shortened ids."""

    job: str | None = None
    run: str | None = None
    since: float | None = None
    until: float | None = None
    tool: str | None = None
    item: str | None = None
    model: str | None = None

    @property
    def only(self) -> Only:
        """The filters that were given, as ``runner.audit`` takes them."""
        given = ((name, getattr(self, name)) for name in _NAMES)
        return cast("Only", {name: value for name, value in given if value is not None})

    def filters(self, database: Database) -> Filters:
        """The filters with whole ids.

        Raises:
            NotFoundError: no job or run is named so, or several are.
        """
        from runner.audit import filters_of

        return filters_of(database, self.only)


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Take the filters, and give them to the command as ``narrowed``."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        narrowed = Narrowed(**{name: _storable(name, options.pop(name)) for name in _NAMES})
        since, until = narrowed.since, narrowed.until
        if since is not None and until is not None and since >= until:
            raise click.UsageError("--since is not before --until: nothing lies between them")
        return command(*arguments, narrowed=narrowed, **options)

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
    """Take how many rows are given at most, as ``limit``; None for all of them."""
    return click.option(
        "--limit",
        type=click.IntRange(0, MOST_ROWS),
        default=default,
        show_default=True,
        metavar="N",
        callback=lambda _context, _parameter, value: value or None,
        help="At most so many; 0: all.",
    )

"""What the commands share: global options, ids, and opening the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from runner.app.humanize import cell
from runner.cli.terminal import note
from runner.core.run import STATES
from runner.errors import UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.core.spec import Submission
    from runner.store.connection.database import Database

Command = TypeVar("Command", bound=Callable[..., Any])

_CHOSEN = "runner.settings"


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta.setdefault(_CHOSEN, {})[parameter.name] = value


def global_options(command: Command) -> Command:
    """Where the state lives: accepted before and after the subcommand, the latter wins."""
    for name, metavar, text in (
        (
            "--redis-url",
            "URL",
            "Redis to use (default: RUNNER_REDIS_URL, else an embedded server).",
        ),
        ("--database-url", "URL", "Database (default: RUNNER_DATABASE_URL, else SQLite in home)."),
        ("--home", "DIR", "Folder for state (default: RUNNER_HOME, else .runner)."),
    ):
        command = click.option(
            name, metavar=metavar, help=text, expose_value=False, callback=_remember
        )(command)
    return command


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command its settings as first argument, and take the global options."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        return command(chosen_settings(), *arguments, **options)

    return global_options(run)


def chosen_settings() -> Settings:
    """The settings as the options of the command that runs say."""
    return Settings.load(**click.get_current_context().meta.get(_CHOSEN, {}))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
state_option = click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
slots_option = click.option(
    "-c",
    "--concurrency",
    "slots",
    type=click.IntRange(1, 10_000),
    default=16,
    show_default=True,
    metavar="N",
    help="Runs worked at once in this process.",
)


class Dollars(click.ParamType[float]):
    """A sum in USD, within the bounds that a job file has."""

    name = "USD"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from runner.jobfile.sections.bounds import LEAST_USD, MOST_USD

        try:
            usd = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a sum in USD, such as 40 or 2.50", param, ctx)
        if not LEAST_USD <= usd <= MOST_USD:
            self.fail(f"{value!r} is not from {LEAST_USD:f} to {MOST_USD:,.0f} USD", param, ctx)
        return usd


class Duration(click.ParamType[float]):
    """A duration as in a job file, in seconds."""

    name = "DURATION"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from runner.jobfile.section import MOST_SECONDS, seconds_in

        text = str(value)
        seconds = seconds_in(text if text[-1:].isalpha() else f"{text}s")
        if not 0 < seconds <= MOST_SECONDS:
            self.fail(f"{value!r} is not a duration such as 90s, 30m or 8h", param, ctx)
        return seconds


@contextmanager
def stored(settings: Settings) -> Iterator[Database]:
    """The database, for a command that looks at or changes what is there. Creates nothing.

    Raises:
        UsageError: there is none yet, or it is not up to date; what to do.
        UnreachableError: it does not answer.
    """
    from runner import wiring
    from runner.store.connection import migrate

    if not migrate.is_created(settings.database_url):
        raise UsageError(f"no jobs yet in {settings.home}: start one with `runner run SPEC`")
    database = wiring.open_database(settings)
    try:
        yield database
    finally:
        database.close()


def loaded(settings: Settings, spec: Path) -> Submission:
    """A job file as it would be submitted; what it left out is said on stderr.

    Raises:
        SpecError: with everything that is wrong in it.
    """
    from runner import wiring

    submission = wiring.load_submission(spec, settings)
    for line in submission.notes:
        note(f"warning: {cell(line)}")
    return submission

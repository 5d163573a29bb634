"""What the commands share: global options, ids, and opening the database.

Who changes something, for the record: ``--as`` and ``--reason``, which every command has that
changes what is stored.

What workers log goes to stderr, a line at a time, with no secret and no control character.
"""

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
    from runner.store.database import Database
import getpass
import logging
import os
import sys
import unicodedata

from runner.app.humanize import lines
from runner.core.run import (
    LONGEST_NAME,
    LONGEST_WHY,
    RUNNERS_NAME,
    Author,
)

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
        from runner.jobfile.keys import LEAST_USD, MOST_USD

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
        from runner.jobfile.values import MOST_SECONDS, seconds_in

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
    from runner.store import migrate

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


_WHY = "Why, for the record."


def signed(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options, and the ``author`` that they name as an argument of that name."""
    return signed_with(_WHY, LONGEST_WHY)(command)


def signed_with(
    reason_help: str, longest: int | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``signed`` for a command whose reason is read by others as well.

    Args:
        reason_help: what the help says of ``--reason``.
        longest: the most characters that a reason may have; None where it is stored whole.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def run(*arguments: Any, signed_as: str | None, reason: str, **options: Any) -> Any:
            author = Author(name_of(signed_as), _reason(reason, longest))
            return command(*arguments, author=author, **options)

        for add in (
            click.option("--reason", default="", metavar="TEXT", help=reason_help),
            click.option(
                "--as",
                "signed_as",
                metavar="NAME",
                help="Who does it, for the record (default: the user of the operating system).",
            ),
        ):
            run = add(run)
        return run

    return decorate


def name_of(given: str | None) -> str:
    """Who does it: the name that was given, or that of the user of the operating system.

    Raises:
        UsageError: the name is blank or too long, could steer a terminal, or is Runner's own.
    """
    name = _user() if given is None else given.strip()
    if not name or not name.isprintable() or len(name) > LONGEST_NAME:
        raise UsageError(
            f"{name[:60]!a} is no name of 1 to {LONGEST_NAME} printable characters: give one with "
            "--as NAME"
        )
    if _is_runners(name):
        raise UsageError(f"{name!r} is what Runner calls itself: give another name with --as NAME")
    return name


def _user() -> str:
    try:
        name = getpass.getuser().strip()
    except (OSError, KeyError):  # a container's user without a name; KeyError before Python 3.13
        return f"uid {os.getuid()}"
    return f"user {name}" if _is_runners(name) else name


def _is_runners(name: str) -> bool:
    """Whether a reader could take a name for what Runner calls itself: also ``Runner``, or in the wide
    letters that look the same."""
    return unicodedata.normalize("NFKC", name).casefold() == RUNNERS_NAME


def _reason(text: str, longest: int | None) -> str:
    if longest is not None and len(text) > longest:
        raise UsageError(
            f"the reason has {len(text):,} characters: say it in {longest:,} (--reason)"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            "the reason has a character that cannot be stored: leave it out (--reason)"
        ) from error
    return text.strip()


class _OurLines(logging.Formatter):
    def __init__(self, secrets: tuple[str, ...]) -> None:
        super().__init__("runner: %(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return lines(text)


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes where stderr is now: a progress display puts itself in between while it draws."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def log_to_stderr(settings: Settings, level: int) -> None:
    """Show what this process logs: Runner's own from ``level`` on, that of libraries from warnings."""
    handler = _Stderr()
    handler.setFormatter(_OurLines(settings.secrets()))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("runner").setLevel(level)

"""What the commands share: global options, opening the app, who changes something, and the log."""

from __future__ import annotations

import getpass
import logging
import os
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from runner.app.humanize import cell, lines
from runner.cli.terminal import note
from runner.core.run import LONGEST_NAME, LONGEST_WHY, RUNNERS_NAME, STATES, Author
from runner.errors import UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.app.handle import App
    from runner.core.spec import Submission

Command = TypeVar("Command", bound=Callable[..., Any])

_CHOSEN = "runner.settings"


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta.setdefault(_CHOSEN, {})[parameter.name] = value


def global_options(command: Command) -> Command:
    """Take the options that say where the state is, before or after the subcommand; the latter win."""
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
        return command(_chosen_settings(), *arguments, **options)

    return global_options(run)


def with_app(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the opened app as first argument, and take the global options.

    Raises:
        UsageError: there is no database yet, or it is not up to date; says what to do.
        UnreachableError: it does not answer.
    """

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        from runner.app.handle import open_app

        with open_app(_chosen_settings()) as app:
            return command(app, *arguments, **options)

    return global_options(run)


def _chosen_settings() -> Settings:
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
    """A sum in USD, within the bounds of a job file."""

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
def opened(settings: Settings) -> Iterator[App]:
    """Open the app of ``with_app``, for a command that takes settings."""
    from runner.app.handle import open_app

    with open_app(settings) as app:
        yield app


def load_job(settings: Settings, spec: Path) -> Submission:
    """Return a job file as it would be submitted, and say on stderr what it left out.

    Raises:
        SpecError: with everything that is wrong in it.
    """
    from runner.app import work

    submission = work.load_job(settings, spec)
    for line in submission.notes:
        note(f"warning: {cell(line)}")
    return submission


_WHY = "Why, for the record."


def signed(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--as`` and ``--reason``, and the ``author`` that they make as an argument."""
    return signed_with(_WHY, LONGEST_WHY)(command)


def signed_with(
    reason_help: str, longest: int | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``signed`` for a command whose reason is not only for the record.

    Args:
        reason_help: the help of ``--reason``.
        longest: the most characters of a reason; None: any number.
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
    """Return the given name, or that of the user of the operating system.

    Raises:
        UsageError: the name is blank, too long, not printable, or Runner's own.
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
    """True if a reader could take a name for Runner's own: ``Runner``, or one in wide letters."""
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
    """Writes to the stderr of the moment: a progress display replaces it while it draws."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def log_to_stderr(settings: Settings, level: int) -> None:
    """Show the log without secrets and control characters: Runner's from ``level`` on, that of
    libraries from warnings."""
    handler = _Stderr()
    handler.setFormatter(_OurLines(settings.secrets()))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("runner").setLevel(level)

"""Shared by all commands: global options, opening the app, the author of a change, and the log."""

from __future__ import annotations

import gc
import getpass
import os
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from runner.app import handle
from runner.app import submit as app_submit
from runner.app.humanize import cell
from runner.cli.terminal import note, say_json
from runner.core.run import LONGEST_NAME, LONGEST_WHY, RUNNERS_NAME, STATES, Author
from runner.errors import NoDatabaseError, UsageError
from runner.settings import LOG_FORMATS, Settings

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from runner.core.spec import Submission

Command = TypeVar("Command", bound=Callable[..., Any])

_CHOSEN = "runner.settings"


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta.setdefault(_CHOSEN, {})[parameter.name] = value


def global_options(command: Command) -> Command:
    """Take the options that say where the state is, before or after the subcommand; the latter win."""
    redis = "Redis to use (default: RUNNER_REDIS_URL, else an embedded server)."
    for name, metavar, text in (
        ("--redis-url", "URL", redis),
        ("--database-url", "URL", "Database (default: RUNNER_DATABASE_URL, else SQLite in home)."),
        ("--home", "DIR", "Folder for state (default: RUNNER_HOME, else .runner)."),
    ):
        options: Any = {"metavar": metavar, "expose_value": False, "callback": _remember}
        command = click.option(name, help=text, **options)(command)
    return command


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command its settings as first argument, and take the global options."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        chosen = click.get_current_context().meta.get(_CHOSEN, {})
        return command(Settings.load(**chosen), *arguments, **options)

    return global_options(run)


@contextmanager
def open_app(settings: Settings, **options: Any) -> Iterator[handle.App]:
    """``handle.open_app``; then turns on the garbage collector, which ``main`` has turned off."""
    with handle.open_app(settings, **options) as app:
        _collect_new()
        yield app


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage in the block, which imports modules, and never scan the objects that it leaves.
    Scanning modules again and again took a tenth of a command's time, and a twentieth of a worker's."""
    gc.disable()
    try:
        yield
    finally:
        _collect_new()


def _collect_new() -> None:
    gc.freeze()
    gc.enable()


def with_app(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass a command the opened app as its first argument, and add the global options.

    Without a database, a command that only shows things says how to start, prints nothing on stdout
    (with JSON, an empty list) and succeeds. If it names a job or a run, that is an error.
    """

    @wraps(command)
    def run(settings: Settings, *arguments: Any, **options: Any) -> Any:
        try:
            with open_app(settings, slots=options.get("slots")) as app:
                return command(app, *arguments, **options)
        except NoDatabaseError as error:
            if "ids" in options or not {"as_json", "format"} & options.keys():
                raise
            if any((options | options.get("only", {})).get(each) for each in ("id", "job", "run")):
                raise
            if options.get("as_json") or options.get("format") == "json":
                say_json([])
            note(cell(str(error)))

    return with_settings(run)


class Named(click.ParamType[str]):
    """The name of a job or a run, which a shell completes from the database."""

    name = "text"

    def __init__(self, *kinds: Literal["job", "run"]) -> None:
        self._kinds = kinds

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return names that begin with a text; none without a database."""
        from click.shell_completion import CompletionItem

        with open_app(Settings.load(**ctx.meta.get(_CHOSEN, {}))) as app:
            return [CompletionItem(name) for name in app.completions(incomplete, *self._kinds)]


class _State(click.Choice[str]):
    """A state; for another word it names the nearest one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            close = get_close_matches(str(value), STATES, n=1)
            proposed = f" Did you mean {close[0]!r}?" if close else ""
            raise click.BadParameter(f"{error.message}{proposed}", ctx, param) from None


JOB, RUN, JOB_OR_RUN = Named("job"), Named("run"), Named("job", "run")


def _time(text: str) -> float:
    from runner.app.tables import time_of

    try:
        return time_of(text)
    except UsageError as error:
        raise click.BadParameter(str(error)) from None


_FILTERS: dict[str, dict[str, Any]] = {
    "job": {"type": JOB, "metavar": "ID", "help": "Only this job."},
    "run": {"type": RUN, "metavar": "ID", "help": "Only this run and its sub-agents."},
    "since": {
        "type": _time,
        "metavar": "TIME",
        "help": "Only since this time: 2026-11-22T22:00 or 2026-11-22 (local), yesterday, 12h (ago).",
    },
    "until": {"type": _time, "metavar": "TIME", "help": "Only before this time, as for --since."},
    "tool": {"metavar": "NAME", "help": "Only this tool."},
    "item": {"metavar": "KEY", "help": "Only runs of this item and their sub-agents."},
    "model": {"metavar": "NAME", "help": "Only this model, as the API names it."},
    "state": {"type": _State(STATES), "help": "Only runs in this state."},
}


def filters(*names: str) -> Callable[[Command], Command]:
    """Take these of the filters, and pass the given ones to the command as ``only``: ``audit.Only``."""

    def decorate(command: Command) -> Any:
        @wraps(command)
        def run(*arguments: Any, **options: Any) -> Any:
            given = {name: options.pop(name) for name in names}
            only = {name: value for name, value in given.items() if value is not None}
            for name, value in only.items():
                try:
                    str(value).encode()
                except UnicodeEncodeError as error:
                    words = f"--{name} is not text in UTF-8"
                    raise click.UsageError(words) from error
            if "since" in only and "until" in only and only["since"] >= only["until"]:
                raise click.UsageError("--since must be before --until")
            return command(*arguments, only=only, **options)

        for name in reversed(names):
            run = click.option(f"--{name}", **_FILTERS[name])(run)
        return run

    return decorate


filter_options = filters(*_FILTERS)
# The index of texts holds nothing that changes, so no states.
search_options = filters(*(name for name in _FILTERS if name != "state"))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
state_option = click.option("--state", **_FILTERS["state"])
slots_option = click.option(
    "-c",
    "--concurrency",
    "slots",
    type=click.IntRange(1, 10_000),
    default=16,
    show_default=True,
    metavar="N",
    help="The most runs at once in this process.",
)
log_format_option = click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    expose_value=False,
    callback=_remember,
    help="Format of the log (default: RUNNER_LOG_FORMAT, else text).",
)
quiet_option = click.option("--quiet", is_flag=True, help="Show no progress.")
output_option = click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write to this file (default: stdout).",
)


def usd(text: str) -> float:
    """Return a sum in USD, within the bounds of a job file."""
    from runner.jobfile.keys import LEAST_USD, MOST_USD

    try:
        found = float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a sum in USD, such as 40 or 2.50") from None
    if not LEAST_USD <= found <= MOST_USD:
        raise click.BadParameter(f"{text!r} is not from {LEAST_USD:f} to {MOST_USD:,.0f} USD")
    return found


def tokens(text: str) -> int:
    """Return a number of tokens, within the bounds of a job file."""
    from runner.jobfile.keys import MOST_TOKENS

    try:
        found = int(text)
    except ValueError:
        found = 0
    if not 1 <= found <= MOST_TOKENS:
        what = f"a number of tokens from 1 to {MOST_TOKENS:,}, such as 200000"
        raise click.BadParameter(f"{text[:60]!r} is not {what}")
    return found


def address(text: str) -> tuple[str, int]:
    """Return the host (default: this machine alone) and port of ``ADDR:PORT`` or ``PORT``."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise click.BadParameter(f"{text!r} is not an address such as 9100 or 0.0.0.0:9100")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def seconds(text: str, longest: float | None = None) -> float:
    """Return the seconds of a duration, by default of one as in a job file."""
    from runner.jobfile.values import MOST_SECONDS, seconds_in

    found = seconds_in(text if text[-1:].isalpha() else f"{text}s")
    if not 0 < found <= (longest or MOST_SECONDS):
        raise click.BadParameter(f"{text!r} is not a duration such as 90s, 30m or 8h")
    return found


def load_job(settings: Settings, spec: Path, pilot: int | None = None, **how: Any) -> Submission:
    """Return a job file as ``app.submit.load_job`` does, and print warnings about it on stderr."""
    submission = app_submit.load_job(settings, spec, pilot, **how)
    for line in submission.notes:
        note(f"warning: {cell(line)}")
    return submission


def signed_with(reason_help: str, longest: int | None = None) -> Callable[[Command], Command]:
    """Give a command its ``author``, from ``--as`` and ``--reason`` (limited in characters)."""

    def decorate(command: Callable[..., Any]) -> Any:
        @wraps(command)
        def run(*arguments: Any, signed_as: str | None, reason: str, **options: Any) -> Any:
            author = Author(name_of(signed_as), _reason(reason, longest))
            return command(*arguments, author=author, **options)

        return _as_option(
            click.option("--reason", default="", metavar="TEXT", help=reason_help)(run)
        )

    return decorate


signed = signed_with("Why, for the record.", LONGEST_WHY)


def signed_as(command: Callable[..., Any]) -> Any:
    """Give a command an ``author`` without a reason, from ``--as``."""

    @wraps(command)
    def run(*arguments: Any, signed_as: str | None, **options: Any) -> Any:
        return command(*arguments, author=Author(name_of(signed_as)), **options)

    return _as_option(run)


_as_option = click.option(
    "--as",
    "signed_as",
    metavar="NAME",
    help="Who does it, for the record (default: the user of the operating system).",
)


def changing(command: Callable[..., Any]) -> Any:
    """Give a command that changes something the app, its author, and ``--json``."""
    return signed(json_option(with_app(command)))


def name_of(given: str | None) -> str:
    """Return the given name, or that of the user of the operating system. Raises ``UsageError`` if it is
    blank, too long, not printable, or Runner's own."""
    name = _user() if given is None else given.strip()
    if not name or not name.isprintable() or len(name) > LONGEST_NAME:
        raise UsageError(
            f"{name[:60]!a} is not a name of 1 to {LONGEST_NAME} printable characters: give one with "
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
            f"the reason has {len(text):,} characters: give at most {longest:,} (--reason)"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            "the reason has a character that cannot be stored: leave it out (--reason)"
        ) from error
    return text.strip()

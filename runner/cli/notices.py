"""``notify``: try how a job tells people, and list what it told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from runner.app import handle
from runner.app import notices as app_notices
from runner.app.humanize import cell, moment
from runner.cli import exit_codes
from runner.cli.options import JOB, json_option, open_app, with_app, with_settings
from runner.cli.terminal import say, say_json, say_listing
from runner.core.notices import EVENTS, NoticeEvent
from runner.settings import Settings


@click.group()
def notify() -> None:
    """Test and list the notices that a job sends about its events ([notify] in its job file).

    \b
    Example:
      runner notify test jobs/refactor.toml
    """


@notify.command()
@click.argument("spec", metavar="FILE|JOB")
@click.option(
    "--event",
    type=click.Choice(EVENTS),
    default="done",
    help="Event of the notice (default: done).",
)
@json_option
@with_settings
def test(settings: Settings, spec: str, event: NoticeEvent, as_json: bool) -> int:
    """Send a test notice through each channel of a job.

    Sends from this host with its environment. Exits with 1 if a notice could not be sent.

    \b
    Example:
      runner notify test jobs/refactor.toml --event needs_approval
    """
    if Path(spec).is_file():
        name, how = app_notices.settings_in(settings, Path(spec))
    else:
        with open_app(settings) as app:
            name, how = app_notices.settings_of(app, spec)
    found = [*app_notices.send_trial(settings, name, how, event)]
    if as_json:
        say_json([{"channel": channel, "error": error or None} for channel, error in found])
    else:
        for channel, error in found:
            say(f"{channel:<8}  {cell(error) or 'sent'}")
    return exit_codes.FAILED if any(error for _, error in found) else exit_codes.SUCCEEDED


@notify.command("list")
@click.argument("job", type=JOB)
@json_option
@with_app
def list_(app: handle.App, job: str, as_json: bool) -> None:
    """List the notices of a job, and whether each was sent.

    \b
    Example:
      runner notify list last
    """

    def row(each: Mapping[str, Any]) -> Sequence[Any]:
        error = f" ({each['error']})" if each["error"] else ""
        names = (each[name] for name in ("event", "channel", "state", "tries"))
        return (moment(each["at"]), *names, each["data"]["text"] + error)

    columns = ("at", "event", "by", "state", "tries", "text")
    empty = "no notices yet: no event of the job's [notify] has happened"
    say_listing(app_notices.list_notices(app, job), as_json, columns, row, empty=empty)

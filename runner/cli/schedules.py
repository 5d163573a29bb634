"""``schedule`` and ``finish-by``: when jobs are submitted, and until when they work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from runner.app import handle, schedules
from runner.app import times as app_times
from runner.app.humanize import cell, moment, plural
from runner.cli.control import note_unworked
from runner.cli.options import (
    JOB,
    changing,
    json_option,
    load_job,
    open_app,
    signed,
    with_app,
    with_settings,
)
from runner.cli.terminal import note, say, say_json, say_listing, say_whole
from runner.core.run import Author
from runner.settings import Settings

_id_argument = click.argument("id", metavar="ID")


@click.group()
def schedule() -> None:
    """Submit a job again and again, at the times of a cron expression.

    The database stores the schedule, and any running worker submits the job when it is due. A
    schedule keeps a copy of the job file: after you change the file, remove the schedule and add it
    again.

    \b
    Example:
      runner schedule add jobs/nightly.toml --cron "0 22 * * 1-5" --tz UTC
    """


@schedule.command("add")
@click.argument("spec", type=click.Path(path_type=Path))
@click.option(
    "--cron", metavar="EXPR", required=True, help="Minute, hour, day of month, month, weekday."
)
@click.option("--tz", "zone", metavar="ZONE", help="Time zone of --cron (default: this host's).")
@signed
@json_option
@with_settings
def add(
    settings: Settings, spec: Path, cron: str, zone: str | None, author: Author, as_json: bool
) -> None:
    """Add a schedule, and print its id.

    \b
    Example:
      runner schedule add jobs/nightly.toml --cron "0 22 * * 1-5" --tz UTC
    """
    submission = load_job(settings, spec, before="submission")
    with open_app(settings, create=True) as app:
        added = schedules.add(app, submission, cron, zone, author)
    if as_json:
        say_json(added)
    else:
        say_whole(added["id"])
        note(f"first at {moment(added['next_at'])}, if a worker is running then")


@schedule.command("list")
@click.option("--all", "removed", is_flag=True, help="Include removed schedules.")
@json_option
@with_app
def list_(app: handle.App, removed: bool, as_json: bool) -> None:
    """List the schedules. The JSON of each schedule includes who changed it, and how.

    \b
    Example:
      runner schedule list
    """
    say_listing(
        schedules.listed(app, removed=removed),
        as_json,
        ("schedule", "job", "cron", "zone", "next", "last", "submitted", "detail"),
        _row,
        spare=("zone", "last", "submitted"),
        empty="no schedule: add one with `runner schedule add SPEC --cron EXPR`",
    )


def _row(each: Mapping[str, Any]) -> Sequence[Any]:
    then = "paused" if each["paused_at"] is not None else moment(each["next_at"])
    then = "removed" if each["removed_at"] is not None else then
    names = (each[name] for name in ("id", "name", "cron", "zone"))
    return (*names, then, moment(each["fired_at"]), each["fired_job"] or "", each["detail"])


@schedule.command("pause")
@_id_argument
@changing
def pause(app: handle.App, id: str, author: Author, as_json: bool) -> None:
    """Pause a schedule until `resume`: it submits nothing.

    \b
    Example:
      runner schedule pause sch_01jd9k
    """
    _say(schedules.pause(app, id, author), "paused", as_json)


@schedule.command("resume")
@_id_argument
@changing
def resume(app: handle.App, id: str, author: Author, as_json: bool) -> None:
    """Resume a paused schedule at its next time. Times that it missed are skipped.

    \b
    Example:
      runner schedule resume sch_01jd9k
    """
    _say(schedules.resume(app, id, author), "next at {}", as_json)


@schedule.command("rm")
@_id_argument
@changing
def rm(app: handle.App, id: str, author: Author, as_json: bool) -> None:
    """Remove a schedule. The jobs that it has submitted stay.

    \b
    Example:
      runner schedule rm sch_01jd9k
    """
    _say(schedules.remove(app, id, author), "removed", as_json)


def _say(found: Mapping[str, Any], words: str, as_json: bool) -> None:
    if as_json:
        say_json(found)
    else:
        say(f"{found['id']} ({cell(found['name'])}): {words.format(moment(found['next_at']))}")


@click.command("finish-by")
@click.argument("job", type=JOB)
@click.argument("time")
@changing
def finish_by(app: handle.App, job: str, time: str, author: Author, as_json: bool) -> None:
    """Set the time after which a job begins no model call.

    TIME is the next such time of day, or a date and time; without a time zone, it is this host's.
    Runs that wait because the old time has passed continue.

    \b
    Example:
      runner finish-by job_01jd9k 09:00
      runner finish-by job_01jd9k "2026-11-24 09:00 Europe/Berlin"
    """
    moved = app_times.move_finish_by(app, job, time, author)
    if as_json:
        told = {"finish_by": moved.moment.at, "finish_by_text": str(moved.moment)}
        say_json({"job_id": moved.job_id, **told, "runs": list(moved.runs)})
    else:
        say(f"{moved.job_id}: model calls begin until {moment(moved.moment.at)} ({moved.moment})")
        if moved.runs:
            note(f"{plural(len(moved.runs), 'run goes', 'runs go')} on")
    note_unworked(moved.unworked_job)

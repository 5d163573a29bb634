"""``db``, ``doctor``, ``workers`` and ``prune``; ``schema`` of job files; ``completion`` for shells."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

import click
from click.shell_completion import get_completion_class

from runner.app import doctor as app_doctor
from runner.app import handle
from runner.app import prune as app_prune
from runner.app.humanize import cell, moment, plural
from runner.cli import exit_codes
from runner.cli.options import (
    changing,
    global_options,
    json_option,
    seconds,
    with_app,
    with_settings,
)
from runner.cli.terminal import note, progress, say, say_bytes, say_json, say_listing, say_table
from runner.core.run import Author
from runner.errors import UsageError
from runner.settings import Settings


@click.group()
def db() -> None:
    """Bring the database schema up to date, or check it.

    \b
    Example:
      runner db upgrade
    """


@db.command()
@json_option
@with_settings
def upgrade(settings: Settings, as_json: bool) -> None:
    """Create the database, or bring it up to date. Safe at any time, and from several hosts at
    once.

    \b
    Example:
      runner db upgrade --database-url postgresql://runner@db/runner
    """
    before = app_doctor.upgrade(settings)
    if as_json:
        say_json({"state": "current", "current": before.head, "head": before.head})
    elif before.state == "current":
        say(f"up to date ({before.head})")
    else:
        say(f"upgraded from {before.current or 'nothing'} to {before.head}")


@db.command()
@json_option
@with_settings
def check(settings: Settings, as_json: bool) -> int:
    """Check that the database is up to date. Exits with 2 if it is not.

    \b
    Example:
      runner db check
    """
    status = app_doctor.schema_status(settings)
    found = {
        "current": f"up to date ({status.head})",
        "empty": "empty",
        "older": f"at {status.current}, not {status.head}",
        "newer": f"at {status.current}, newer than this Runner ({status.head})",
        "unsupported": f"at {status.current}, of a Runner before 0.1.0",
    }[status.state]
    if as_json:
        say_json({"state": status.state, **asdict(status)})
    else:
        say(found if status.state == "current" else f"{found}: {status.advice}")
    return exit_codes.SUCCEEDED if status.state == "current" else exit_codes.USAGE


@db.command()
@json_option
@with_app
def reindex(app: handle.App, as_json: bool) -> None:
    """Rebuild the search index. Rarely needed: Runner rebuilds a damaged index itself.

    \b
    Example:
      runner db reindex
    """
    with progress("indexing") as show:
        count = app_doctor.reindex(app, lambda line: note(cell(line)), show)
    if as_json:
        say_json({"texts": count})
    else:
        say(f"{count:,} texts indexed")


@click.command()
@json_option
@with_settings
def doctor(settings: Settings, as_json: bool) -> int:
    """Check database, queue, key, git, shell, sandbox and versions, and say what to fix.

    Exits with 5 if the database or the queue cannot be reached, or with 1 if anything else is
    wrong.

    \b
    Example:
      runner doctor
    """
    checks = app_doctor.diagnose(settings)
    if as_json:
        say_json([asdict(check) for check in checks])
    else:
        for check in checks:
            verdict = ("warn" if check.mend else "ok") if check.ok else "FAIL"
            say(f"{verdict:<4}  {check.name:<10}  {cell(check.detail)}")
            if check.mend:
                say(f"{'':<18}{cell(check.mend)}")
    if any(check.is_part and not check.ok for check in checks):
        return exit_codes.UNREACHABLE
    return exit_codes.SUCCEEDED if all(check.ok for check in checks) else exit_codes.FAILED


_NO_WORKER = "no worker is alive: start one with `runner worker`, or work a job with `runner run`"


@click.command()
@click.option("--all", "ended", is_flag=True, help="Include workers that have ended or died.")
@click.option(
    "--limits", is_flag=True, help="Show the rate limits that workers share, and changes."
)
@json_option
@with_app
def workers(app: handle.App, ended: bool, limits: bool, as_json: bool) -> None:
    """List the workers that are alive, and how many runs each works on.

    A draining worker was told to stop. A faulty worker takes no new runs because something is wrong
    with its host; the list says what. A dead worker did not renew its lease in time. Below the
    workers, the list shows the rate limits of the API and of jobs that hold calls back.

    \b
    Example:
      runner workers
      runner workers --all --json
      runner workers --limits
    """
    pools, events = app_doctor.list_rate_limits(app)
    if limits:
        _say_limits(pools, events, as_json)
        return
    found = app_doctor.list_workers(app, ended=ended)
    names = ("worker", "host", "pid", "version", "state", "slots", "runs", "since", "heartbeat")
    spare = ("version", "slots", "pid", "since", "heartbeat")
    columns = (*names, "detail")
    say_listing(found, as_json, columns, _worker_row, spare=spare, empty=_NO_WORKER)
    for pool in () if as_json else pools:
        say(_pool_line(pool))


def _say_limits(
    pools: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]], as_json: bool
) -> None:
    if as_json:
        say_json({"limits": pools, "events": events})
        return
    for pool in pools:
        say(_pool_line(pool))
    rows = (
        (
            moment(event["at"]),
            event["group"],
            event["type"],
            ", ".join(_change(*change) for change in event["data"].items()),
        )
        for event in events
    )
    say_table(("at", "group", "event", "detail"), rows)


def _change(name: str, value: Any) -> str:
    if value is None:
        return f"{name} none"
    if isinstance(value, str):
        return value.replace("_", " ")
    return f"{name} {moment(value) if name == 'until' else f'{value:,.0f}'}"


def _pool_line(pool: Mapping[str, Any]) -> str:
    """A pool of rate limits in one line."""
    of = f" of {pool['organization']}" if pool["organization"] else ""
    parts = [
        f"{limit['limit']:,.0f} {kind.replace('_', ' ')} a minute ({limit['left']:,.0f} left)"
        for kind, limit in pool["limits"].items()
    ]
    if pool["concurrency"] is not None:
        parts.append(f"{plural(math.floor(pool['concurrency']), 'call')} at once")
    parts.append(f"{pool['under_way']:,} under way, {pool['waiting']:,} waiting")
    if pool["held_until"] is not None:
        parts.append(f"all held back until {moment(pool['held_until'])}")
    return cell(f"limits for {pool['group']}{of}: {'; '.join(parts)}")


def _worker_row(worker: Mapping[str, Any]) -> tuple[Any, ...]:
    detail = ""
    if worker["state"] == "draining":
        detail = f"since {moment(worker['draining_at'])}"
    elif worker["state"] == "ended":
        detail = moment(worker["ended_at"])
    if worker["fault"] is not None:
        fault = f"{worker['fault']} (since {moment(worker['fault_at'])})"
        detail = ", ".join(filter(None, (detail, fault)))
    if worker["job_id"] is not None:
        detail = ", ".join(filter(None, (detail, f"only job {worker['job_id'][-8:]}")))
    columns = ("id", "hostname", "pid", "version", "state", "slots")
    times = (moment(worker[name]) for name in ("started_at", "heartbeat_at"))
    return *(worker[name] for name in columns), len(worker["runs"]), *times, detail


@click.command()
@click.option(
    "--older-than",
    metavar="DURATION",
    callback=lambda _context, _parameter, text: text and seconds(text, math.inf),
    help="Remove jobs whose last run ended at least this long ago: 90d, 12h.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@click.option("--force", is_flag=True, help="Also remove jobs with changes saved nowhere else.")
@changing
def prune(
    app: handle.App,
    older_than: float | None,
    dry_run: bool,
    force: bool,
    author: Author,
    as_json: bool,
) -> None:
    """Remove jobs that ended long ago: runs, outputs, workspaces, snapshots and search rows.

    Removes whole jobs. Keeps a job, and says why, if a run has not ended or ended too recently, if
    changed files are on no branch, or if files are on another host. Branches and commits in your
    repositories stay. After an interruption, run `prune` again: it continues. Without options, it
    lists the removed jobs, and who removed them.

    \b
    Example:
      runner prune --older-than 90d --dry-run
      runner prune --older-than 90d --reason "retention of 90 days"
    """
    if older_than is None:
        if dry_run or force:
            raise UsageError("--dry-run and --force need --older-than")
        _say_pruned(app, as_json)
        return
    options: Any = {"force": force, "dry_run": dry_run, "warn": lambda line: note(cell(line))}
    jobs = app_prune.prune(app, older_than, author, **options)
    if as_json:
        for job in jobs:
            say_json(job, on_one_line=True)
        return
    done, found = "would be removed" if dry_run else "removed", []
    for job in jobs:
        found.append(job)
        columns = (job["id"], job["name"], moment(job["ended_at"]), job["why_kept"] or done)
        say("  ".join(map(cell, columns)))
    gone = [job for job in found if not job["why_kept"]]
    sums = (sum(job[name] for job in gone) for name in ("runs", "messages", "workspaces"))
    counts = "{:,} runs, {:,} messages, {:,} workspaces".format(*sums)
    note(f"{len(gone)} of {plural(len(found), 'job')} {done}: {counts}")


def _say_pruned(app: handle.App, as_json: bool) -> None:
    say_listing(
        app_prune.pruned(app),
        as_json,
        ("job", "name", "runs", "ended", "pruned", "by", "reason"),
        lambda job: (
            *(job[name] for name in ("job_id", "name", "runs")),
            *(moment(job[name]) for name in ("ended_at", "pruned_at")),
            *(job[name] for name in ("pruned_by", "why")),
        ),
        empty="nothing was pruned yet: `runner prune --older-than 90d` removes jobs",
    )


@click.command()
@global_options
def schema() -> None:
    """Print the JSON Schema of job files, so that editors check and complete them.

    A TOML plugin finds the schema by the first line of a job file: "#:schema ./job.schema.json".

    \b
    Example:
      runner schema > job.schema.json
    """
    from runner.jobfile.keys import json_schema

    say_json(json_schema())


SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@global_options
@click.pass_context
def completion(context: click.Context, shell: str | None) -> None:
    """Print the completion script for a shell (default: the one that SHELL names).

    Completes commands, options, states, job names, and items (JOB/ITEM) of the database in use.

    \b
    Example:
      eval "$(runner completion bash)"                  in ~/.bashrc
      runner completion fish > ~/.config/fish/completions/runner.fish
    """
    name = shell or PurePath(os.environ.get("SHELL", "")).name
    found = get_completion_class(name) if name in SHELLS else None
    if found is None:
        raise UsageError(f"no completion for the shell {name[:40]!a}: name bash, zsh or fish")
    root = context.find_root()
    say_bytes(found(root.command, {}, "runner", "_RUNNER_COMPLETE").source().encode())

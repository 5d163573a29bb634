"""``workspace``: the folders that runs work in, and clearing away what is done with."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from runner.cli.control import measured_now
from runner.cli.options import json_option, signed, stored, with_settings
from runner.cli.terminal import note, say_json, say_table
from runner.core.run import Author
from runner.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runner.store.database import Database
    from runner.workspace.leftovers import Leftover


_job_option = click.option("--job", metavar="JOB", help="Only those of this job's runs.")


@click.group()
def workspace() -> None:
    """The workspaces that runs have of their own on this host (modes "git" and "copy").

    \b
    Example:
      runner workspace list
    """


@workspace.command("list")
@_job_option
@json_option
@with_settings
def list_(settings: Settings, job: str | None, as_json: bool) -> None:
    """List workspaces: whose they are, how large, and what in them is saved nowhere else.

    \b
    Example:
      runner workspace list --job job_01jd9k
    """
    from runner.workspace.leftovers import list_workspaces

    with stored(settings) as database:
        environment = _environment(settings)
        job_id = _job_id(database, job)
        found = list_workspaces(database, settings.home, environment, job_id=job_id)
    if as_json:
        say_json([_as_json(each) for each in found])
        return
    columns = ("run", "item", "state", "branch", "size", "unsaved")
    say_table(columns, ((*_named(each), _size(each), each.unsaved) for each in found))


@workspace.command()
@_job_option
@click.option("--force", is_flag=True, help="Also those with work that is saved nowhere else.")
@signed
@json_option
@with_settings
def prune(settings: Settings, job: str | None, force: bool, author: Author, as_json: bool) -> None:
    """Remove the workspaces of runs that have ended.

    One with work that is saved nowhere else is kept, and said why; --force removes it. Branches and
    recorded files stay: a run that is taken up again gets its workspace back. Workspaces of runs that
    have not ended are never removed.

    \b
    Example:
      runner workspace prune --job job_01jd9k
    """
    from runner.workspace.leftovers import prune as prune_workspaces

    with stored(settings) as database:
        environment = _environment(settings)
        job_id = _job_id(database, job)
        pruned = prune_workspaces(
            *(database, settings.home, environment, measured_now(database)),
            author=author,
            job_id=job_id,
            force=force,
        )
    if as_json:
        say_json(
            [
                {**_as_json(each.leftover), "removed": each.removed, "why_kept": each.why_kept}
                for each in pruned
            ]
        )
        return
    columns = ("run", "item", "state", "branch", "")
    say_table(columns, ((*_named(p.leftover), p.why_kept or "removed") for p in pruned))
    note(f"{sum(each.removed for each in pruned)} of {len(pruned)} workspaces removed")


def _environment(settings: Settings) -> Mapping[str, str]:
    from runner.tools.environment import tool_environment

    return tool_environment(os.environ, settings.secrets())


def _job_id(database: Database, job: str | None) -> str | None:
    from runner.queries.find import find

    return None if job is None else find(database, job, "job").id


def _named(leftover: Leftover) -> tuple[str, str, str, str]:
    """The run, its item, its state and its branch, as far as they are known."""
    run = leftover.run
    if run is None:
        return leftover.run_id, "", "", ""
    return leftover.run_id, run.item_key, run.state, (run.record and run.record.branch) or ""


def _as_json(leftover: Leftover) -> dict[str, Any]:
    _, item_key, state, branch = _named(leftover)
    run = leftover.run
    return {
        "run_id": leftover.run_id,
        "job_id": run and run.job_id,
        "job_name": run and run.job_name,
        "item_key": item_key or None,
        "state": state or None,
        "branch": branch or None,
        "path": str(leftover.path),
        "here": leftover.here,
        "bytes": leftover.size(),
        "unsaved": leftover.unsaved or None,
    }


def _size(leftover: Leftover) -> str:
    """The size of its files: ``12.3 MB``."""
    if not leftover.here:
        return "gone"
    size = float(leftover.size())
    for unit in ("B", "kB", "MB"):
        if size < 1_000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1_000
    return f"{size:.1f} GB"

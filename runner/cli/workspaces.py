"""``workspace``: the folders that runs work in, and removing those that are done with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from runner.cli.options import json_option, signed, with_app
from runner.cli.terminal import note, say_json, say_table
from runner.core.run import Author

if TYPE_CHECKING:
    from runner.app.handle import App

_NAMES = ("run_id", "item_key", "state", "branch")


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
@with_app
def list_(app: App, job: str | None, as_json: bool) -> None:
    """List workspaces: whose they are, how large, and what in them is saved nowhere else.

    \b
    Example:
      runner workspace list --job job_01jd9k
    """
    from runner.app.workspaces import list_workspaces

    found = list_workspaces(app, job)
    if as_json:
        say_json(found)
        return
    columns = ("run", "item", "state", "branch", "size", "unsaved")
    say_table(columns, ((*_named(each), _size(each), each["unsaved"]) for each in found))


@workspace.command()
@_job_option
@click.option("--force", is_flag=True, help="Also those with work that is saved nowhere else.")
@signed
@json_option
@with_app
def prune(app: App, job: str | None, force: bool, author: Author, as_json: bool) -> None:
    """Remove the workspaces of runs that have ended.

    One with work that is saved nowhere else is kept, and said why; --force removes it. Branches and
    recorded files stay: a run that is taken up again gets its workspace back. Workspaces of runs that
    have not ended are never removed.

    \b
    Example:
      runner workspace prune --job job_01jd9k
    """
    from runner.app.workspaces import prune_workspaces

    pruned = prune_workspaces(app, job, author, force=force)
    if as_json:
        say_json(pruned)
        return
    columns = ("run", "item", "state", "branch", "")
    say_table(columns, ((*_named(each), each["why_kept"] or "removed") for each in pruned))
    note(f"{sum(each['removed'] for each in pruned)} of {len(pruned)} workspaces removed")


def _named(workspace: Mapping[str, Any]) -> list[Any]:
    return [workspace[name] for name in _NAMES]


def _size(workspace: Mapping[str, Any]) -> str:
    """Return the size of its files: ``12.3 MB``."""
    if not workspace["here"]:
        return "gone"
    size = float(workspace["bytes"])
    for unit in ("B", "kB", "MB"):
        if size < 1_000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1_000
    return f"{size:.1f} GB"

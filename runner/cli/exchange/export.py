"""``export``: taking jobs and runs away in files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

import runner
from runner.app.humanize import cell
from runner.cli.exchange.writing import output
from runner.cli.options import stored, with_settings
from runner.cli.out.files import file_names, make_folder
from runner.cli.terminal import note
from runner.core.agents.place import place_of, tree_order
from runner.errors import UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.core.money.prices import PriceList
    from runner.exchange.recorded import Recorded
    from runner.queries.find import Found
    from runner.store.connection.database import Database

Format = Literal["jsonl", "messages", "atif", "claude-code"]

_SUFFIXES: dict[str, str] = {
    "jsonl": ".jsonl",
    "messages": ".json",
    "atif": ".json",
    "claude-code": ".jsonl",
}
_SECRETS = "what was said and read is in it, secrets among it"


@click.command("export")
@click.argument("id", metavar="RUN|JOB")
@click.option(
    "--format",
    "shape",
    type=click.Choice(list(_SUFFIXES)),
    default="jsonl",
    show_default=True,
    help="Runner's own (all of it), the Messages API's list, a trajectory (ATIF 1.7), or a session of "
    "Claude Code's.",
)
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE|DIR",
    help="Where to write to (default: stdout). A job in another format than jsonl needs a folder.",
)
@with_settings
def export(settings: Settings, id: str, shape: Format, path: Path | None) -> None:
    """Write a run, or a job with its runs, in a format that others read.

    `jsonl` loses nothing: `runner import` makes the same of it in another database. The other formats
    are for other programs, one file for each run. All hold what was said and what tools gave, with
    whatever secrets are in it: files are made for their owner alone.

    \b
    Example:
      runner export k3x9f2 -o run.jsonl
      runner export nightly --format atif -o trajectories
    """
    from runner.queries.find import find

    with stored(settings) as database:
        found = find(database, id, "job", "run")
        if shape == "jsonl":
            _export_whole(database, found, path)
        else:
            from runner import wiring

            _export_each(database, wiring.load_prices(settings), found, shape, path)


def _export_whole(database: Database, found: Found, path: Path | None) -> None:
    from runner.store.exchange.taking import export as take

    if path is not None and path.is_dir():
        path = path / f"{found.id}.jsonl"
    with output(path) as write:
        if found.kind == "job":
            run_ids = take(database, job_id=found.id, write=write)
        else:
            run_ids = take(database, run_id=found.id, write=write)
    _note(run_ids, path)


def _export_each(
    database: Database, prices: PriceList, found: Found, shape: Format, path: Path | None
) -> None:
    from runner.store.exchange.recorded import load_recorded, run_ids

    if found.kind == "run":
        recorded = load_recorded(database, found.id, prices)
        if path is not None and path.is_dir():
            names = file_names([(found.id, str(recorded.run["item_key"]))], _SUFFIXES[shape])
            path = path / _name(recorded, shape, names)
        _write(database, recorded, shape, path)
        _note([found.id], path)
        return
    if path is None:
        raise UsageError(f"{found.id} is a job: say with -o which folder its runs are written to")
    make_folder(path)
    # A trajectory has those of its sub-agents in it.
    keys = [
        (run_id, key)
        for run_id, key in run_ids(database, found.id)
        if shape != "atif" or place_of(run_id)["parent"] is None
    ]
    names = file_names(keys, _SUFFIXES[shape])
    written: set[str] = set()
    for run_id, _ in keys:
        recorded = load_recorded(database, run_id, prices)
        name = _name(recorded, shape, names)
        if name in written:
            raise UsageError(
                f"{run_id} says that it is the same session as another run, {name}: export it alone, "
                "into another folder"
            )
        written.add(name)
        _write(database, recorded, shape, path / name)
    _note([run_id for run_id, _ in keys], path)


def _name(recorded: Recorded, shape: Format, names: dict[str, str]) -> str:
    """Claude Code finds a session by its file's name."""
    if shape != "claude-code":
        return names[recorded.id]
    from runner.exchange.claude_code import agent_id, session_id

    if recorded.run["parent_run"] is not None:
        return f"agent-{agent_id(recorded)}.jsonl"
    agent = agent_id(recorded)
    return f"agent-{names[recorded.id]}" if agent else f"{session_id(recorded)}.jsonl"


def _write(database: Database, recorded: Recorded, shape: Format, path: Path | None) -> None:
    with output(path) as write:
        for part in _parts(database, recorded, shape):
            write(part)


def _parts(database: Database, recorded: Recorded, shape: Format) -> Iterator[bytes]:
    """ASCII only, so that no terminal obeys what is in it."""
    match shape:
        case "atif":
            yield json.dumps(_trajectory(database, recorded), indent=2).encode() + b"\n"
        case "claude-code":
            from runner.exchange.claude_code import session_lines
            from runner.exchange.lines import encoded

            yield from map(encoded, session_lines(recorded, runner.__version__))
        case _:
            from runner.queries.transcript import api_messages

            yield json.dumps(api_messages(database, recorded.id), indent=2).encode() + b"\n"


def _trajectory(database: Database, recorded: Recorded) -> dict[str, Any]:
    """The trajectory of a run, with those of all below it."""
    from runner.exchange.atif import trajectory
    from runner.store.exchange.recorded import load_recorded

    children = sorted(
        (child for started in recorded.children.values() for child in started), key=tree_order
    )
    below = [
        _trajectory(database, load_recorded(database, child, recorded.prices)) for child in children
    ]
    return trajectory(recorded, runner.__version__, below)


def _note(run_ids: Sequence[str], path: Path | None) -> None:
    below = sum(place_of(run_id)["depth"] > 0 for run_id in run_ids)
    count = len(run_ids) - below
    told = [f"{count:,} {'run' if count == 1 else 'runs'}"] if count else []
    told += [f"{below:,} {'sub-agent' if below == 1 else 'sub-agents'}"] if below else []
    where = "" if path is None else f" to {cell(path)}"
    note(f"{' and '.join(told) or 'no runs'} written{where}: {_SECRETS}")

"""``export``: taking jobs and runs away in files.

``import``: bringing in runs of another database, and sessions of Claude Code's.

Writing exports: to stdout, or to files that only their owner can read.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import click

from runner.cli import exit_codes
from runner.cli.control import measured_now
from runner.cli.options import json_option, signed, with_settings
from runner.cli.terminal import note, refuse, say_json, say_table
from runner.core.run import Author
from runner.errors import UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.store.database import Database
import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import runner
from runner.app.humanize import cell
from runner.cli.options import stored
from runner.cli.patch import file_names, make_folder
from runner.core.agents import place_of, tree_order

if TYPE_CHECKING:
    from runner.core.prices import PriceList
    from runner.exchange.recorded import Recorded
    from runner.queries.find import Found
    from runner.store.database import Database


ImportFormat = Literal["jsonl", "claude-code"]

_STDIN = "-"


@click.command("import")
@click.argument("files", metavar="FILE…", nargs=-1, required=True)
@click.option(
    "--format",
    "shape",
    type=click.Choice(["jsonl", "claude-code"]),
    help="What the files are (default: what they look like).",
)
@signed
@json_option
@with_settings
def import_(
    settings: Settings,
    files: Sequence[str],
    shape: ImportFormat | None,
    as_json: bool,
    author: Author,
) -> int:
    """Bring in runs that `runner export` wrote, or sessions that Claude Code keeps.

    Each file is looked through before anything of it is stored; one with a bad line is refused whole,
    and the others are brought in. What is here already stays as it is, so that a file can be brought in
    again. A run that had not ended is cancelled here: it goes on where it was exported. Sessions
    become runs of a job named claude-code, with their project as item.

    \b
    Example:
      runner import run.jsonl
      runner import ~/.claude/projects/*/*.jsonl
    """
    from runner import wiring

    database = wiring.open_database(settings, upgrade=True)
    try:
        brought, refused = _bring(database, files, shape, author)
    finally:
        database.close()
    if as_json:
        say_json({"runs": brought, "refused": refused})
    elif brought:
        say_table(
            ("run", "state", "what", "job", "file"),
            [
                [one[name] for name in ("run_id", "state", "what", "job_id", "file")]
                for one in brought
            ],
        )
    return exit_codes.USAGE if refused else exit_codes.SUCCEEDED


def _bring(
    database: Database, files: Sequence[str], shape: ImportFormat | None, author: Author
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """What became of each run, and the files that were refused with why."""
    brought: list[dict[str, Any]] = []
    refused: list[dict[str, str]] = []
    for name in files:
        try:
            found = _bring_one(database, name, shape, author)
        except UsageError as error:
            refuse(error)
            refused.append({"file": name, "why": str(error)})
        else:
            brought += [{**asdict(each), "file": name} for each in found]
    return brought, refused


def _bring_one(
    database: Database, name: str, shape: ImportFormat | None, author: Author
) -> Sequence[Any]:
    from runner.store.imports import import_file

    source = "stdin" if name == _STDIN else name
    now = measured_now(database)
    with _opened(name) as file:
        if (shape or _shape_of(file, source)) == "jsonl":
            return import_file(database, file, source, author, now)
        return _bring_session(database, file, source, author, now)


def _bring_session(
    database: Database, file: IO[bytes], source: str, author: Author, now: float
) -> Sequence[Any]:
    from runner.exchange.session_runs import read_sessions, session_file
    from runner.store.imports import import_sessions

    reading = session_file(file)
    try:
        session = read_sessions(reading)
    except ValueError as error:
        raise UsageError(
            f"{source}, line {reading.number}: {error}; nothing was imported"
        ) from error
    if session.is_torn:
        note(f"{source}: its last line is not whole and was left out: import it again later")
    return import_sessions(database, session, source, author, now)


def _shape_of(file: IO[bytes], source: str) -> ImportFormat:
    """What a file looks like, by its first line.

    Raises:
        UsageError: like nothing that is known.
    """
    from runner.exchange.lines import LONGEST_LINE, is_export
    from runner.exchange.sessions import looks_like_a_session

    first = file.readline(LONGEST_LINE)
    file.seek(0)
    if is_export(first):
        return "jsonl"
    if looks_like_a_session(first):
        return "claude-code"
    raise UsageError(
        f"{source} is neither an export of Runner's nor a session of Claude Code's: its first line "
        "is neither's (say with --format what it is)"
    )


@contextmanager
def _opened(name: str) -> Iterator[IO[bytes]]:
    """A file that can be read twice; of what cannot, such as a pipe, a copy.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        if name == _STDIN:
            with _copied(sys.stdin.buffer) as copy:
                yield copy
            return
        with Path(name).open("rb", buffering=0) as raw:
            if raw.seekable():
                with io.BufferedReader(raw) as file:
                    yield file
            else:
                with _copied(raw) as copy:
                    yield copy
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}") from error


@contextmanager
def _copied(source: IO[bytes]) -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(source, copy)
        copy.seek(0)
        yield copy


_LONGEST_NAME = 100

Write = Callable[[bytes], object]


@contextmanager
def private_file(path: Path) -> Iterator[Write]:
    """A file that is there whole when the block ends, and not at all when it raises. A link at
    ``path`` is replaced and not followed.

    Raises:
        UsageError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name[:_LONGEST_NAME]}.{os.getpid()}")
    try:
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(number, "wb") as file:
                yield file.write
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def output(path: Path | None) -> Iterator[Write]:
    """A file, or stdout for None."""
    if path is not None:
        with private_file(path) as write:
            yield write
        return
    sys.stdout.flush()
    yield sys.stdout.buffer.write
    sys.stdout.buffer.flush()


ExportFormat = Literal["jsonl", "messages", "atif", "claude-code"]

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
def export(settings: Settings, id: str, shape: ExportFormat, path: Path | None) -> None:
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
    from runner.store.exports import export as take

    if path is not None and path.is_dir():
        path = path / f"{found.id}.jsonl"
    with output(path) as write:
        if found.kind == "job":
            run_ids = take(database, job_id=found.id, write=write)
        else:
            run_ids = take(database, run_id=found.id, write=write)
    _note(run_ids, path)


def _export_each(
    database: Database, prices: PriceList, found: Found, shape: ExportFormat, path: Path | None
) -> None:
    from runner.store.exports import load_recorded, run_ids

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


def _name(recorded: Recorded, shape: ExportFormat, names: dict[str, str]) -> str:
    """Claude Code finds a session by its file's name."""
    if shape != "claude-code":
        return names[recorded.id]
    from runner.exchange.claude_code import agent_id, session_id

    if recorded.run["parent_run"] is not None:
        return f"agent-{agent_id(recorded)}.jsonl"
    agent = agent_id(recorded)
    return f"agent-{names[recorded.id]}" if agent else f"{session_id(recorded)}.jsonl"


def _write(database: Database, recorded: Recorded, shape: ExportFormat, path: Path | None) -> None:
    with output(path) as write:
        for part in _parts(database, recorded, shape):
            write(part)


def _parts(database: Database, recorded: Recorded, shape: ExportFormat) -> Iterator[bytes]:
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
    from runner.store.exports import load_recorded

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

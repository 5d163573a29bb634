"""``import``: bringing in runs of another database, and sessions of Claude Code's."""

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
from runner.cli.authors import signed
from runner.cli.control import measured_now
from runner.cli.options import json_option, with_settings
from runner.cli.terminal import note, refuse, say_json, say_table
from runner.core.author import Author
from runner.errors import UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.store.connection.database import Database

Format = Literal["jsonl", "claude-code"]

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
    settings: Settings, files: Sequence[str], shape: Format | None, as_json: bool, author: Author
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
    database: Database, files: Sequence[str], shape: Format | None, author: Author
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
    database: Database, name: str, shape: Format | None, author: Author
) -> Sequence[Any]:
    from runner.store.exchange.bringing import bring_in

    source = "stdin" if name == _STDIN else name
    now = measured_now(database)
    with _opened(name) as file:
        if (shape or _shape_of(file, source)) == "jsonl":
            return bring_in(database, file, source, author, now)
        return _bring_session(database, file, source, author, now)


def _bring_session(
    database: Database, file: IO[bytes], source: str, author: Author, now: float
) -> Sequence[Any]:
    from runner.exchange.sessions.runs import read_sessions, session_file
    from runner.store.exchange.sessions import bring_in_sessions

    reading = session_file(file)
    try:
        session = read_sessions(reading)
    except ValueError as error:
        raise UsageError(
            f"{source}, line {reading.number}: {error}; nothing was imported"
        ) from error
    if session.is_torn:
        note(f"{source}: its last line is not whole and was left out: import it again later")
    return bring_in_sessions(database, session, source, author, now)


def _shape_of(file: IO[bytes], source: str) -> Format:
    """What a file looks like, by its first line.

    Raises:
        UsageError: like nothing that is known.
    """
    from runner.exchange.lines import LONGEST_LINE, is_export
    from runner.exchange.sessions.lines import looks_like_a_session

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

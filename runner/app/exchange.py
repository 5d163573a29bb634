"""Exports of runs and jobs, and imports of them and of Claude Code's sessions."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal

import runner
from runner.app.handle import App
from runner.app.outputs import file_names
from runner.app.session_files import session_files, session_of, sessions_in, whole_lines
from runner.core.agents import place_of, tree_order
from runner.core.run import Author
from runner.core.text import LONGEST_LINE, as_ascii, json_line, read_json_object
from runner.errors import UsageError
from runner.exchange.atif import trajectory
from runner.exchange.claude_code import agent_id, session_id, session_lines
from runner.exchange.recorded import Recorded
from runner.exchange.session_lines import UnreadableLineError
from runner.exchange.sessions import EmptySessionError
from runner.queries.costs import known_costs
from runner.queries.names import Found
from runner.queries.transcript import api_messages, show_run
from runner.store import exports
from runner.store.imports import import_file as store_file
from runner.store.sessions import import_session

ImportFormat = Literal["jsonl", "claude-code"]
ExportFormat = Literal["messages", "atif", "claude-code"]

_PLAIN = re.compile(r"[\w-]{1,80}", re.ASCII)  # an agent's id that a file can be named after
_SUFFIXES: Mapping[ExportFormat, str] = {
    "messages": ".json",
    "atif": ".json",
    "claude-code": ".jsonl",
}


def import_file(
    app: App,
    file: IO[bytes],
    source: str,
    format: ImportFormat | None,
    author: Author,
    path: Path | None = None,
    *,
    skips_empty: bool = False,
) -> tuple[list[dict[str, Any]], bool]:
    """Import the runs of Runner's export or of a Claude Code session; the default format is that of
    the first line. The file is read twice; ``source`` names it in messages, and beside ``path`` are the
    files of the session's agents; ``skips_empty`` passes over a session in which nothing was said.
    Return the result for each run, and True if an incomplete last line was left out. Raises
    ``UsageError``, with nothing stored, for a bad line or format."""
    now = app.now()
    if path is not None and path.name.startswith("agent-") and (session := session_of(path)):
        with session.open("rb") as of_session:  # it comes with its session
            return import_file(app, of_session, str(session), format, author, session)
    format = format or _format_of(file.readline(LONGEST_LINE))
    file.seek(0)
    if format == "jsonl":
        runs: Sequence[Any] = store_file(app.database, file, source, author, now)
        return [asdict(each) for each in runs], False
    if format is None:
        raise UsageError(
            f"{source} is neither an export of Runner's nor a session of Claude Code's: its first "
            "line is neither's (say with --format what it is)"
        )
    lines, is_torn = whole_lines(file)
    modified = path.stat().st_mtime if path is not None else now
    files = {"": lines} if path is None else session_files(path, lines)
    try:
        runs = import_session(app.database, files, source, author, now, modified, app.prices())
    except UnreadableLineError as error:
        where = f"{error.file or source}, line {error.number}"
        raise UsageError(f"{where}: {error}; nothing was imported") from error
    except EmptySessionError as error:
        if skips_empty:
            return [], is_torn
        raise UsageError(f"{source}: {error}; nothing was imported") from error
    return [asdict(each) for each in runs], is_torn


def sessions_folder() -> Path:
    """Return the folder in which Claude Code keeps the sessions of all projects."""
    return Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude") / "projects"


def files_in(folder: Path) -> Sequence[Path]:
    """Return the files in a folder and below it to import, in the order in which to import them."""
    try:
        return sessions_in(folder)
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror or error}") from error


def _format_of(first_line: bytes) -> ImportFormat | None:
    value = read_json_object(first_line) or {}
    if "runner_export" in value:
        return "jsonl"
    return "claude-code" if isinstance(value.get("type"), str) else None


def export_whole(app: App, found: Found, write: Callable[[bytes], object]) -> Sequence[str]:
    """Write a complete export of a job or a run, and return the ids of the runs."""
    named: Any = {f"{found.kind}_id": found.id}
    return exports.export(app.database, write=write, **named)


def export_runs(
    app: App, found: Found, format: ExportFormat
) -> Iterator[tuple[str, str, Iterator[bytes]]]:
    """Yield a run, or the runs of a job, in a format of another program: its id, a name for a file,
    and the parts of the content. A trajectory contains its sub-agents' trajectories. Raises
    ``UsageError`` if two runs would have the same name: they are the same session."""
    if found.kind == "run":
        keys = [(found.id, str(show_run(app.database, found.id)["item_key"]))]
    else:
        keys = [
            (run_id, key)
            for run_id, key in exports.run_ids(app.database, found.id)
            if format != "atif" or place_of(run_id)["parent"] is None
        ]
    names, written = file_names(keys, _SUFFIXES[format]), set[str]()
    for run_id, name in names.items():
        recorded = exports.load_recorded(app.database, run_id)
        if format == "claude-code":  # it finds a session by its file's name
            agent = agent_id(recorded)
            if agent and found.kind == "job" and recorded.session and not recorded.lines:
                continue  # its lines are in the file of its session
            name = f"agent-{name}" if agent else f"{session_id(recorded)}.jsonl"
            if agent and _PLAIN.fullmatch(agent):
                name = f"agent-{agent}.jsonl"
        if name in written:
            raise UsageError(
                f"{run_id} says that it is the same session as another run, {name}: export it "
                "alone, into another folder"
            )
        written.add(name)
        yield run_id, name, _parts(app, recorded, format)


def _parts(app: App, recorded: Recorded, format: ExportFormat) -> Iterator[bytes]:
    """The content in ASCII only: no terminal obeys it."""
    match format:
        case "atif":
            yield json.dumps(_trajectory(app, recorded), indent=2).encode() + b"\n"
        case "claude-code":
            if recorded.lines:
                yield from map(as_ascii, recorded.lines)
            else:
                yield from map(json_line, session_lines(recorded, runner.__version__))
        case _:
            yield json.dumps(api_messages(app.database, recorded.id), indent=2).encode() + b"\n"


def _trajectory(app: App, recorded: Recorded) -> dict[str, Any]:
    below = [
        _trajectory(app, exports.load_recorded(app.database, child))
        for child in sorted(chain.from_iterable(recorded.children.values()), key=tree_order)
    ]
    costs = known_costs(app.database, app.prices(), recorded.id)
    return trajectory(replace(recorded, costs=costs), runner.__version__, below)

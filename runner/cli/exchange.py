"""``export`` and ``import``: move jobs and runs between databases and programs."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Literal

import click

from runner.app import exchange, handle
from runner.app.humanize import cell, plural
from runner.cli import exit_codes
from runner.cli.options import JOB_OR_RUN, json_option, open_app, signed, with_app, with_settings
from runner.cli.terminal import make_folder, note, output, progress, refuse, say_json, say_table
from runner.core.agents import place_of
from runner.core.run import Author
from runner.errors import UsageError
from runner.settings import Settings

_STDIN = "-"
_SECRETS = "it contains the conversation and what tools read, secrets included"


@click.command("import")
@click.argument("files", metavar="FILE|DIR…", nargs=-1)
@click.option(
    "--format",
    "shape",
    type=click.Choice(["jsonl", "claude-code"]),
    help="Format of the files (default: detected).",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="All sessions of Claude Code on this host: ~/.claude/projects or CLAUDE_CONFIG_DIR.",
)
@signed
@json_option
@with_settings
def import_(
    settings: Settings,
    files: Sequence[str],
    shape: exchange.ImportFormat | None,
    everything: bool,
    as_json: bool,
    author: Author,
) -> int:
    """Import runs from `runner export`, or sessions of Claude Code.

    Runner checks each file before it stores anything of it, refuses a file with a bad line, and
    imports the others. Stored rows do not change, so you can import a file again. A run that had
    not ended is cancelled here; it can continue where it was exported. A session becomes a run of a
    job named claude-code, with its project as item; the sub-agents of a session are imported with
    it. For a DIR, Runner imports all files in it and its sub-folders, but skips unchanged ones that
    it has imported before.

    \b
    Example:
      runner import run.jsonl
      runner import ~/.claude/projects/-home-ann-app
      runner import --all
    """
    folders = [*([str(exchange.sessions_folder())] if everything else []), *files]
    if not folders:
        raise UsageError("nothing to import: name a FILE or a DIR, or say --all")
    done = _Imported()
    with open_app(settings, create=True) as app:
        for name in folders:
            if name == _STDIN or not Path(name).is_dir():
                done.add(app, name, shape, author)
                continue
            found = exchange.files_in(Path(name))
            with progress("importing") as show:
                for count, path in enumerate(found, 1):
                    done.add(app, str(path), shape, author, in_folder=True)
                    show(count, len(found))
            done.has_folders = True
    if as_json:
        say_json({"runs": done.runs, "refused": done.refused})
    else:
        done.say()
    return exit_codes.USAGE if done.refused else exit_codes.SUCCEEDED


class _Imported:
    """The imported runs, and the refused files."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.refused: list[dict[str, str]] = []
        self.has_folders = False

    def add(
        self,
        app: handle.App,
        name: str,
        shape: exchange.ImportFormat | None,
        author: Author,
        *,
        in_folder: bool = False,
    ) -> None:
        source = "stdin" if name == _STDIN else name
        path = None if name == _STDIN else Path(name)
        try:
            with _opened(name) as file:
                imported, is_torn = exchange.import_file(
                    app, file, source, shape, author, path, skips_empty=in_folder
                )
        except UsageError as error:
            refuse(error)
            self.refused.append({"file": name, "why": str(error)})
            return
        if is_torn:
            note(f"{source}: its last line is not whole and was left out: import it again later")
        for run in imported:
            for warning in run.get("warnings", ()):
                note(f"{cell(source)}: {cell(warning)}")
        self.runs += [{**each, "file": name} for each in imported]

    def say(self) -> None:
        """Print a table of the runs; of folders, a line for each project."""
        if not self.has_folders:
            names = ("run_id", "state", "what", "job_id", "file")
            if self.runs:
                of_runs = ([run[name] for name in names] for run in self.runs)
                say_table(("run", "state", "what", "job", "file"), of_runs)
            return
        kinds = ("imported", "continued", "there", "sub-agents")
        projects: dict[str, Counter[str]] = {}
        for run in self.runs:
            kind = "sub-agents" if place_of(run["run_id"])["parent"] else run["what"]
            projects.setdefault(run.get("project", run["job_id"]), Counter())[kind] += 1
        empty = "no sessions found: Claude Code keeps them in ~/.claude/projects"
        table = (
            [project, *(counts[kind] for kind in kinds)] for project, counts in projects.items()
        )
        say_table(("project", *kinds), table, numbers=range(1, 5), empty=empty)


@contextmanager
def _opened(name: str) -> Iterator[IO[bytes]]:
    """Open a file, or a copy of one that cannot be read twice (a pipe). Raises ``UsageError``."""
    with ExitStack() as opened:
        try:
            file: IO[bytes] = sys.stdin.buffer
            if name != _STDIN:
                file = opened.enter_context(Path(name).open("rb"))
            if name == _STDIN or not file.seekable():
                copy = opened.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(file, copy)
                copy.seek(0)
                file = copy
            yield file
        except OSError as error:
            raise UsageError(f"{name} cannot be read: {error.strerror or error}") from error


@click.command("export")
@click.argument("id", type=JOB_OR_RUN, metavar="RUN|JOB")
@click.option(
    "--format",
    "shape",
    type=click.Choice(["jsonl", "messages", "atif", "claude-code"]),
    default="jsonl",
    show_default=True,
    help="Runner's own format (complete), messages as in the Messages API, an ATIF 1.7 trajectory, or "
    "a session of Claude Code.",
)
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE|DIR",
    help="File or folder (default: stdout). A job needs a folder in all formats but jsonl.",
)
@with_app
def export(
    app: handle.App, id: str, shape: exchange.ExportFormat | Literal["jsonl"], path: Path | None
) -> None:
    """Write a run, or a job with all its runs, to files.

    A `jsonl` file is complete: `runner import` restores it in another database. The other formats
    are for other programs, with one file for each run. All formats contain the conversation and the
    tool output, secrets included, so only you can read the files.

    \b
    Example:
      runner export k3x9f2 -o run.jsonl
      runner export nightly --format atif -o trajectories
    """
    found = app.find(id, "job", "run")
    folder = path if path is not None and path.is_dir() else None
    if shape == "jsonl":
        path = path if folder is None else folder / f"{found.id}.jsonl"
        with output(path) as write:
            run_ids = [*exchange.export_whole(app, found, write)]
    else:
        if found.kind == "job":
            if path is None:
                raise UsageError(
                    f"{found.id} is a job: say with -o which folder its runs are written to"
                )
            make_folder(path)
            folder = path
        run_ids = []
        for run_id, name, parts in exchange.export_runs(app, found, shape):
            file = path if folder is None else folder / name
            with output(file) as write:
                for part in parts:
                    write(part)
            run_ids.append(run_id)
        path = folder if found.kind == "job" else file
    below = sum(place_of(run_id)["depth"] > 0 for run_id in run_ids)
    told = [plural(len(run_ids) - below, "run")] if len(run_ids) > below else []
    told += [plural(below, "sub-agent")] if below else []
    where = "" if path is None else f" to {cell(path)}"
    note(f"{' and '.join(told) or 'no runs'} written{where}: {_SECRETS}")

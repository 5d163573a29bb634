"""``diff``, ``patch`` and ``results``: what runs changed, and what they submitted."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from runner.cli import exit_codes
from runner.cli.audit import harmless
from runner.cli.files import make_folder, write_file
from runner.cli.options import json_option, state_option, with_app
from runner.cli.terminal import note, say_bytes, say_json, say_table
from runner.core.run import RunStatus

if TYPE_CHECKING:
    from runner.app.handle import App
    from runner.app.outputs import Results

PatchFormat = Literal["am", "preds"]
ResultFormat = Literal["jsonl", "json", "csv"]

_COLUMNS = ("run_id", "item_key", "state", "reason", "fork_of")


@click.command()
@click.argument("run")
@click.option(
    "--turn", type=click.IntRange(1), metavar="N", help="Only what was changed in that turn."
)
@click.option("--stat", is_flag=True, help="Only how many lines of which files.")
@with_app
def diff(app: App, run: str, turn: int | None, stat: bool) -> None:
    """Show what a run has changed in its workspace since its first turn, as it is recorded now.

    It needs a workspace of the run's own (mode "git" or "copy"). Into a file or a pipe it is written
    byte for byte, binary files too, as `git apply` takes it; at a terminal control characters are shown.

    \b
    Example:
      runner diff k3x9f2 --stat
      runner diff k3x9f2 --turn 12
    """
    from runner.app.outputs import diff_of

    found = diff_of(app, run, turn, stat=stat)
    for path in found.too_large:
        note(f"not shown: {path}, which is too large to be recorded whole")
    for path in found.unrecorded:
        note(f"not shown: what is in {path}, of which nothing is recorded")
    if not found.content and not found.too_large:
        note("nothing was changed" + (f" in turn {turn}" if turn else ""))
    say_bytes(found.content)


@click.command()
@click.argument("id", metavar="RUN|JOB")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="The folder to write to; it is made.",
)
@click.option(
    "--format",
    "shape",
    type=click.Choice(["am", "preds"]),
    default="am",
    show_default=True,
    help="A file for each run that `git am` takes, or one file of predictions for SWE-bench's tools.",
)
@state_option
@json_option
@with_app
def patch(
    app: App, id: str, output: Path, shape: PatchFormat, state: RunStatus | None, as_json: bool
) -> int:
    """Write what a run, or each run of a job that has ended, has changed.

    A patch is one commit on top of the job's base, with the message and the author of the one
    that the run was delivered in. Runs that changed nothing are named; they get no patch, and a
    prediction that is empty.

    \b
    Example:
      runner patch job_01jd9k -o patches --state succeeded
      git switch -c landing && git am patches/src-a.py.patch
      runner patch job_01jd9k -o out --format preds
    """
    from runner.app.outputs import runs_to_patch, write_patches

    runs = runs_to_patch(app, id, state)
    make_folder(output)
    written = write_patches(
        app, runs, shape, lambda name, content: write_file(output / name, content)
    )
    if as_json:
        say_json([asdict(each) for each in written])
    else:
        columns = ("run", "item", "state", "file", "")
        say_table(columns, ((w.run_id, w.item_key, w.state, w.file, w.why) for w in written))
    files = len({each.file for each in written if each.file})
    note(f"{files} {'file' if files == 1 else 'files'} written to {output}")
    return exit_codes.FAILED if any(each.failed for each in written) else exit_codes.SUCCEEDED


@click.command()
@click.argument("job")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write to this file.",
)
@click.option(
    "--format",
    "shape",
    type=click.Choice(["jsonl", "json", "csv"]),
    help="By default that of the file's name, else jsonl.",
)
@with_app
def results(app: App, job: str, output: Path | None, shape: ResultFormat | None) -> None:
    """Export the results that the runs of a job have submitted (`output_schema`).

    There is a line for each run, also for those without a result. In CSV each property of the
    results is a column; what a spreadsheet would take for a formula has a ' in front.

    \b
    Example:
      runner results job_01jd9k -o results.csv
      runner results job_01jd9k | jq .result
    """
    from runner.app.outputs import results_of

    found = results_of(app, job)
    content = _content(found, shape or _shape_of(output))
    if output is None:
        say_bytes(content)
    else:
        write_file(output, content)
    note(f"{found.submitted} of {len(found.runs)} runs have submitted a result")


def _shape_of(output: Path | None) -> ResultFormat:
    suffixes: dict[str, ResultFormat] = {".json": "json", ".csv": "csv"}
    return suffixes.get(output.suffix.lower(), "jsonl") if output else "jsonl"


def _content(found: Results, shape: ResultFormat) -> bytes:
    if shape == "csv":
        return _csv(found)
    values = [asdict(each) for each in found.runs]
    if shape == "json":
        return (json.dumps(values, indent=2) + "\n").encode()
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def _csv(found: Results) -> bytes:
    """A column for each property that the schema names, then for those that results have beside."""
    names = dict.fromkeys(found.schema.get("properties") or {})
    for each in found.runs:
        names |= dict.fromkeys(each.result or {})
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*_COLUMNS, *(f"result.{name}" for name in names)])
    for each in found.runs:
        of_run = (getattr(each, name) for name in _COLUMNS)
        of_result = ((each.result or {}).get(name) for name in names)
        writer.writerow([_cell(value) for value in (*of_run, *of_result)])
    return text.getvalue().encode(errors="backslashreplace")


def _cell(value: Any) -> str:
    """A value as a cell that no spreadsheet runs: numbers stay what they are."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return harmless(value)

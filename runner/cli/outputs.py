"""``diff``, ``patch``, ``results`` and ``workspace``: what runs changed and submitted, and the folders
that they work in."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import click

from runner.app import handle, outputs, workspaces
from runner.app.humanize import cell, diff_kinds, plural
from runner.app.tables import harmless
from runner.cli import exit_codes
from runner.cli.options import (
    JOB,
    JOB_OR_RUN,
    RUN,
    changing,
    json_option,
    output_option,
    state_option,
    with_app,
)
from runner.cli.terminal import (
    diff_lines,
    make_folder,
    note,
    print_lines,
    remove_file,
    say_bytes,
    say_json,
    say_listing,
    say_outcomes,
    say_table,
    write_file,
)
from runner.core.run import ENDED, Author, RunStatus
from runner.workspace.diffs import Form

ResultFormat = Literal["jsonl", "json", "csv"]

_COLUMNS = ("run_id", "item_key", "state", "reason", "fork_of")


@click.command()
@click.argument("run", type=RUN)
@click.option(
    "--turn", type=click.IntRange(1), metavar="N", help="Show only the changes of turn N."
)
@click.option("--stat", is_flag=True, help="Print only the summary: the lines changed per file.")
@click.option(
    "--binary", is_flag=True, help="Print only a patch for `git apply`, with binary files."
)
@click.option("--no-pager", is_flag=True, help="Use no pager at a terminal.")
@with_app
def diff(
    app: handle.App, run: str, turn: int | None, stat: bool, binary: bool, no_pager: bool
) -> None:
    """Show the changes that a run made to its files: a summary with one line per file, then the
    changed lines.

    The run needs a workspace of its own (mode "git" or "copy"). A file or a pipe gets the changes
    byte for byte; a terminal shows colours (NO_COLOR: none) and makes control characters visible.

    \b
    Example:
      runner diff k3x9f2 --stat
      runner diff k3x9f2 --turn 12
      runner diff k3x9f2 --binary | git apply
    """
    if stat and binary:
        raise click.UsageError("--stat gives the summary, --binary the patch: give one of them")
    form: Form = "summary" if stat else "patch" if binary else "shown"
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100
    found = outputs.diff_of(app, run, turn, form, width)
    for path in found.too_large:
        note(f"not shown: {path}, which is too large to be recorded whole")
    for path in found.unrecorded:
        note(f"not shown: the content of {path}, which is not recorded")
    if not found.content and not found.too_large:
        note("nothing was changed" + (f" in turn {turn}" if turn else ""))
    if sys.stdout.isatty():
        text = found.content.decode(errors="backslashreplace")
        print_lines(diff_lines(diff_kinds(text)), paged=not no_pager)
    else:
        say_bytes(found.content)


@click.command()
@click.argument("id", type=JOB_OR_RUN, metavar="RUN|JOB")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="The folder to write to; created if missing.",
)
@click.option(
    "--format",
    "shape",
    type=click.Choice(["am", "preds"]),
    default="am",
    show_default=True,
    help="am: a patch for each run, for `git am`; preds: one file of predictions for SWE-bench's tools.",
)
@state_option
@click.option("--all", "every", is_flag=True, help="Include failed, cancelled and stopped runs.")
@click.option(
    "--clean", is_flag=True, help="Remove old patches from the folder; with RUN only its own."
)
@json_option
@with_app
def patch(
    app: handle.App,
    id: str,
    output: Path,
    shape: Literal["am", "preds"],
    state: RunStatus | None,
    every: bool,
    clean: bool,
    as_json: bool,
) -> int:
    """Write the changes of a run, or of each succeeded run of a job, to files.

    A patch is one commit on top of the job's base, with the message and the author of the commit
    that delivered the run. Runs that changed nothing are named; they get no patch, or an empty
    prediction.

    \b
    Example:
      runner patch job_01jd9k -o patches
      git switch -c landing && git am patches/src-a.py.patch
      runner patch job_01jd9k -o out --format preds --all
    """
    if every and state:
        raise click.UsageError(
            f"--all takes runs in any state, --state {state} only one: give one of them"
        )
    states = ENDED if every else {state or "succeeded"}
    named = app.find_to_change(id, "job", "run")
    runs = outputs.runs_to_patch(app, named.id, states)
    make_folder(output)
    written = outputs.write_patches(
        app, runs, shape, lambda name, content: write_file(output / name, content)
    )
    if as_json:
        say_json([asdict(each) for each in written])
    else:
        columns = ("run", "item", "state", "file", "")
        say_table(columns, ((w.run_id, w.item_key, w.state, w.file, w.why) for w in written))
    files = {each.file for each in written if each.file}
    note(f"{plural(len(files), 'file')} written to {output}")
    if stale := outputs.stale_files(output, written, named.id if named.kind == "run" else None):
        for path in stale if clean else ():
            remove_file(path)
        names = ", ".join(cell(path.name) for path in stale)
        what = "removed" if clean else "from an earlier time (--clean removes them)"
        note(f"{plural(len(stale), 'file')} {what}: {names}")
    return exit_codes.FAILED if any(each.failed for each in written) else exit_codes.SUCCEEDED


@click.command()
@click.argument("job", type=JOB)
@output_option
@click.option(
    "--format",
    "shape",
    type=click.Choice(["jsonl", "json", "csv"]),
    help="The format (default: by the name of FILE, else jsonl).",
)
@state_option
@with_app
def results(
    app: handle.App,
    job: str,
    output: Path | None,
    shape: ResultFormat | None,
    state: RunStatus | None,
) -> None:
    """Export the results that the runs of a job have submitted (`output_schema`).

    Each run has one line, even if it has no result. In CSV each property of the results is a
    column, and a ' precedes text that a spreadsheet would take for a formula.

    \b
    Example:
      runner results job_01jd9k -o results.csv
      runner results job_01jd9k | jq .result
    """
    found, schema = outputs.results_of(app, job)
    runs = [run for run in found if state in (None, run.state)]
    values = [asdict(each) for each in runs]
    suffix = output.suffix.lower() if output else ""
    match shape or suffix:
        case "csv" | ".csv":
            content = _csv(schema.get("properties") or {}, values)
        case "json" | ".json":
            content = json.dumps(values, indent=2) + "\n"
        case _:
            content = "".join(json.dumps(value) + "\n" for value in values)
    say_bytes(content.encode(errors="backslashreplace"), output)
    submitted = sum(each.result is not None for each in runs)
    note(f"{submitted} of {len(runs)} runs have submitted a result")


def _csv(properties: Mapping[str, Any], runs: list[dict[str, Any]]) -> str:
    """A column for each property of the schema, then for other properties of results."""
    names = dict.fromkeys(properties)
    for run in runs:
        names |= dict.fromkeys(run["result"] or {})
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*_COLUMNS, *(f"result.{name}" for name in names)])
    for run in runs:
        submitted = run["result"] or {}
        values = (*(run[name] for name in _COLUMNS), *(submitted.get(name) for name in names))
        writer.writerow(map(_cell, values))
    return text.getvalue()


def _cell(value: Any) -> str:
    """A value as a cell that no spreadsheet runs: numbers stay what they are."""
    if isinstance(value, str):
        return harmless(value)
    return "" if value is None else json.dumps(value, ensure_ascii=False)


_job_option = click.option(
    "--job", type=JOB, metavar="JOB", help="Only workspaces of this job's runs."
)


@click.group()
def workspace() -> None:
    """List or remove the workspaces of runs on this host (modes "git" and "copy").

    \b
    Example:
      runner workspace list
    """


@workspace.command("list")
@_job_option
@state_option
@json_option
@with_app
def list_(app: handle.App, job: str | None, state: RunStatus | None, as_json: bool) -> None:
    """List workspaces: run, size, and work that is saved nowhere else.

    \b
    Example:
      runner workspace list --job job_01jd9k
    """
    say_listing(
        [each for each in workspaces.list_workspaces(app, job) if state in (None, each["state"])],
        as_json,
        ("run", "item", "state", "branch", "size", "unsaved"),
        lambda each: (*_named(each), _size(each), each["unsaved"]),
        empty='no workspaces here: jobs with mode = "git" or "copy" make one for each run',
    )


@workspace.command()
@_job_option
@click.option(
    "--force", is_flag=True, help="Also remove those with work that is saved nowhere else."
)
@changing
def prune(app: handle.App, job: str | None, force: bool, author: Author, as_json: bool) -> None:
    """Remove the workspaces of runs that have ended.

    Runner keeps a workspace with work that is saved nowhere else, and says why; --force removes it.
    Branches and snapshots stay, so a continued run gets its workspace back. The workspace of a run
    that has not ended is never removed.

    \b
    Example:
      runner workspace prune --job job_01jd9k
    """
    pruned = workspaces.prune_workspaces(app, job, author, force=force)
    if as_json:
        say_json(pruned)
    else:
        rows = ((*_named(each)[:3], each["why_kept"] or "removed") for each in pruned)
        say_outcomes(("run", "item", "state", ""), rows)
    note(f"{sum(each['removed'] for each in pruned)} of {len(pruned)} workspaces removed")


def _named(workspace: Mapping[str, Any]) -> list[Any]:
    return [workspace[name] for name in ("run_id", "item_key", "state", "branch")]


def _size(workspace: Mapping[str, Any]) -> str:
    if not workspace["here"]:
        return "gone"
    size = float(workspace["bytes"])
    for unit in ("B", "kB", "MB"):
        if size < 1_000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1_000
    return f"{size:.1f} GB"

"""``patch``: what runs have changed, as files that land in a repository or that are scored."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from runner.cli import exit_codes
from runner.cli.options import json_option, state_option, stored, with_settings
from runner.cli.out.files import file_names, make_folder, write_file
from runner.cli.terminal import note, say_json, say_table
from runner.core.run import ENDED, RunStatus
from runner.errors import RunnerError, UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.queries.files import RunSnapshots
    from runner.store.connection.database import Database

Format = Literal["am", "preds"]

PREDICTIONS = "preds.json"
_NOTHING = "nothing was changed"


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a run: the file that its changes are in (None: in none), and what is to be said
    of it."""

    run_id: str
    item_key: str
    state: RunStatus
    file: str | None
    why: str = ""
    failed: bool = False


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
@with_settings
def patch(
    settings: Settings,
    id: str,
    output: Path,
    shape: Format,
    state: RunStatus | None,
    as_json: bool,
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
    with stored(settings) as database:
        chosen = _chosen(database, id, state)
        make_folder(output)
        write = _patches if shape == "am" else _predictions
        written = write(settings, database, chosen, output)
    if as_json:
        say_json([asdict(each) for each in written])
    else:
        columns = ("run", "item", "state", "file", "")
        say_table(columns, ((w.run_id, w.item_key, w.state, w.file, w.why) for w in written))
    files = len({each.file for each in written if each.file})
    note(f"{files} {'file' if files == 1 else 'files'} written to {output}")
    return exit_codes.FAILED if any(each.failed for each in written) else exit_codes.SUCCEEDED


def _chosen(database: Database, text: str, state: RunStatus | None) -> list[RunSnapshots]:
    """The runs that are meant: of a job, those in the state, or all that have ended."""
    from runner.cli.out.changes import refuse_unrecorded
    from runner.queries.files import snapshots_of_job, snapshots_of_run
    from runner.queries.find import find

    found = find(database, text, "job", "run")
    if found.kind == "run":
        run = snapshots_of_run(database, found.id)
        refuse_unrecorded(run)
        runs = [run]
    else:
        runs = snapshots_of_job(database, found.id)
        if runs and not runs[0].is_recorded:
            refuse_unrecorded(runs[0])
        wanted = ENDED if state is None else {state}
        runs = [run for run in runs if run.state in wanted]
    if not runs:
        what = f"is {state}" if state else "has ended"
        raise UsageError(f"no run of {found.id} {what}: look with `runner list {found.id}`")
    return runs


def _patches(
    settings: Settings, database: Database, runs: Sequence[RunSnapshots], folder: Path
) -> list[Written]:
    """A mail for each run that changed anything."""
    from runner.cli.out.changes import commit_text
    from runner.cli.out.mail import as_mail

    names = file_names(((run.run_id, run.item_key) for run in runs), ".patch")

    def write(run: RunSnapshots, changes: bytes) -> Written:
        if not changes:
            return _written(run, None, _NOTHING)
        mail = as_mail(commit_text(settings, database, run), changes)
        write_file(folder / names[run.run_id], mail)
        return _written(run, names[run.run_id])

    return _each(settings, database, runs, write)


def _predictions(
    settings: Settings, database: Database, runs: Sequence[RunSnapshots], folder: Path
) -> list[Written]:
    """One array of objects, as SWE-bench reads it
    (https://www.swebench.com/SWE-bench/guides/evaluation/). An instance has one prediction: forks of a
    run are left out where that one is there."""
    from runner.queries.jobs import items_of_runs

    items = items_of_runs(database, [run.run_id for run in runs])
    predictions: dict[str, dict[str, str]] = {}

    def write(run: RunSnapshots, changes: bytes) -> Written:
        instance = _instance(run, items.get(run.run_id))
        if instance in predictions:
            return _written(run, None, f"{instance} has a prediction already")
        try:
            text = changes.decode()
        except UnicodeDecodeError:
            return _failed(run, "its changes are not UTF-8, which JSON needs: use --format am")
        predictions[instance] = {
            "instance_id": instance,
            "model_name_or_path": run.model,
            "model_patch": text,
        }
        return _written(run, PREDICTIONS, "" if changes else _NOTHING)

    originals_first = sorted(runs, key=lambda run: run.fork_of is not None)
    written = _each(settings, database, originals_first, write)
    content = json.dumps(list(predictions.values()), indent=2) + "\n"
    write_file(folder / PREDICTIONS, content.encode())
    return written


def _each(
    settings: Settings,
    database: Database,
    runs: Sequence[RunSnapshots],
    write: Callable[[RunSnapshots, bytes], Written],
) -> list[Written]:
    """Write each run's changes; one of which they cannot be had is told of and keeps no other back."""
    from runner.cli.out.changes import delivered_or_recorded, recorded_in, whereabouts

    recorded = recorded_in(settings)
    written = []
    for run in runs:
        changes = delivered_or_recorded(run)
        if not changes:
            written.append(_written(run, None, "it was never begun"))
            continue
        try:
            content = recorded.diff(whereabouts(database, run), changes)
        except UsageError:
            raise
        except RunnerError as error:
            written.append(_failed(run, str(error)))
        else:
            written.append(write(run, content))
    return written


def _instance(run: RunSnapshots, item: Any) -> str:
    """The id that the item has of its own, else its key."""
    own = item.get("instance_id") if isinstance(item, dict) else None
    return own if isinstance(own, str) and own else run.item_key


def _written(run: RunSnapshots, file: str | None, why: str = "") -> Written:
    return Written(run.run_id, run.item_key, run.state, file, why)


def _failed(run: RunSnapshots, why: str) -> Written:
    return Written(run.run_id, run.item_key, run.state, None, why, failed=True)

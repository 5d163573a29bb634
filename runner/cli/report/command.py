"""``report``: what a job has come to, for whoever comes in the morning."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.cli.options import stored, with_settings
from runner.cli.patch import write_file
from runner.cli.terminal import say_bytes
from runner.errors import RunnerError
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.cli.report.findings import Line
    from runner.cli.report.page import Report
    from runner.queries.files import RunSnapshots
    from runner.store.database import Database
    from runner.workspace.changes import DiffStat


@click.command()
@click.argument("job")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write to this file.",
)
@with_settings
def report(settings: Settings, job: str, output: Path | None) -> None:
    """Report on a job in Markdown: what to look at first, failures by what they have in common, and
    for each run its outcome, changes, verification, cost, time, denials and approvals.

    What models, tools and repositories say stands in it as code, where it means nothing.

    \b
    Example:
      runner report job_01jd9k -o morning.md
    """
    from runner.cli.report.page import page
    from runner.queries.find import find

    with stored(settings) as database:
        job_id = find(database, job, "job").id
        text = page(gather(settings, database, job_id, time.time()))
    content = text.encode(errors="backslashreplace")
    if output is None:
        say_bytes(content)
    else:
        write_file(output, content)


def gather(settings: Settings, database: Database, job_id: str, now: float) -> Report:
    """All that the report on a job tells.

    Args:
        now: seconds since the epoch.
    """
    from runner import wiring
    from runner.cli.report.findings import Line
    from runner.cli.report.page import Report
    from runner.core.prices import Spending
    from runner.queries import decisions
    from runner.queries.costs import costs_by
    from runner.queries.decisions import answer_counts, unknown_outcome_counts
    from runner.queries.files import snapshots_of_job
    from runner.queries.jobs import current_runs, last_verifications, list_runs, show_job

    runs = current_runs(list_runs(database, job_id))
    prices = wiring.load_prices(settings)
    spent = {s.key: s.spending for s in costs_by(database, prices, "tree", job_id=job_id)}
    trees = {each.run_id: each for each in snapshots_of_job(database, job_id)}
    stats, unrecorded, missing = _changes(settings, database, trees.values())
    verified = last_verifications(database, job_id)
    answers = answer_counts(database, job_id)
    waiting = decisions.open_approval_counts(database, job_id)
    unknown = unknown_outcome_counts(database, job_id)
    lines: list[Line] = [
        Line(
            run=run,
            trees=trees[run["id"]],
            spending=spent.get(run["id"], Spending()),
            stat=stats.get(run["id"]),
            verified=verified.get(run["id"]),
            answers=answers.get(run["id"], {}),
            waiting=waiting.get(run["id"], 0),
            unknown=unknown.get(run["id"], 0),
            unrecorded=unrecorded.get(run["id"], ()),
        )
        for run in runs
        if run["id"] in trees
    ]
    return Report(
        job=show_job(database, job_id),
        lines=lines,
        denied=decisions.denied_kinds(database, job_id),
        now=now,
        missing=missing,
    )


def _changes(
    settings: Settings, database: Database, runs: Iterable[RunSnapshots]
) -> tuple[dict[str, DiffStat], dict[str, tuple[str, ...]], str]:
    """How much each run changed and where nothing is recorded of it, by its id; and why that cannot be
    told of some."""
    from runner.cli.patch import delivered_or_recorded, recorded_in, whereabouts

    recorded = recorded_in(settings)
    found: dict[str, DiffStat] = {}
    unrecorded: dict[str, tuple[str, ...]] = {}
    missing = ""
    for run in runs:
        if not run.is_recorded or not (changes := delivered_or_recorded(run)):
            continue
        try:
            where = whereabouts(database, run)
            found[run.run_id] = recorded.stat(where, changes)
            if run.tree is not None:
                unrecorded[run.run_id] = recorded.unrecorded(where, run.tree)
        except RunnerError as error:
            missing = missing or str(error)
    return found, unrecorded, missing

"""``list``: the jobs, or the runs of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from runner.app.humanize import moment, verdict
from runner.cli.control import waits_for
from runner.cli.costs import with_costs
from runner.cli.options import json_option, state_option, stored, with_settings
from runner.cli.terminal import say_json, say_table
from runner.core.run import RunStatus
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.queries.costs import By
    from runner.queries.files import RunSnapshots
    from runner.queries.jobs import JobSummary, RunSummary, Verification


@click.command("list")
@click.argument("job", required=False)
@state_option
@click.option(
    "--tree",
    "whole_trees",
    is_flag=True,
    help="The runs of a job, or of the newest, with the sub-agents that they have started.",
)
@json_option
@with_settings
def list_(
    settings: Settings, job: str | None, state: RunStatus | None, whole_trees: bool, as_json: bool
) -> None:
    """List the jobs, or the runs of a job.

    Runs are those of items. What they have used and what was denied to them is told with all that the
    sub-agents below them have; with --tree these have lines of their own, and each run tells its own.

    \b
    Example:
      runner list
      runner list job_01jd9k --state failed
      runner list --tree
    """
    from runner.queries.files import snapshots_of_job
    from runner.queries.find import find
    from runner.queries.jobs import last_verifications, list_jobs, list_runs

    with stored(settings) as database:
        jobs = [] if job else list_jobs(database, None if whole_trees else state)
        if job is None and not (whole_trees and jobs):
            say_json(with_costs(settings, database, "job", jobs)) if as_json else _say_jobs(jobs)
        else:
            job_id = find(database, job, "job").id if job else jobs[-1]["id"]
            runs = list_runs(database, job_id, state, whole_trees=whole_trees)
            verified = last_verifications(database, job_id)
            trees = {
                each.run_id: each for each in snapshots_of_job(database, job_id, every_run=True)
            }
            if as_json:
                rows = [_whole(run, trees[run["id"]], verified.get(run["id"])) for run in runs]
                by: By = "run" if whole_trees else "tree"
                say_json(with_costs(settings, database, by, rows, job_id=job_id))
            else:
                told = [_own(run) for run in runs] if whole_trees else runs
                _say_runs(told, waits_for(database, runs), verified, trees)


def _say_jobs(jobs: list[JobSummary]) -> None:
    say_table(
        ("job", "name", "state", "runs", "turns", "tokens", "denied", "submitted"),
        (
            (
                job["id"],
                job["name"],
                job["state"],
                counts(job["runs"]),
                f"{job['turns']:,}",
                f"{job['charged_tokens']:,}",
                job["denials"] or "",
                moment(job["created_at"]),
            )
            for job in jobs
        ),
    )


def counts(by_state: dict[RunStatus, int]) -> str:
    """Runs by state in words: ``2 running, 5 queued``."""
    return ", ".join(f"{count} {state}" for state, count in by_state.items())


def _whole(run: RunSummary, trees: RunSnapshots, verified: Verification | None) -> dict[str, Any]:
    """A run for JSON, with the model that works it, what it is a fork of, its branch, the commit that it
    was delivered in and how it was verified."""
    return {
        **run,
        "model": trees.model,
        "fork_of": trees.fork_of,
        "fork_turn": trees.fork_turn,
        "branch": trees.branch,
        "commit": trees.commit,
        "verified": verdict(verified) or None,
    }


def _say_runs(
    runs: list[RunSummary],
    waiting: Mapping[str, str],
    verified: Mapping[str, Verification],
    trees: Mapping[str, RunSnapshots],
) -> None:
    """Print runs in lines; ``waiting`` says what to do about those that wait. Only a job that verifies
    has a column for it, and only one whose runs have started others."""
    is_verified = ("verified",) if verified else ()
    is_tree = ("below",) if any(run["below"] for run in runs) else ()
    say_table(
        (
            *("run", "item", "state", "reason", *is_verified, *is_tree),
            *("turns", "tokens", "denied", "detail"),
        ),
        (
            (
                run["id"],
                _named(run),
                run["state"],
                run["reason"],
                *(verdict(verified.get(run["id"])) for _ in is_verified),
                *(run["below"] or "" for _ in is_tree),
                run["turns"],
                f"{run['tree_tokens']:,}",
                run["tree_denials"] or "",
                waiting.get(run["id"]) or run["detail"] or _descent(run, trees[run["id"]]),
            )
            for run in runs
        ),
    )


def _own(run: RunSummary) -> RunSummary:
    """A run that is told of by itself, as those below it are."""
    return {**run, "tree_tokens": run["charged_tokens"], "tree_denials": run["denials"]}


def _named(run: RunSummary) -> str:
    """The item, or which sub-agent of it a run is, below its parent."""
    if not run["depth"]:
        return run["item_key"]
    return f"{'  ' * run['depth']}{run['label']} {run['agent_type'] or ''}".rstrip()


def _descent(run: RunSummary, trees: RunSnapshots) -> str:
    """Which run stands for this one, or which it comes from."""
    if run["fresh_run"]:
        return f"begun afresh as {run['fresh_run']}"
    return f"fork of {trees.fork_of}@{trees.fork_turn}" if trees.fork_of else ""

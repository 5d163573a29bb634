"""``list``: the jobs, or the runs of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from runner.cli.display import moment, say_json, say_table
from runner.cli.money.budget import waits_for
from runner.cli.money.costs import with_costs
from runner.cli.options import json_option, state_option, stored, with_settings
from runner.core.run import RunState
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.store.look.queries import JobSummary, RunSummary


@click.command("list")
@click.argument("job", required=False)
@state_option
@json_option
@with_settings
def list_(settings: Settings, job: str | None, state: RunState | None, as_json: bool) -> None:
    """List the jobs, or the runs of a job.

    \b
    Example:
      runner list
      runner list job_01jd9k --state failed
    """
    from runner.store.look import queries
    from runner.store.look.find import find

    with stored(settings) as database:
        if job is None:
            jobs = queries.list_jobs(database, state)
            say_json(with_costs(settings, database, "job", jobs)) if as_json else _say_jobs(jobs)
        else:
            job_id = find(database, job, "job").id
            runs = queries.list_runs(database, job_id, state)
            if as_json:
                say_json(with_costs(settings, database, "run", runs, job_id=job_id))
            else:
                _say_runs(runs, waits_for(database, runs))


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


def counts(by_state: dict[RunState, int]) -> str:
    """Runs by state in words: ``2 running, 5 queued``."""
    return ", ".join(f"{count} {state}" for state, count in by_state.items())


def _say_runs(runs: list[RunSummary], waiting: dict[str, str]) -> None:
    """Print runs in lines; ``waiting`` says what to do about those that wait."""
    say_table(
        ("run", "item", "state", "reason", "turns", "tokens", "denied", "detail"),
        (
            (
                run["id"],
                run["item_key"],
                run["state"],
                run["reason"],
                run["turns"],
                f"{run['charged_tokens']:,}",
                run["denials"] or "",
                waiting.get(run["id"])
                or run["detail"]
                or (f"begun afresh as {run['fresh_run']}" if run["fresh_run"] else ""),
            )
            for run in runs
        ),
    )

"""``list``: jobs, and the runs of a job."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from runner.app import caps, forecast, handle, listing
from runner.app import costs as app_costs
from runner.app.humanize import counts, moment, tokens_of
from runner.cli.options import JOB, RUN, filters, json_option, state_option, with_app
from runner.cli.terminal import note, say_json, say_pages, say_table
from runner.core.run import RunStatus
from runner.errors import UsageError


@click.command("list")
@click.argument("job", type=JOB, required=False)
@state_option
@click.option(
    "--tree",
    "whole_trees",
    is_flag=True,
    help="List the runs of a job (default: the newest), with their sub-agents below them.",
)
@filters("since", "until")
@click.option(
    "--after", type=RUN, default="", metavar="RUN", help="Only the runs listed after this one."
)
@click.option(
    "--all", "every", is_flag=True, help="List all runs of the job; with --json, one a line."
)
@json_option
@with_app
def list_(
    app: handle.App,
    job: str | None,
    state: RunStatus | None,
    whole_trees: bool,
    only: Mapping[str, float],
    after: str,
    every: bool,
    as_json: bool,
) -> None:
    """List the jobs, or the runs of a job: the first 200, or all with --all.

    A job has one run for each item. The usage and denials of a run include its sub-agents. With
    --tree, sub-agents have lines of their own, and each run shows only its own numbers.

    For a job, the list says until when it makes no model calls (`not_before`, `window`), or why
    Runner paused it. Once 3 runs of a job have finished, it gives the expected total cost and end,
    with ranges that hold in 9 of 10 cases.

    A run whose worker died is shown as interrupted, and a due run is marked if no worker is alive.
    In JSON, `shown_state` is the state as shown here, and `state` the stored one, which --state
    filters by.

    \b
    Example:
      runner list
      runner list --since yesterday
      runner list last --state failed
      runner list job_01jd9k --all --json
      runner list --tree
    """
    jobs = listing.list_jobs(app, None) if whole_trees and not job else []
    if job is None and not jobs:
        _list_jobs(app, state, only, as_json)
        return
    if only:
        raise UsageError("--since and --until list jobs by their submission: leave out the job")
    job_id = app.find_job(job) if job else jobs[-1]["id"]
    after = after and app.find(after, "run").id
    found = listing.list_runs(app, job_id, state, whole_trees=whole_trees, after=after)
    pages = (page.runs for page in found) if every else _first_page(app, job_id, found)
    if not as_json:
        _say_runs(app, job_id, pages, whole_trees, state)
        return
    for runs in pages:
        priced = app_costs.with_costs(app, "run" if whole_trees else "tree", runs)
        for value in priced if every else [priced]:
            say_json(value, on_one_line=every)


def _list_jobs(
    app: handle.App, state: RunStatus | None, only: Mapping[str, float], as_json: bool
) -> None:
    since, until = only.get("since", -math.inf), only.get("until", math.inf)
    jobs = [job for job in listing.list_jobs(app, state) if since <= job["created_at"] < until]
    waits = listing.what_jobs_wait_for(app, jobs)
    expected = forecast.forecasts(app, jobs)
    if not as_json:
        _say_jobs(jobs, waits, expected, state)
        if (line := caps.waits(app)) is not None:
            note(f"{line}: runner budget --all")
        return
    told = {job_id: each.as_json() for job_id, each in expected.items()}
    values = [
        {**job, "waits_for": waits.get(job["id"]), "forecast": told.get(job["id"])} for job in jobs
    ]
    say_json(app_costs.with_costs(app, "job", values))


def _first_page(
    app: handle.App, job_id: str, pages: Iterator[listing.Page]
) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yield the runs of the first page, and say on stderr afterwards if there are more."""
    page = next(pages)
    yield page.runs
    if page.next is not None:
        (job,) = listing.list_jobs(app, None, [job_id])
        note(
            f"{len(page.runs)} runs of {sum(job['runs'].values()):,} ({counts(job['shown_runs'])}): "
            f"go on with --after {page.next}, or --all"
        )


def _say_jobs(
    jobs: Sequence[Mapping[str, Any]],
    waits: Mapping[str, str],
    expected: Mapping[str, forecast.JobForecast],
    state: RunStatus | None,
) -> None:
    empty = "no job to list: start one with `runner run SPEC`, or `runner init` writes a job file"
    if state:
        empty = f"no job is {state}; of a job's runs: `runner list JOB --state {state}`"

    def detail(job: Mapping[str, Any]) -> str:
        job_id = job["id"]
        found = f"expected: {expected[job_id].line}" if job_id in expected else ""
        return "; ".join(filter(None, (waits.get(job_id), job["near_limits"], found)))

    say_table(
        ("job", "name", "state", "runs", "turns", "tokens", "denied", "submitted", "detail"),
        (
            (
                *(job["id"], job["name"], job["shown_state"]),
                *(counts(job["shown_runs"]), job["turns"]),
                tokens_of(job["charged_tokens"], job["unknown_tokens"]),
                job["denials"] or "",
                moment(job["created_at"]),
                detail(job),
            )
            for job in jobs
        ),
        spare=("denied", "turns", "tokens", "submitted"),
        empty=empty,
    )


def _say_runs(
    app: handle.App,
    job_id: str,
    pages: Iterable[Sequence[Mapping[str, Any]]],
    whole_trees: bool,
    state: RunStatus | None,
) -> None:
    """Print runs in lines, with advice for waiting ones. Only jobs that verify have a column for
    it, and only jobs with sub-agents one for these. In ``whole_trees`` each run has a line with its
    own numbers."""
    some = listing.columns_of(app, job_id)

    def rows(runs: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[Any]]:
        waiting = listing.what_runs_wait_for(app, runs)
        return (_run_row(run, some, waiting, whole_trees) for run in runs)

    columns = ("run", "item", "state", "reason", *some, "turns", "tokens", "denied", "detail")
    spare = ("tokens", "turns", "below", "denied", "verified")
    found = f"none of its runs is {state}" if state else "no run to list"
    empty = f"{found}: `runner show {job_id}` shows the job"
    say_pages(columns, map(rows, pages), spare=spare, empty=empty)


def _run_row(
    run: Mapping[str, Any], some: Sequence[str], waiting: Mapping[str, str], whole_trees: bool
) -> Sequence[Any]:
    tokens, unknown, denials = (
        ("charged_tokens", "unknown_tokens", "denials")
        if whole_trees
        else ("tree_tokens", "tree_unknown_tokens", "tree_denials")
    )
    name, origin = run["item_key"], ""
    if run["depth"]:  # below its parent
        name = f"{'  ' * run['depth']}{run['label']} {run['agent_type'] or ''}".rstrip()
    if run["fresh_run"]:
        origin = f"begun afresh as {run['fresh_run']}"
    elif run["fork_of"]:
        origin = f"fork of {run['fork_of']}@{run['fork_turn']}"
    return (
        *(run["id"], name, run["shown_state"], run["reason"]),
        *(run[name] or "" for name in some),
        *(run["turns"], tokens_of(run[tokens], run[unknown]), run[denials] or ""),
        "; ".join(
            filter(
                None,
                (waiting.get(run["id"]) or run["detail"], origin, run["title"], run["near_limits"]),
            )
        ),
    )

"""``costs`` and ``budget``: what model calls used and cost, and what a job may use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from runner.app import budgets, caps, handle
from runner.app import costs as app_costs
from runner.app.humanize import (
    at_most,
    cache_share,
    cell,
    cheaper_lines,
    cost,
    cost_line,
    loss_line,
    moment,
    plural,
    usd_of,
    written_off,
)
from runner.cli.audit import format_option, say_rows
from runner.cli.control import note_unworked
from runner.cli.options import JOB, changing, filters, json_option, tokens, usd, with_app
from runner.cli.terminal import note, say, say_fields, say_json, say_table
from runner.core.budget import EVERY_CALL, JobBudget, billionths
from runner.core.prices import BY, By
from runner.core.run import Author
from runner.errors import UsageError


@click.command()
@click.argument("job", type=JOB, required=False)
@click.option(
    "--by",
    type=click.Choice(BY),
    help="Print one line for each of these (default: job; with JOB: run). A tree is an item's run with "
    "its sub-agents. Days are in UTC.",
)
@filters("run", "since", "until", "tool", "item", "model", "state")
@format_option
@json_option
@with_app
def costs(
    app: handle.App, job: str | None, by: By | None, only: Any, format: str | None, as_json: bool
) -> None:
    """Show what model calls used and cost, for all jobs or for one.

    Costs are tokens times list prices, not an invoice. They exclude calls that are running, and
    calls of unknown usage, which are shown apart with the most that they can have cost. If a model
    has no price, the output names it; RUNNER_PRICES can name a file with prices.

    For one job the output also says what expired caches, repeated calls and failed items cost, and
    which changes to the job would have cost less.

    With a filter or a format, only the table is printed, the most expensive line first. With
    --tool, only turns that called the tool count.

    \b
    Example:
      runner costs
      runner costs last --by model
      runner costs --by day --since 30d --format csv
    """
    if only or format:
        from runner.audit import Audit

        of_job: Any = {"job": job} if job else {}
        rows = Audit.of(app).costs(by or ("run" if job else "job"), **of_job, **only)
        say_rows(rows, "json" if as_json else format or "table")
        return
    found = app_costs.costs(app, job, by)
    if as_json:
        say_json(found.as_json())
    else:
        _say_costs(found)


def _say_costs(found: app_costs.Costs) -> None:
    label = {"job": ["name"], "run": ["item"], "tree": ["item"]}.get(found.by, [])
    counts = ("calls", "input", "cache writes", "cache reads", "output")
    say_table(
        (found.by, *label, *counts, "cached", "cost", "plus"),
        (
            (
                *(each.key, each.label)[: 1 + len(label)],
                f"{each.spending.calls:,}",
                f"{each.spending.usage.input_tokens:,}",
                f"{each.spending.usage.cache_creation_tokens:,}",
                f"{each.spending.usage.cache_read_tokens:,}",
                f"{each.spending.usage.output_tokens:,}",
                *(tell(each.spending) for tell in (cache_share, cost, at_most)),
            )
            for each in found.lines
        ),
        spare=("cache writes", "cache reads", "input", "output", "calls"),
    )
    say(f"\ncost: {cost_line(found.total) or 'no calls yet'}")
    if found.losses is not None:
        say(f"lost: {loss_line(found.losses) or 'nothing'}")
        for line in cheaper_lines(found.losses):
            say(f"  {line}")
    for model in sorted(found.total.unpriced):
        say(f"no price is known for {cell(model)}: give it one in a file named by RUNNER_PRICES")
    say(f"USD at the list prices of {found.prices.date} ({cell(found.prices.source)})")


@click.command()
@click.argument("job", type=JOB, required=False)
@click.option("--usd", type=usd, metavar="N", help="The new budget in USD.")
@click.option("--tokens", type=tokens, metavar="N", help="The new budget in tokens.")
@click.option(
    "--write-off",
    is_flag=False,
    flag_value=EVERY_CALL,
    metavar="[RUN/NUMBER]",
    help="Release the charge of an ended model call with unknown usage (call NUMBER of RUN), or of "
    "all such calls: you know that they cost less.",
)
@click.option(
    "--all", "of_all", is_flag=True, help="Show or change the daily cap of all jobs together."
)
@click.option("--per", type=click.Choice(["day"]), help="With --all: the period that --usd is for.")
@click.option(
    "--tz",
    "zone",
    metavar="ZONE",
    help="With --all: the time zone of the days (default: this host's).",
)
@click.option("--remove", is_flag=True, help="With --all: remove the cap.")
@changing
def budget(
    app: handle.App,
    job: str | None,
    usd: float | None,
    tokens: int | None,
    write_off: str | None,
    of_all: bool,
    per: str | None,
    zone: str | None,
    remove: bool,
    author: Author,
    as_json: bool,
) -> None:
    """Show the budget of a job (its cap, and what is spent and reserved), or change the cap. With
    --all: the cap on what all jobs together cost on a day.

    Runs that wait for the budget continue when you raise it. Reserved is the most that running
    calls can use. A call of unknown usage is charged the most that it can have used, until you
    write the charge off.

    Runs for which the day's cap has no room continue at midnight, or when you raise or remove the
    cap.

    \b
    Example:
      runner budget job_01jd9k
      runner budget job_01jd9k --usd 40
      runner budget job_01jd9k --write-off --reason "the console shows less"
      runner budget --all --usd 50 --per day --tz Europe/Berlin
    """
    if of_all == (job is not None):
        raise UsageError("name one job, or give --all for the cap on all jobs together")
    if job is None and write_off is None:
        _budget_of_all(app, usd, tokens, zone, remove, author, as_json)
        return
    if job is None:
        raise UsageError("--write-off needs a job: name it")
    if per or zone or remove:
        raise UsageError("--per, --tz and --remove are for the cap on all jobs: add --all")
    status = budgets.budget(app, job, author, usd=usd, tokens=tokens, write_off=write_off)
    if as_json:
        say_json(status.as_json())
    else:
        _say_budget(status)
    for change in status.written_off:
        note(f"{change.id}: {change.detail}")
    if status.woken:
        note(plural(len(status.woken), "run goes on", "runs go on"))
    if status.is_overdrawn:
        note("running calls may still use what they reserved, over this budget; no new call starts")
    note_unworked(status.unworked_job)


def _say_budget(status: budgets.BudgetStatus) -> None:
    none = [("budget", "none: each run has its own limits, the job has none")]
    waits = None
    if status.waiting:
        how = budgets.how_to_raise(status.job_id, status.budget)
        waits = f"{plural(status.waiting, 'run waits', 'runs wait')} for it: {how}"
    lines = list(_budget_lines(status.budget)) or none
    told = (
        ("unknown", at_most(status.spending)),
        ("written off", written_off(status.spending)),
        ("waiting", waits),
        ("forecast", status.forecast and status.forecast.line),
    )
    say_fields((("job", status.job_id), *lines, *told))


def _budget_of_all(
    app: handle.App,
    usd: float | None,
    tokens: int | None,
    zone: str | None,
    remove: bool,
    author: Author,
    as_json: bool,
) -> None:
    if tokens is not None or (remove and (usd, zone) != (None, None)):
        raise UsageError("--all takes --usd with or without --tz, or --remove alone")
    if zone is not None and usd is None:
        raise UsageError("--tz is set with the cap: give --usd too")
    if remove:
        status = caps.remove(app, author)
    else:
        status = caps.status(app) if usd is None else caps.set_cap(app, usd, zone, author)
    if as_json:
        say_json(None if status is None else status.as_json())
    elif status is None:
        say_fields((("cap", "none: set one with `runner budget --all --usd N --per day`"),))
    else:
        _say_cap(status)
    if status is not None and status.woken:
        note(plural(len(status.woken), "run goes on", "runs go on"))
        note_unworked(status.unworked_job)


def _say_cap(status: caps.CapStatus) -> None:
    last = status.changes[-1]
    why = f": {cell(last['why'])}" if last["why"] else ""
    most = status.cap.budget.most_cost
    cap = "none: it was removed" if most is None else f"{usd_of(most)} per day, {status.zone}"
    before = (f"{usd_of(each['spent_cost'])} on {each['day']}" for each in status.days)
    say_fields(
        (
            ("cap", cap),
            ("today", status.used if status.cap.is_set else None),
            ("waiting", status.waits and f"{status.waits}: runner budget --all --usd N"),
            ("before", ", ".join(before)),
            ("changed", f"{moment(last['at'])} by {cell(last['by'] or 'unknown')}{why}"),
        )
    )


def _budget_lines(budget: JobBudget) -> Iterable[tuple[str, str]]:
    if budget.most_cost is not None:
        reserved = f", {usd_of(budget.reserved_cost)} reserved" if budget.reserved_cost else ""
        yield "budget", f"{usd_of(budget.spent_cost)} of {usd_of(budget.most_cost)} used{reserved}"
    if budget.most_tokens is not None:
        reserved = f", {budget.reserved_tokens:,} reserved" if budget.reserved_tokens else ""
        spent = f"{budget.spent_tokens:,} of {budget.most_tokens:,} tokens used"
        yield "budget" if budget.most_cost is None else "and", spent + reserved


def budget_fields(job: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the budget of a job (``queries.jobs.show_job``) in lines for people."""
    most_cost = None if job["budget_usd"] is None else billionths(job["budget_usd"])
    names = ("spent_tokens", "spent_cost", "reserved_tokens", "reserved_cost")
    sums = (job[name] for name in names)
    return list(_budget_lines(JobBudget(job["budget_tokens"], most_cost, *sums)))

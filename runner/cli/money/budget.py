"""``budget``: what all runs of a job may use together, and what they wait for when it is used up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from runner.app.humanize import dollars
from runner.cli.authors import signed
from runner.cli.control import measured_now, patiently, say_who_works
from runner.cli.options import Dollars, json_option, stored, with_settings
from runner.cli.terminal import note, say_fields, say_json
from runner.core.author import Author
from runner.core.money.budget import JobBudget, billionths
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.store.connection.database import Database
    from runner.store.steer.control import Change

_tokens = click.IntRange(1, 10**12)


@click.command()
@click.argument("job")
@click.option("--usd", type=Dollars(), metavar="N", help="The new budget in USD.")
@click.option("--tokens", type=_tokens, metavar="N", help="The new budget in tokens.")
@signed
@json_option
@with_settings
def budget(
    settings: Settings,
    job: str,
    usd: float | None,
    tokens: int | None,
    author: Author,
    as_json: bool,
) -> None:
    """Show what a job may use, has used and has reserved, or raise it.

    Runs that wait for it go on when it is raised. What is reserved is the most that the calls in
    hand can use. A call of which nobody knows what it used counts with its reserve.

    \b
    Example:
      runner budget job_01jd9k
      runner budget job_01jd9k --usd 40
    """
    from runner.queries.find import find
    from runner.queries.jobs import list_runs
    from runner.store.steer.budget import budget_of, set_budget

    with stored(settings) as database:
        job_id = find(database, job, "job").id
        woken: Sequence[Change] = []
        now = measured_now(database)
        if usd is not None or tokens is not None:
            woken = patiently(
                lambda: set_budget(database, job_id, now, author=author, usd=usd, tokens=tokens)
            )
        purse = budget_of(database, job_id) or JobBudget()
        runs = list_runs(database, job_id, "waiting", whole_trees=True)
        waiting = sum(run["reason"] == "budget" for run in runs)
        if as_json:
            say_json(_as_json(job_id, purse, waiting, woken))
        else:
            _say(job_id, purse, waiting)
        _note_what_follows(purse, woken)
        if woken:
            say_who_works(database, woken[0].id, now)


def _as_json(
    job_id: str, purse: JobBudget, waiting: int, woken: Sequence[Change]
) -> dict[str, Any]:
    return {
        "job": job_id,
        "budget_usd": None if purse.most_cost is None else purse.most_cost / 1e9,
        "spent_usd": None if purse.most_cost is None else purse.spent_cost / 1e9,
        "reserved_usd": None if purse.most_cost is None else purse.reserved_cost / 1e9,
        "budget_tokens": purse.most_tokens,
        "spent_tokens": None if purse == JobBudget() else purse.spent_tokens,
        "reserved_tokens": None if purse == JobBudget() else purse.reserved_tokens,
        "waiting_runs": waiting,
        "woken": [asdict(change) for change in woken],
    }


def _say(job_id: str, purse: JobBudget, waiting: int) -> None:
    lines = dict(_lines(purse)) or {"budget": "none: each run has its own limits, the job has none"}
    waits = f"{runs_wait(waiting)} for it: {how_to_raise(job_id, purse)}" if waiting else None
    say_fields((("job", job_id), *lines.items(), ("waiting", waits)))


def _lines(purse: JobBudget) -> Iterable[tuple[str, str]]:
    if purse.most_cost is not None:
        reserved = f", {usd_of(purse.reserved_cost)} reserved" if purse.reserved_cost else ""
        spent = f"{usd_of(purse.spent_cost)} of {usd_of(purse.most_cost)} used"
        yield "budget", spent + reserved
    if purse.most_tokens is not None:
        reserved = f", {purse.reserved_tokens:,} reserved" if purse.reserved_tokens else ""
        spent = f"{purse.spent_tokens:,} of {purse.most_tokens:,} tokens used"
        yield "budget" if purse.most_cost is None else "and", spent + reserved


def _note_what_follows(purse: JobBudget, woken: Sequence[Change]) -> None:
    if woken:
        note(f"{len(woken)} {'run goes' if len(woken) == 1 else 'runs go'} on")
    cost, tokens = (
        purse.spent_cost + purse.reserved_cost,
        purse.spent_tokens + purse.reserved_tokens,
    )
    over_cost = purse.most_cost is not None and cost > purse.most_cost
    over_tokens = purse.most_tokens is not None and tokens > purse.most_tokens
    if over_cost or over_tokens:
        note("calls in hand may still use what they have reserved, over this budget; none begins")


def budget_fields(job: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A job's budget, in lines for people.

    Args:
        job: as ``queries.jobs.show_job`` gives it.
    """
    usd = job["budget_usd"]
    return list(
        _lines(
            JobBudget(
                job["budget_tokens"],
                None if usd is None else billionths(usd),
                job["spent_tokens"],
                job["spent_cost"],
                job["reserved_tokens"],
                job["reserved_cost"],
            )
        )
    )


def waits_for(database: Database, runs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What to do about runs of one job that wait for its budget, by run."""
    from runner.store.steer.budget import budget_of

    waiting = [run for run in runs if is_out_of_budget(run)]
    if not waiting:
        return {}
    job_id = waiting[0]["job_id"]
    how = how_to_raise(job_id, budget_of(database, job_id) or JobBudget())
    return {
        run["id"]: f"{run['detail'] or 'waits for the budget of its job'}: {how}" for run in waiting
    }


def is_out_of_budget(run: Mapping[str, Any]) -> bool:
    """Whether a run waits for its job's budget to be raised."""
    return (run["state"], run["reason"]) == ("waiting", "budget")


def how_to_raise(job_id: str, purse: JobBudget) -> str:
    """The command that raises a job's budget."""
    caps = {"--usd N": purse.most_cost, "--tokens N": purse.most_tokens}
    options = [option for option, cap in caps.items() if cap is not None]
    return f"runner budget {job_id} {' '.join(options)}".rstrip()


def usd_of(billionths: int) -> str:
    """An amount in billionths of a USD, as it is said."""
    return dollars(Decimal(billionths).scaleb(-9))


def runs_wait(count: int) -> str:
    """So many runs wait."""
    return "1 run waits" if count == 1 else f"{count} runs wait"

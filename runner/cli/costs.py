"""``costs``: what model calls used and cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from runner.app.humanize import at_most, cache_share, cell, cost, cost_line
from runner.cli.options import json_option, stored, with_settings
from runner.cli.terminal import say, say_json, say_table
from runner.core.prices import PriceList, Spending
from runner.errors import UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.core.commands import Target
    from runner.queries.costs import By, Cost
    from runner.store.database import Database


# Those of the store, which `runner --help` does without.
BY = ("job", "run", "tree", "model", "day", "purpose")


@click.command()
@click.argument("job", required=False)
@click.option(
    "--by",
    type=click.Choice(BY),
    help="A line for each of these (default: job; of one job: run). A tree is the run of an item with "
    "the sub-agents that it has started. Days are UTC.",
)
@json_option
@with_settings
def costs(settings: Settings, job: str | None, by: By | None, as_json: bool) -> None:
    """Say what model calls have used and cost, of all jobs or of one.

    Costs are list prices times tokens, not an invoice. Calls under way are not in them, nor are
    calls of which nobody knows what they used: these are shown apart, as what they can have cost
    at most. A model without a price is named; RUNNER_PRICES can name a file that has one.

    \b
    Example:
      runner costs
      runner costs job_01jd9k --by model
    """
    from runner import wiring
    from runner.queries.costs import costs_by
    from runner.queries.find import find

    prices = wiring.load_prices(settings)
    with stored(settings) as database:
        job_id = find(database, job, "job").id if job else None
        chosen: By = by or ("run" if job_id else "job")
        found = costs_by(database, prices, chosen, job_id=job_id)
    total = sum((each.spending for each in found), Spending())
    if as_json:
        say_json(_as_json(prices, chosen, found, total))
    else:
        _say(prices, chosen, found, total)


def _as_json(prices: PriceList, by: By, found: Sequence[Cost], total: Spending) -> dict[str, Any]:
    return {
        "prices": {"date": prices.date.isoformat(), "source": prices.source},
        "by": by,
        "lines": [
            {by: each.key, "label": each.label or None, **_used(each.spending)} for each in found
        ],
        "total": _used(total),
    }


def _used(spending: Spending) -> dict[str, Any]:
    from runner.app.show import cost_fields

    usage = spending.usage
    return {
        "calls": spending.calls,
        "input_tokens": usage.input_tokens,
        "cache_creation_tokens": usage.cache_creation_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "output_tokens": usage.output_tokens,
        **cost_fields(spending),
    }


def _say(prices: PriceList, by: By, found: Sequence[Cost], total: Spending) -> None:
    names = {"job": "name", "run": "item", "tree": "item"}
    heads = (by, names[by]) if by in names else (by,)
    say_table(
        (
            *heads,
            "calls",
            "input",
            "cache writes",
            "cache reads",
            "output",
            "cached",
            "cost",
            "plus",
        ),
        (
            (
                *((each.key, each.label) if by in names else (each.key,)),
                f"{each.spending.calls:,}",
                f"{each.spending.usage.input_tokens:,}",
                f"{each.spending.usage.cache_creation_tokens:,}",
                f"{each.spending.usage.cache_read_tokens:,}",
                f"{each.spending.usage.output_tokens:,}",
                cache_share(each.spending),
                cost(each.spending),
                at_most(each.spending),
            )
            for each in found
        ),
    )
    say(f"\ncost: {cost_line(total) or 'no calls yet'}")
    for model in sorted(total.unpriced):
        say(f"no price is known for {cell(model)}: give it one in a file named by RUNNER_PRICES")
    say(f"USD at the list prices of {prices.date} ({cell(prices.source)})")


def refuse_without_price(settings: Settings, database: Database, target: Target) -> None:
    """Refuse to limit the cost of runs whose model has no price. Raises ``UsageError``."""
    from runner import wiring
    from runner.core.spec import JobSpec
    from runner.jobfile.fit import missing_prices
    from runner.queries.jobs import show_job, show_run

    job_id = target.id
    if target.kind == "run":
        job_id = show_run(database, target.id)["job_id"]
    spec = JobSpec.from_json(show_job(database, job_id)["spec"])
    prices = wiring.load_prices(settings)
    for message in missing_prices(
        prices, spec.provider, spec.model, spec.model_options, spec.context
    ):
        raise UsageError(message)

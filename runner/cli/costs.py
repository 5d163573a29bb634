"""``costs``: what model calls used and cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from runner.app.humanize import at_most, cache_share, cell, cost, cost_line
from runner.cli.options import json_option, with_settings
from runner.cli.terminal import say, say_json, say_table
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.app.costs import Costs

# ``queries.costs.By``, which ``runner --help`` does not import.
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
def costs(settings: Settings, job: str | None, by: Any, as_json: bool) -> None:
    """Say what model calls have used and cost, of all jobs or of one.

    Costs are list prices times tokens, not an invoice. Calls under way are not in them, nor are
    calls of which nobody knows what they used: these are shown apart, as what they can have cost
    at most. A model without a price is named; RUNNER_PRICES can name a file that has one.

    \b
    Example:
      runner costs
      runner costs job_01jd9k --by model
    """
    from runner.app.costs import costs as costs_of
    from runner.app.handle import check_prices, open_app

    check_prices(settings)
    with open_app(settings) as app:
        found = costs_of(app, job, by)
    if as_json:
        say_json(found.as_json())
    else:
        _say(found)


def _say(found: Costs) -> None:
    by, total = found.by, found.total
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
            for each in found.lines
        ),
    )
    say(f"\ncost: {cost_line(total) or 'no calls yet'}")
    for model in sorted(total.unpriced):
        say(f"no price is known for {cell(model)}: give it one in a file named by RUNNER_PRICES")
    say(f"USD at the list prices of {found.prices.date} ({cell(found.prices.source)})")

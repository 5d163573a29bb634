"""What model calls used and cost."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from runner.core.money.prices import PriceList, Spending
from runner.core.rows import Column, Rows
from runner.store.audit.filters import Filters
from runner.store.audit.finding.calls import of_model_calls
from runner.store.audit.finding.shown import cut
from runner.store.connection.database import Database
from runner.store.look.costs import By, spent_by

SPENT = (
    Column("calls", "integer"),
    Column("input_tokens", "integer"),
    Column("cache_creation_tokens", "integer"),
    Column("cache_read_tokens", "integer"),
    Column("output_tokens", "integer"),
    Column("cost_usd", "usd"),
    Column("unknown_calls", "integer"),
    Column("unknown_at_most_usd", "usd"),
    Column("unpriced"),
)

# What else names a row.
_LABELS: Mapping[By, str] = {"job": "name", "run": "item", "tree": "item"}


def costs(
    database: Database,
    filters: Filters,
    prices: PriceList,
    by: By = "job",
    *,
    limit: int | None = None,
) -> Rows:
    """What model calls cost, in USD at list prices, as ``runner costs`` has it: a row for each job,
    run, model, day or purpose, the dearest first.

    ``cost_usd`` is of the calls whose usage is known, None if their model has no price (``unpriced``
    names it). ``unknown_calls`` are those whose usage nobody knows, with what they cost at most.
    """
    found = spent_by(database, prices, by, conditions=tuple(of_model_calls(filters)))
    found.sort(key=lambda each: (-each.spending.usd, each.key))
    heads = [Column(f"{by}_id" if by in _LABELS else by)]
    if by in _LABELS:
        heads.append(Column(_LABELS[by]))
    rows = [(*(each.key, each.label)[: len(heads)], *spent_row(each.spending)) for each in found]
    return cut((*heads, *SPENT), rows, limit, "the dearest")


def spent_row(spending: Spending) -> tuple[Any, ...]:
    """The values of the columns ``SPENT``."""
    usage = spending.usage
    return (
        spending.calls,
        usage.input_tokens,
        usage.cache_creation_tokens,
        usage.cache_read_tokens,
        usage.output_tokens,
        None if spending.unpriced else usd(spending.usd),
        spending.unknown,
        None if spending.unpriced else usd(spending.at_most),
        ", ".join(sorted(spending.unpriced)) or None,
    )


def usd(amount: Decimal) -> float:
    """An amount as ``runner costs --json`` has it, to the billionth of a USD."""
    return float(round(amount, 9))

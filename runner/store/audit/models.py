"""What each model was called for, how it did, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func

from runner.core.money.prices import PriceList, Spending
from runner.core.rows import Column, Rows
from runner.store.audit.costs import SPENT, spent_row
from runner.store.audit.filters import Filters
from runner.store.audit.finding.calls import of_model_calls
from runner.store.audit.finding.shown import cut
from runner.store.connection.database import Database
from runner.store.look.costs import Measured, Measures, measured_by

COLUMNS = (
    Column("model"),
    Column("replies", "integer"),
    Column("summaries", "integer"),
    Column("failed", "integer"),
    Column("average", "seconds"),
    Column("longest", "seconds"),
    Column("first_at", "time"),
    Column("last_at", "time"),
    *SPENT,
)


_MEASURES: Measures = {
    "replied": ("stop_reason", func.count),
    "latency": ("latency", func.sum),
    "longest": ("latency", func.max),
    "first_at": ("started_at", func.min),
    "last_at": ("started_at", func.max),
}


def models(
    database: Database, filters: Filters, prices: PriceList, *, limit: int | None = None
) -> Rows:
    """A row for each model, of its calls that have ended; the dearest first.

    ``replies`` are those to turns, ``summaries`` those that were asked for to make the context shorter,
    and ``failed`` calls that gave no reply. ``average`` and ``longest`` are of replies. The rest is as
    in ``costs``.
    """
    conditions = tuple(of_model_calls(filters))
    by_model: dict[str, list[Measured]] = {}
    for part in measured_by(database, prices, "model", _MEASURES, conditions):
        by_model.setdefault(part.row.key, []).append(part)
    spent = {
        model: sum((part.spending for part in parts), Spending())
        for model, parts in by_model.items()
    }
    rows = [
        (model, *_measured(by_model[model]), *spent_row(spent[model]))
        for model in sorted(spent, key=lambda model: (-spent[model].usd, model))
    ]
    return cut(COLUMNS, rows, limit, "the dearest")


def _measured(parts: Sequence[Measured]) -> tuple[float | None, ...]:
    """The columns that are not about costs."""
    rows = [part.row for part in parts]
    replied = sum(row.replied for row in rows)
    summaries = sum(row.replied for row in rows if row.purpose == "summary")
    latencies = [row.longest for row in rows if row.longest is not None]
    return (
        replied - summaries,
        summaries,
        sum(row.calls for row in rows) - replied,
        sum(row.latency or 0.0 for row in rows) / replied if replied else None,
        max(latencies, default=None),
        min(row.first_at for row in rows),
        max(row.last_at for row in rows),
    )

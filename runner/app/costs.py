"""Usage and cost of model calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from runner.app.handle import App
from runner.core.agents import lineage
from runner.core.losses import Losses, losses
from runner.core.losses import as_json as losses_as_json
from runner.core.prices import By, PriceList, Spending
from runner.core.spec import JobSpec
from runner.errors import UsageError
from runner.queries.costs import Cost, costs_by, priced_calls
from runner.queries.jobs import show_job
from runner.store.jobs import is_of_sessions


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of all jobs or of one."""

    prices: PriceList  # by which they were computed
    by: By  # what each line is of
    lines: Sequence[Cost]
    total: Spending
    losses: Losses | None = None  # of one job

    def as_json(self) -> dict[str, Any]:
        return {
            "prices": {"date": self.prices.date.isoformat(), "source": self.prices.source},
            "by": self.by,
            "lines": [
                {self.by: each.key, "label": each.label or None, **_used(each.spending)}
                for each in self.lines
            ],
            "total": _used(self.total),
            "losses": self.losses and losses_as_json(self.losses),
        }


def costs(app: App, job: str | None, by: By | None) -> Costs:
    """Return the costs of one job (by run) or of all jobs (by job), or ``by`` something else."""
    prices = app.prices()
    job_id = app.find_job(job) if job else None
    by = by or ("run" if job_id else "job")
    lines = costs_by(app.database, prices, by, job_id=job_id)
    lost = losses_of(app, job_id) if job_id else None
    return Costs(prices, by, lines, total_of(lines), lost)


def losses_of(app: App, job_id: str) -> Losses:
    """Return what a job's calls cost for nothing, and what would have been cheaper: of imported sessions
    nothing, as no job file of theirs could be changed."""
    prices, job = app.prices(), show_job(app.database, job_id)
    found = losses(priced_calls(app.database, prices, job_id), prices)
    return replace(found, cheaper=()) if is_of_sessions(job["name"], job["source"]) else found


def total_of(costs: Iterable[Cost]) -> Spending:
    return sum((each.spending for each in costs), Spending())


def spending_of(app: App, **of: Any) -> Spending:
    """Return what calls cost together: those that ``of`` selects, as ``costs_by`` takes it."""
    return total_of(costs_by(app.database, app.prices(), "job", **of))


def costs_of_trees(app: App, roots: Collection[str]) -> Mapping[str, Spending]:
    """Return what the runs of items and their sub-agents cost, each with all below it, by id."""
    found: defaultdict[str, Spending] = defaultdict(Spending)
    for each in costs_by(app.database, app.prices(), "run", trees=roots):
        for above in lineage(each.key):
            found[above] += each.spending
    return found


def with_costs(app: App, by: By, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of jobs, or of runs of one job, for JSON, each with what its calls cost."""
    trees = None if by == "job" else {row["root"] for row in rows}
    found = costs_by(app.database, app.prices(), by, trees=trees)
    spent = {each.key: each.spending for each in found}
    return [{**row, **cost_fields(spent.get(row["id"], Spending()))} for row in rows]


def cost_fields(spending: Spending) -> dict[str, Any]:
    """Return a cost for JSON. ``cost_usd`` is null if a model has no price, as then nobody knows
    (``priced_usd`` is the cost of the others), and leaves out the ``unknown_calls``."""

    def number(usd: Decimal) -> float:
        return float(round(usd, 9))

    return {
        "cost_usd": None if spending.unpriced else number(spending.usd),
        "priced_usd": number(spending.usd),
        "unpriced_models": sorted(spending.unpriced),
        **unknown_fields(spending),
        "cache_share": None if spending.cache_share is None else round(spending.cache_share, 4),
        "scripted_calls": spending.scripted,
    }


def unknown_fields(spending: Spending) -> dict[str, Any]:
    """Return, for JSON, the charge for calls of unknown usage, and what people wrote off."""
    priced = not spending.unpriced
    return {
        "unknown_calls": spending.unknown,
        "unknown_tokens": spending.unknown_tokens,
        "unknown_at_most_usd": float(round(spending.at_most, 9)) if priced else None,
        "written_off_calls": spending.written_off,
        "written_off_tokens": spending.written_off_tokens,
        "written_off_usd": float(round(spending.written_off_usd, 9)) if priced else None,
    }


def _used(spending: Spending) -> dict[str, Any]:
    names = ("input_tokens", "cache_creation_tokens", "cache_read_tokens", "output_tokens")
    used = {name: getattr(spending.usage, name) for name in names}
    return {"calls": spending.calls, **used, **cost_fields(spending)}


def refuse_unpriced(app: App, job_id: str, model: str | None = None) -> None:
    """Raise ``UsageError`` if the cost of a job's runs cannot be limited: its model, or the
    ``model`` that takes its place, has no price."""
    from runner.jobfile.check import missing_prices  # late: it slows the start of other commands

    spec = JobSpec.from_json(show_job(app.database, job_id)["spec"])
    model = model or spec.model
    for message in missing_prices(
        app.prices(), spec.provider, model, spec.model_options, spec.context
    ):
        raise UsageError(message)

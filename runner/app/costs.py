"""Sum what model calls used and cost, and refuse a cost limit for a model without a price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runner.app.handle import App
from runner.app.show import cost_fields
from runner.core.prices import PriceList, Spending
from runner.core.spec import JobSpec
from runner.errors import UsageError
from runner.jobfile.fit import missing_prices
from runner.queries.costs import By, Cost, costs_by
from runner.queries.jobs import show_job


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of all jobs or of one."""

    prices: PriceList  # by which they were computed
    by: By  # what each line is of
    lines: Sequence[Cost]
    total: Spending

    def as_json(self) -> dict[str, Any]:
        return {
            "prices": {"date": self.prices.date.isoformat(), "source": self.prices.source},
            "by": self.by,
            "lines": [
                {self.by: each.key, "label": each.label or None, **_used(each.spending)}
                for each in self.lines
            ],
            "total": _used(self.total),
        }


def costs(app: App, job: str | None, by: By | None) -> Costs:
    """Return the costs of a job, or of all jobs.

    Args:
        job: an id or a part of it; None: all jobs.
        by: what to sum up; None: jobs, or the runs of the job.
    """
    prices = app.prices()
    job_id = app.find_job(job) if job else None
    by = by or ("run" if job_id else "job")
    lines = costs_by(app.database, prices, by, job_id=job_id)
    return Costs(prices, by, lines, sum((each.spending for each in lines), Spending()))


def _used(spending: Spending) -> dict[str, Any]:
    usage = spending.usage
    return {
        "calls": spending.calls,
        "input_tokens": usage.input_tokens,
        "cache_creation_tokens": usage.cache_creation_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "output_tokens": usage.output_tokens,
        **cost_fields(spending),
    }


def refuse_unpriced(app: App, job_id: str, model: str | None = None) -> None:
    """Raise ``UsageError`` if the cost of a job's runs cannot be limited: its model has no price.

    Args:
        model: a model that takes the place of the job's.
    """
    spec = JobSpec.from_json(show_job(app.database, job_id)["spec"])
    for message in missing_prices(
        app.prices(), spec.provider, model or spec.model, spec.model_options, spec.context
    ):
        raise UsageError(message)

"""Jobs with budgets, whose calls have a price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

from runner.core.budget import Budget, Limits
from runner.core.prices import Rates, Tariff
from runner.core.spec import JobSpec
from runner.store import jobs as jobs_store
from runner.store.database import Database
from tests.store.asked import ASKING, run_ids
from tests.store.examples import NOW, submission

LIMITS = Limits(max_output_tokens=2_000, token_ceiling=1_000_000)
TARIFF = Tariff(Rates(*map(Decimal, (3, 4, 6, "0.3", 15))))


def priced(spec: JobSpec) -> Mapping[str, Tariff]:
    return {spec.model: TARIFF}


def submit_budgeted(
    database: Database,
    *keys: str,
    usd: float | None = None,
    tokens: int | None = None,
    limits: Limits = LIMITS,
) -> tuple[str, list[str]]:
    """A job with a budget, in which every command is asked about; its id and its runs'."""
    spec = replace(ASKING, limits=limits, budget=Budget(usd, tokens))
    job_id = jobs_store.submit(database, submission(*keys, spec=spec), NOW)
    return job_id, run_ids(database, job_id)

"""What each model call of a run used and cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, select

from runner.core.conversation import Purpose, Usage
from runner.core.money.prices import Calls, PriceList, Spending, Terms, spending
from runner.store.connection.database import Database
from runner.store.look.costs import Billed
from runner.store.tables import jobs, model_calls, runs


@dataclass(frozen=True, slots=True)
class CallSpent:
    """A model call that has ended. ``turn`` is the one that it was made for, ``latency`` in seconds;
    ``stop_reason`` is None when no reply came, and ``error`` says why."""

    number: int
    turn: int
    purpose: Purpose
    model: str
    started_at: float
    latency: float | None
    stop_reason: str | None
    error: str | None
    spending: Spending


def spent_in_calls(database: Database, prices: PriceList, run_id: str) -> list[CallSpent]:
    """The model calls of a run that have ended, in order, priced as ``spent_by`` prices their sums."""
    query = (
        select(model_calls)
        .where(model_calls.c.run_id == run_id, model_calls.c.charged_tokens.is_not(None))
        .order_by(model_calls.c.number)
    )

    def work(connection: Connection) -> list[CallSpent]:
        of_job = select(jobs.c.spec, runs.c.agent_type, runs.c.model).join_from(runs, jobs)
        run = connection.execute(of_job.where(runs.c.id == run_id)).one()
        billed = Billed.of(run.spec)
        return [
            _spent(prices, billed.terms(row.purpose, run.agent_type, run.model), row)
            for row in connection.execute(query)
        ]

    return database.read(work)


def _spent(prices: PriceList, terms: Terms, row: Row[Any]) -> CallSpent:
    if row.hour_cache is not None:
        terms = replace(terms, hour_cache=bool(row.hour_cache))
    usage = Usage(
        row.input_tokens or 0,
        row.cache_read_tokens or 0,
        row.cache_creation_tokens or 0,
        row.output_tokens or 0,
    )
    bound = row.worst_case - row.max_tokens
    is_unknown = row.input_tokens is None and row.charged_tokens > 0
    prompt = bound if row.input_tokens is None else usage.prompt_tokens
    calls = Calls(
        model=row.model,
        terms=terms,
        above=max((each for each in prices.thresholds if prompt > each), default=0),
        count=1,
        usage=usage,
        unknown=int(is_unknown),
        unknown_prompt=bound if is_unknown else 0,
        unknown_output=row.max_tokens if is_unknown else 0,
    )
    return CallSpent(
        number=row.number,
        turn=row.turn,
        purpose=row.purpose,
        model=row.model,
        started_at=row.started_at,
        latency=row.latency,
        stop_reason=row.stop_reason,
        error=row.error,
        spending=spending(prices, calls),
    )

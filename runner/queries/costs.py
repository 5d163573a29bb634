"""What model calls used and cost, in sums or call by call.

The database sums tokens, and a price list turns them into money: prices change, and a stored cost
could not be corrected. The view ``v_costs`` computes the same for SQL.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Self

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Text,
    and_,
    case,
    func,
    literal,
    select,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from runner.core.conversation import Purpose, Usage
from runner.core.prices import By, Calls, PriceList, Spending, Terms, spending
from runner.queries.filters import Filters, cut
from runner.queries.rows import Column, Rows, columns
from runner.store.conditions import ROOT_RUN
from runner.store.database import Database
from runner.store.tables import jobs, model_calls, runs

_TOKENS = ("input_tokens", "cache_read_tokens", "cache_creation_tokens", "output_tokens")
_SPENDING_COLUMNS = columns(
    "calls:integer input_tokens:integer cache_creation_tokens:integer cache_read_tokens:integer "
    "output_tokens:integer cost_usd:usd unknown_calls:integer unknown_at_most_usd:usd unpriced"
)
_KEY_COLUMNS: Mapping[By, tuple[Column, ...]] = {
    "job": columns("job_id name"),
    "run": columns("run_id item"),
    "tree": columns("tree_id item"),
    "model": columns("model"),
    "day": columns("day"),
    "purpose": columns("purpose"),
}
_MODEL_COLUMNS = columns(
    "model replies:integer summaries:integer failed:integer average:seconds longest:seconds "
    "first_at:time last_at:time"
)


@dataclass(frozen=True, slots=True)
class Cost:
    """What the calls of one job, run, tree, model, day or purpose have cost."""

    key: str  # its id, its name, or its date in UTC by the start of the calls
    label: str  # the job's name or the run's item, else empty
    spending: Spending


@dataclass(frozen=True, slots=True)
class CallCost:
    """A model call that has ended, and what it cost."""

    number: int
    turn: int  # the turn that it was made for
    purpose: Purpose
    model: str
    started_at: float
    latency: float | None  # seconds
    stop_reason: str | None  # None if no reply came
    error: str | None  # why no reply came
    spending: Spending


def costs_by(
    database: Database,
    prices: PriceList,
    by: By,
    *,
    job_id: str | None = None,
    run_id: str | None = None,
    conditions: Collection[ColumnElement[bool]] = (),
) -> list[Cost]:
    """What model calls that have ended cost, in the order of the keys.

    Args:
        by: what to sum by. ``tree`` is the run of an item with all of its sub-agents.
        job_id: only this job's calls.
        run_id: only this run's own calls.
        conditions: further conditions on ``model_calls`` and ``runs``.
    """
    of_job = () if job_id is None else (runs.c.job_id == job_id,)
    of_run = () if run_id is None else (runs.c.id == run_id,)
    calls = _ended_calls(prices, _key(by)).where(*of_job, *of_run, *conditions)

    if by == "job":
        named: Select[Any] = select(jobs.c.id, jobs.c.name)
        named = named.where(jobs.c.id == job_id) if job_id else named
    else:
        named = select(runs.c.id, runs.c.item_key).where(*of_job, *of_run)

    def work(connection: Connection) -> tuple[list[_Sum], dict[str, str]]:
        labels = connection.execute(named).all() if by in ("job", "run", "tree") else ()
        return _sums(connection, prices, calls), dict(labels)

    sums, labels = database.read(work)
    spent: dict[str, Spending] = {}
    for each in sums:
        spent[each.row.key] = spent.get(each.row.key, Spending()) + each.spending
    return [Cost(key, labels.get(key, ""), spent[key]) for key in sorted(spent)]


def call_costs(database: Database, prices: PriceList, run_id: str) -> list[CallCost]:
    """The model calls of a run that have ended, in order, with their costs."""
    names = ("number", "turn", "purpose", "model", "started_at", "latency", "stop_reason", "error")
    more = (model_calls.c[name] for name in names if name not in ("purpose", "model"))
    query = _ended_calls(prices, literal("")).add_columns(*more).where(runs.c.id == run_id)

    def work(connection: Connection) -> list[CallCost]:
        found = connection.execute(query.order_by(model_calls.c.number)).all()
        billing = _billing(connection, {row.job_id for row in found})
        return [
            CallCost(
                **{name: getattr(row, name) for name in names},
                spending=spending(prices, _billed(row, billing[row.job_id], count=1)),
            )
            for row in found
        ]

    return database.read(work)


def cost_rows(
    database: Database,
    filters: Filters,
    prices: PriceList,
    by: By = "job",
    *,
    limit: int | None = None,
) -> Rows:
    """What model calls cost, in USD at list prices, the same as ``costs_by``; the dearest first.

    ``cost_usd`` covers the calls whose usage is known; it is None if their model has no price
    (``unpriced`` names it). ``unknown_calls`` counts the others, with what they cost at most.
    """
    found = costs_by(database, prices, by, conditions=tuple(filters.of_model_calls()))
    found.sort(key=lambda each: (-each.spending.usd, each.key))
    keys = _KEY_COLUMNS[by]
    rows = [(*(each.key, each.label)[: len(keys)], *_spending_row(each.spending)) for each in found]
    return cut((*keys, *_SPENDING_COLUMNS), rows, limit, "the dearest")


def model_rows(
    database: Database, filters: Filters, prices: PriceList, *, limit: int | None = None
) -> Rows:
    """A row for each model, of its calls that have ended; the dearest first.

    ``replies`` counts replies to turns, ``summaries`` replies with a summary for compaction, and
    ``failed`` calls without a reply. ``average`` and ``longest`` are of replies. The other columns are
    those of ``cost_rows``.
    """
    calls = _ended_calls(prices, model_calls.c.model).where(*filters.of_model_calls())
    sums = database.read(lambda connection: _sums(connection, prices, calls))
    by_model: dict[str, list[_Sum]] = {}
    for each in sums:
        by_model.setdefault(each.row.key, []).append(each)
    spent = {
        model: sum((each.spending for each in of_model), Spending())
        for model, of_model in by_model.items()
    }
    rows = [
        (model, *_replies([each.row for each in by_model[model]]), *_spending_row(spent[model]))
        for model in sorted(spent, key=lambda model: (-spent[model].usd, model))
    ]
    return cut((*_MODEL_COLUMNS, *_SPENDING_COLUMNS), rows, limit, "the dearest")


def _replies(rows: Sequence[Row[Any]]) -> tuple[float | None, ...]:
    """The columns from ``replies`` to ``last_at``."""
    replied = sum(row.replies for row in rows)
    summaries = sum(row.replies for row in rows if row.purpose == "summary")
    return (
        replied - summaries,
        summaries,
        sum(row.calls for row in rows) - replied,
        sum(row.seconds or 0.0 for row in rows) / replied if replied else None,
        max((row.longest for row in rows if row.longest is not None), default=None),
        min(row.first_at for row in rows),
        max(row.last_at for row in rows),
    )


def _spending_row(spending: Spending) -> tuple[Any, ...]:
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
    """An amount to the billionth of a USD, as ``runner costs --json`` prints it."""
    return float(round(amount, 9))


class _UtcDay(FunctionElement[str]):
    """The day of seconds since the epoch, as text."""

    type = Text()
    inherit_cache = True


@compiles(_UtcDay, "sqlite")
def _sqlite_day(element: _UtcDay, compiler: Any, **options: Any) -> str:
    return f"date({compiler.process(element.clauses, **options)}, 'unixepoch')"


@compiles(_UtcDay, "postgresql")
def _postgres_day(element: _UtcDay, compiler: Any, **options: Any) -> str:
    seconds = compiler.process(element.clauses, **options)
    return f"to_char(to_timestamp({seconds}) AT TIME ZONE 'UTC', 'YYYY-MM-DD')"


def _key(by: By) -> ColumnElement[Any]:
    calls = model_calls.c
    return {
        "job": runs.c.job_id,
        "run": calls.run_id,
        "tree": ROOT_RUN,
        "model": calls.model,
        "day": _UtcDay(calls.started_at),
        "purpose": calls.purpose,
    }[by]


# What a call can have read at most.
_PROMPT_BOUND = model_calls.c.worst_case - model_calls.c.max_tokens
# Columns by which calls are priced alike, and those that are summed.
_ALIKE = ("key", "job_id", "model", "purpose", "agent_type", "run_model", "hour_cache", "above")
_SUMMED = (*_TOKENS, "unknown", "unknown_prompt", "unknown_output")


def _ended_calls(prices: PriceList, key: ColumnElement[Any]) -> Select[Any]:
    """A query of model calls that have ended, with all that decides what they cost."""
    calls = model_calls.c
    prompt = func.coalesce(
        calls.input_tokens + calls.cache_read_tokens + calls.cache_creation_tokens, _PROMPT_BOUND
    )
    thresholds = [(prompt > each, each) for each in reversed(prices.thresholds)]
    is_unknown = and_(calls.input_tokens.is_(None), calls.charged_tokens > 0)
    return (
        select(
            key.label("key"),
            runs.c.job_id,
            calls.model,
            calls.purpose,
            runs.c.agent_type,
            runs.c.model.label("run_model"),
            calls.hour_cache,
            (case(*thresholds, else_=0) if thresholds else literal(0)).label("above"),
            *(calls[name] for name in _TOKENS),
            case((is_unknown, 1)).label("unknown"),
            case((is_unknown, _PROMPT_BOUND)).label("unknown_prompt"),
            case((is_unknown, calls.max_tokens)).label("unknown_output"),
        )
        .join_from(model_calls, runs, runs.c.id == calls.run_id)
        .where(calls.charged_tokens.is_not(None))
    )


@dataclass(frozen=True, slots=True)
class _Sum:
    """The calls that share a key and a price."""

    row: Row[Any]
    spending: Spending


def _sums(connection: Connection, prices: PriceList, calls: Select[Any]) -> list[_Sum]:
    timed = (model_calls.c[name] for name in ("stop_reason", "latency", "started_at"))
    one = calls.add_columns(*timed).subquery().c
    alike = [one[name] for name in _ALIKE]
    query: Select[Any] = select(
        *alike,
        func.count().label("calls"),
        *(func.coalesce(func.sum(one[name]), 0).label(name) for name in _SUMMED),
        func.count(one.stop_reason).label("replies"),
        func.sum(one.latency).label("seconds"),
        func.max(one.latency).label("longest"),
        func.min(one.started_at).label("first_at"),
        func.max(one.started_at).label("last_at"),
    ).group_by(*alike)
    found: list[Row[Any]] = list(connection.execute(query))
    billing = _billing(connection, {row.job_id for row in found})
    return [
        _Sum(row, spending(prices, _billed(row, billing[row.job_id], count=row.calls)))
        for row in found
    ]


@dataclass(frozen=True, slots=True)
class _Billing:
    """How the calls of a job's runs are billed."""

    provider: str
    options: Mapping[str, Any]
    models: Mapping[str | None, str]  # by sub-agent type; None is a run of an item
    summary_model: str | None  # None where each run's own model writes summaries

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Self:
        """From a job's spec as it is stored."""
        types = spec.get("agents") or ()
        models = {agent["name"]: agent.get("model") or spec["model"] for agent in types}
        return cls(
            spec["provider"],
            spec.get("model_options") or {},
            {None: spec["model"], **models},
            (spec.get("context") or {}).get("summary_model"),
        )

    def terms(self, call: Row[Any]) -> Terms:
        own = call.run_model or self.models.get(call.agent_type, self.models[None])
        is_own = call.purpose == "turn" or self.summary_model in (None, own)
        terms = Terms.of(self.provider, self.options, own_model=is_own)
        if call.hour_cache is None:  # not stored by older versions: the job's
            return terms
        return replace(terms, hour_cache=bool(call.hour_cache))


def _billing(connection: Connection, job_ids: Collection[str]) -> dict[str, _Billing]:
    if not job_ids:
        return {}
    # Specs are read whole: Postgres cannot extract anything from JSON that contains a NUL.
    query = select(jobs.c.id, jobs.c.spec).where(jobs.c.id.in_(job_ids))
    return {job_id: _Billing.of(spec) for job_id, spec in connection.execute(query)}


def _billed(row: Row[Any], billing: _Billing, count: int) -> Calls:
    summed = {name: int(getattr(row, name) or 0) for name in _SUMMED}
    return Calls(
        model=row.model,
        terms=billing.terms(row),
        above=int(row.above),
        count=count,
        usage=Usage(**{name: summed.pop(name) for name in _TOKENS}),
        **summed,
    )

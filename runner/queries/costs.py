"""What model calls used and cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal, get_args

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
from runner.core.prices import (
    Calls,
    PriceList,
    Spending,
    Terms,
    spending,
)
from runner.queries.filters import Filters, of_model_calls
from runner.queries.rows import Column, Rows, cut
from runner.store.conditions import ROOT_RUN
from runner.store.database import Database
from runner.store.tables import jobs, model_calls, runs

By = Literal["job", "run", "tree", "model", "day", "purpose"]
BY: tuple[By, ...] = get_args(By)

_TOKENS = ("input_tokens", "cache_read_tokens", "cache_creation_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Billing:
    """How the calls of a job's runs are billed. ``models`` are those of its sub-agents by their type; None
    is the type of a run of an item. ``summary_model`` is None where each run's own writes summaries."""

    provider: str
    options: Mapping[str, Any]
    models: Mapping[str | None, str]
    summary_model: str | None

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Billing:
        """By a job's spec as it is stored."""
        types = spec.get("agents") or ()
        models = {agent["name"]: agent.get("model") or spec["model"] for agent in types}
        return cls(
            spec["provider"],
            spec.get("model_options") or {},
            {None: spec["model"], **models},
            (spec.get("context") or {}).get("summary_model"),
        )

    def terms(self, purpose: Purpose, agent_type: str | None, run_model: str | None) -> Terms:
        """The terms of a call.

        Args:
            agent_type: of the run. run_model: that the run has in place of its job's or its type's.
        """
        own = run_model or self.models.get(agent_type, self.models[None])
        is_own = purpose == "turn" or self.summary_model in (None, own)
        return Terms.of(self.provider, self.options, own_model=is_own)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one job, run, model, day or purpose has cost, or the run of an item with all that it has
    started (``tree``). ``key`` is its id, name or date (in UTC, of the calls' beginnings) or ``turn`` or
    ``summary``, ``label`` the name of a job and the item of a run."""

    key: str
    label: str
    spending: Spending


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
        by: one line for each of these.
        job_id: only this job's calls. run_id: only this run's, without those that it has started.
        conditions: only calls that meet these, of ``model_calls`` and ``runs``.
    """
    lines, labels = _priced(database, prices, by, job_id, run_id, conditions, {})
    spent: dict[str, Spending] = {}
    for line in lines:
        key = line.row.key
        spent[key] = spent.get(key, Spending()) + line.spending
    return [Cost(key, labels.get(key, ""), spent[key]) for key in sorted(spent)]


# What else is to be known of calls that are summed, by name: a column, and how its values become one.
Measures = Mapping[str, tuple[str, Callable[[ColumnElement[Any]], ColumnElement[Any]]]]


@dataclass(frozen=True, slots=True)
class Measured:
    """Calls that share a key, a job, a kind of run and a price. ``row`` has the key and the measures by
    name."""

    row: Row[Any]
    spending: Spending


def measured_by(
    database: Database,
    prices: PriceList,
    by: By,
    measures: Measures,
    conditions: Collection[ColumnElement[bool]] = (),
) -> list[Measured]:
    """What ``spent_by`` sums up, in parts and with more than costs.

    Args:
        measures: of ``model_calls``.
        conditions: as in ``spent_by``.
    """
    return _priced(database, prices, by, None, None, conditions, measures)[0]


def _priced(
    database: Database,
    prices: PriceList,
    by: By,
    job_id: str | None,
    run_id: str | None,
    conditions: Collection[ColumnElement[bool]],
    measures: Measures,
) -> tuple[list[Measured], dict[str, str]]:
    """The parts, and what else names them by their keys."""
    query = _sums(prices, by, job_id, run_id, conditions, measures)

    def work(connection: Connection) -> tuple[list[Row[Any]], dict[str, Billing], dict[str, str]]:
        found = list(connection.execute(query).all())
        billed = _billed(connection, {row.job_id for row in found})
        return found, billed, _cost_labels(connection, by, job_id, run_id)

    found, billed, labels = database.read(work)
    parts = [Measured(row, spending(prices, _calls(row, billed[row.job_id]))) for row in found]
    return parts, labels


def _billed(connection: Connection, job_ids: Collection[str]) -> dict[str, Billing]:
    if not job_ids:
        return {}
    # Read whole: Postgres can take nothing out of JSON that has a NUL anywhere.
    query = select(jobs.c.id, jobs.c.spec).where(jobs.c.id.in_(job_ids))
    return {job_id: Billing.of(spec) for job_id, spec in connection.execute(query)}


def _calls(row: Row[Any], billed: Billing) -> Calls:
    """Calls of a Runner that stored no ``hour_cache`` had the job's."""
    terms = billed.terms(row.purpose, row.agent_type, row.run_model)
    if row.hour_cache is not None:
        terms = replace(terms, hour_cache=bool(row.hour_cache))
    return Calls(
        model=row.model,
        terms=terms,
        above=int(row.above),
        count=int(row.calls),
        usage=Usage(**{name: int(getattr(row, name)) for name in _TOKENS}),
        unknown=int(row.unknown),
        unknown_prompt=int(row.unknown_prompt),
        unknown_output=int(row.unknown_output),
    )


# What a call can have read at most.
_BOUND = model_calls.c.worst_case - model_calls.c.max_tokens


def _sums(
    prices: PriceList,
    by: By,
    job_id: str | None,
    run_id: str | None,
    conditions: Collection[ColumnElement[bool]],
    measures: Measures,
) -> Select[Any]:
    """One row for all calls that share key, job, model, purpose, kind of run and price."""
    shared, summed = _shared(prices, by), _summed()
    calls = model_calls.c
    each = (
        select(
            *(value.label(name) for name, value in (shared | summed).items()),
            *(calls[column].label(f"its_{column}") for column in _measured_columns(measures)),
        )
        .join(runs, runs.c.id == calls.run_id)
        .where(calls.charged_tokens.is_not(None), *conditions)
    )
    if job_id is not None:
        each = each.where(runs.c.job_id == job_id)
    if run_id is not None:
        each = each.where(calls.run_id == run_id)
    one = each.subquery()
    keys = {name: one.c[name] for name in shared}
    named = keys.get("key", keys.get("job_id" if by == "job" else by))
    assert named is not None, by
    return select(
        named.label("key"),
        *(column for name, column in keys.items() if name != "key"),
        func.count().label("calls"),
        *(func.coalesce(func.sum(one.c[name]), 0).label(name) for name in summed),
        *(
            sum_up(one.c[f"its_{column}"]).label(name)
            for name, (column, sum_up) in measures.items()
        ),
    ).group_by(*keys.values())


def _shared(prices: PriceList, by: By) -> dict[str, ColumnElement[Any]]:
    calls = model_calls.c
    prompt = func.coalesce(
        calls.input_tokens + calls.cache_read_tokens + calls.cache_creation_tokens, _BOUND
    )
    shared: dict[str, ColumnElement[Any]] = {
        "job_id": runs.c.job_id,
        "model": calls.model,
        "purpose": calls.purpose,
        "agent_type": runs.c.agent_type,
        "run_model": runs.c.model,
        "hour_cache": calls.hour_cache,
        "above": _above(prompt, prices.thresholds),
    }
    if by == "run":
        shared["key"] = calls.run_id
    elif by == "tree":
        shared["key"] = ROOT_RUN
    elif by == "day":
        shared["key"] = _UtcDay(calls.started_at)
    return shared


def _summed() -> dict[str, ColumnElement[Any]]:
    calls = model_calls.c
    is_unknown = and_(calls.input_tokens.is_(None), calls.charged_tokens > 0)
    return {
        **{name: calls[name] for name in _TOKENS},
        "unknown": case((is_unknown, 1)),
        "unknown_prompt": case((is_unknown, _BOUND)),
        "unknown_output": case((is_unknown, calls.max_tokens)),
    }


def _measured_columns(measures: Measures) -> list[str]:
    return list(dict.fromkeys(column for column, _ in measures.values()))


def _above(prompt: ColumnElement[Any], thresholds: tuple[int, ...]) -> ColumnElement[Any]:
    if not thresholds:
        return literal(0)
    return case(*((prompt > each, each) for each in reversed(thresholds)), else_=0)


def _cost_labels(
    connection: Connection, by: By, job_id: str | None, run_id: str | None
) -> dict[str, str]:
    if by == "job":
        query = select(jobs.c.id, jobs.c.name)
        query = query.where(jobs.c.id == job_id) if job_id else query
    elif by in ("run", "tree"):
        query = select(runs.c.id, runs.c.item_key)
        query = query.where(runs.c.job_id == job_id) if job_id else query
        query = query.where(runs.c.id == run_id) if run_id else query
    else:
        return {}
    return {row.id: row[1] for row in connection.execute(query)}


@dataclass(frozen=True, slots=True)
class CallCost:
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


def call_costs(database: Database, prices: PriceList, run_id: str) -> list[CallCost]:
    """The model calls of a run that have ended, in order, priced as ``spent_by`` prices their sums."""
    query = (
        select(model_calls)
        .where(model_calls.c.run_id == run_id, model_calls.c.charged_tokens.is_not(None))
        .order_by(model_calls.c.number)
    )

    def work(connection: Connection) -> list[CallCost]:
        of_job = select(jobs.c.spec, runs.c.agent_type, runs.c.model).join_from(runs, jobs)
        run = connection.execute(of_job.where(runs.c.id == run_id)).one()
        billed = Billing.of(run.spec)
        return [
            _call_cost(prices, billed.terms(row.purpose, run.agent_type, run.model), row)
            for row in connection.execute(query)
        ]

    return database.read(work)


def _call_cost(prices: PriceList, terms: Terms, row: Row[Any]) -> CallCost:
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
    return CallCost(
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


_COST_COLUMNS = (
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
_LABELLED_BY: Mapping[By, str] = {"job": "name", "run": "item", "tree": "item"}


def cost_rows(
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
    found = costs_by(database, prices, by, conditions=tuple(of_model_calls(filters)))
    found.sort(key=lambda each: (-each.spending.usd, each.key))
    heads = [Column(f"{by}_id" if by in _LABELLED_BY else by)]
    if by in _LABELLED_BY:
        heads.append(Column(_LABELLED_BY[by]))
    rows = [(*(each.key, each.label)[: len(heads)], *_cost_row(each.spending)) for each in found]
    return cut((*heads, *_COST_COLUMNS), rows, limit, "the dearest")


def _cost_row(spending: Spending) -> tuple[Any, ...]:
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


_MODEL_COLUMNS = (
    Column("model"),
    Column("replies", "integer"),
    Column("summaries", "integer"),
    Column("failed", "integer"),
    Column("average", "seconds"),
    Column("longest", "seconds"),
    Column("first_at", "time"),
    Column("last_at", "time"),
    *_COST_COLUMNS,
)


_MODEL_MEASURES: Measures = {
    "replied": ("stop_reason", func.count),
    "latency": ("latency", func.sum),
    "longest": ("latency", func.max),
    "first_at": ("started_at", func.min),
    "last_at": ("started_at", func.max),
}


def model_rows(
    database: Database, filters: Filters, prices: PriceList, *, limit: int | None = None
) -> Rows:
    """A row for each model, of its calls that have ended; the dearest first.

    ``replies`` are those to turns, ``summaries`` those that were asked for to make the context shorter,
    and ``failed`` calls that gave no reply. ``average`` and ``longest`` are of replies. The rest is as
    in ``costs``.
    """
    conditions = tuple(of_model_calls(filters))
    by_model: dict[str, list[Measured]] = {}
    for part in measured_by(database, prices, "model", _MODEL_MEASURES, conditions):
        by_model.setdefault(part.row.key, []).append(part)
    spent = {
        model: sum((part.spending for part in parts), Spending())
        for model, parts in by_model.items()
    }
    rows = [
        (model, *_model_measures(by_model[model]), *_cost_row(spent[model]))
        for model in sorted(spent, key=lambda model: (-spent[model].usd, model))
    ]
    return cut(_MODEL_COLUMNS, rows, limit, "the dearest")


def _model_measures(parts: Sequence[Measured]) -> tuple[float | None, ...]:
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

"""What model calls used and cost, summed by the database and priced by a list."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
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
from runner.core.money.prices import Calls, PriceList, Spending, Terms, spending
from runner.store.connection.database import Database
from runner.store.look.family.places import ROOT
from runner.store.tables import jobs, model_calls, runs

By = Literal["job", "run", "tree", "model", "day", "purpose"]
BY: tuple[By, ...] = get_args(By)

_TOKENS = ("input_tokens", "cache_read_tokens", "cache_creation_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Billed:
    """How the calls of a job's runs are billed. ``models`` are those of its sub-agents by their type; None
    is the type of a run of an item. ``summary_model`` is None where each run's own writes summaries."""

    provider: str
    options: Mapping[str, Any]
    models: Mapping[str | None, str]
    summary_model: str | None

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Billed:
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
class Spent:
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


def spent_by(
    database: Database,
    prices: PriceList,
    by: By,
    *,
    job_id: str | None = None,
    run_id: str | None = None,
    conditions: Collection[ColumnElement[bool]] = (),
) -> list[Spent]:
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
    return [Spent(key, labels.get(key, ""), spent[key]) for key in sorted(spent)]


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

    def work(connection: Connection) -> tuple[list[Row[Any]], dict[str, Billed], dict[str, str]]:
        found = list(connection.execute(query).all())
        billed = _billed(connection, {row.job_id for row in found})
        return found, billed, _labels(connection, by, job_id, run_id)

    found, billed, labels = database.read(work)
    parts = [Measured(row, spending(prices, _calls(row, billed[row.job_id]))) for row in found]
    return parts, labels


def _billed(connection: Connection, job_ids: Collection[str]) -> dict[str, Billed]:
    if not job_ids:
        return {}
    # Read whole: Postgres can take nothing out of JSON that has a NUL anywhere.
    query = select(jobs.c.id, jobs.c.spec).where(jobs.c.id.in_(job_ids))
    return {job_id: Billed.of(spec) for job_id, spec in connection.execute(query)}


def _calls(row: Row[Any], billed: Billed) -> Calls:
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
        shared["key"] = ROOT
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


def _labels(
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

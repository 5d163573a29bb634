"""Usage and cost of model calls, in sums or call by call.

The database sums tokens, and a price list turns them into money: prices change, and a stored cost
could not be corrected. The view ``v_costs`` computes the same for SQL.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, case, exists, func, literal, select

from runner.core.conversation import Purpose, Usage
from runner.core.losses import PricedCall
from runner.core.prices import By, Calls, PriceList, Spending, Terms, spending
from runner.queries.filters import Filters, answer
from runner.queries.rows import Column, Rows, columns
from runner.store.conditions import ROOT_RUN, in_trees
from runner.store.database import Database
from runner.store.tables import compactions, jobs, model_calls, runs

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
_OF_PRICED_CALL = ("run_id", "turn", "purpose", "model", "started_at", "ended_at")
_MODEL_COLUMNS = columns(
    "model replies:integer summaries:integer failed:integer average:seconds longest:seconds "
    "first_at:time last_at:time"
)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of the calls of one job, run, tree, model, day or purpose."""

    key: str  # its id, its name, or its date in UTC by the start of the calls
    label: str  # the job's name or the run's item, else empty
    spending: Spending


@dataclass(frozen=True, slots=True)
class CallCost:
    number: int
    turn: int  # the turn that it was made for
    purpose: Purpose
    latency: float | None  # seconds
    spending: Spending


def costs_by(
    database: Database,
    prices: PriceList,
    by: By,
    *,
    job_id: str | None = None,
    run_id: str | None = None,
    trees: Collection[str] | None = None,
    conditions: Collection[ColumnElement[bool]] = (),
) -> list[Cost]:
    """Return the costs of the ended model calls of a job, a run (without its sub-agents) or
    ``trees`` (runs of items, with them) that meet the conditions on ``model_calls`` and ``runs``,
    ordered by key. ``tree`` sums by the run of an item with all of its sub-agents."""
    of_job = () if job_id is None else (runs.c.job_id == job_id,)
    of_run: tuple[ColumnElement[bool], ...] = ()
    if run_id is not None or trees is not None:
        of_run = (in_trees(trees) if trees is not None else runs.c.id == run_id,)
    calls = _ended_calls(prices, _key(database, by)).where(*of_job, *of_run, *conditions)
    named: Select[Any] = select(runs.c.id, runs.c.item_key).where(*of_job, *of_run)
    if by == "job":
        of_jobs = () if job_id is None else (jobs.c.id == job_id,)
        named = select(jobs.c.id, jobs.c.name).where(*of_jobs)

    def work(connection: Connection) -> tuple[dict[str, list[_Sum]], dict[str, str]]:
        labels = connection.execute(named).all() if by in ("job", "run", "tree") else ()
        return _sums(connection, prices, calls), dict(labels)

    sums, labels = database.read(work)
    return [Cost(key, labels.get(key, ""), _total(sums[key])) for key in sorted(sums)]


def call_costs(
    database: Database, prices: PriceList, run_id: str, turns: tuple[int, int] | None = None
) -> list[CallCost]:
    """The model calls of a run (of the turns from the first number to the last) that have ended, in order,
    with their costs."""
    more = (model_calls.c[name] for name in ("number", "turn", "latency"))
    calls = _ended_calls(prices, literal("")).add_columns(literal(1).label("calls"), *more)
    query = calls.where(runs.c.id == run_id).order_by(model_calls.c.number)
    if turns is not None:
        query = query.where(model_calls.c.turn.between(*turns))
    priced = database.read(lambda connection: _priced(connection, prices, query))
    return [CallCost(row.number, row.turn, row.purpose, row.latency, cost) for row, cost in priced]


def known_costs(database: Database, prices: PriceList, run_id: str) -> dict[int, float]:
    """The costs in USD of a run's model calls, by number: of those with a known usage and a price."""
    call = model_calls.c
    calls = _ended_calls(prices, literal("")).add_columns(literal(1).label("calls"), call.number)
    query = calls.where(runs.c.id == run_id, call.input_tokens.is_not(None))
    priced = database.read(lambda connection: _priced(connection, prices, query))
    return {row.number: float(cost.usd) for row, cost in priced if not cost.unpriced}


def priced_calls(database: Database, prices: PriceList, job_id: str) -> list[PricedCall]:
    """Return the model calls of a job that have ended, by run and number."""
    call, root = model_calls.c, runs.alias()
    state = select(root.c.state).where(root.c.id == ROOT_RUN).scalar_subquery()
    is_first_sent = exists().where(
        compactions.c.run_id == call.run_id, compactions.c.first_sent_in == call.number
    )
    query = (
        _ended_calls(prices, literal(""))
        .add_columns(literal(1).label("calls"), call.run_id, call.turn, call.started_at)
        .add_columns(func.coalesce(call.ended_at, call.started_at).label("ended_at"))
        .add_columns(call.stop_reason, state.label("root_state"), is_first_sent.label("compacted"))
        .where(runs.c.job_id == job_id)
        .order_by(call.run_id, call.number)
    )
    ((spec,),) = database.rows(select(jobs.c.spec).where(jobs.c.id == job_id))

    def priced(row: Row[Any]) -> PricedCall:
        found = _calls(row, spec)
        rates = None
        if not found.terms.scripted:
            rates = prices.rates(found.model, found.terms, found.above)
        return PricedCall(
            **{name: getattr(row, name) for name in _OF_PRICED_CALL},
            replied=row.stop_reason is not None,
            failed=row.root_state == "failed",
            compacted=bool(row.compacted),
            spending=spending(prices, found),
            terms=found.terms,
            rates=rates,
        )

    return [priced(row) for row in database.rows(query)]


def cost_rows(database: Database, filters: Filters, prices: PriceList, by: By = "job") -> Rows:
    """Return the cost of model calls as in ``costs_by``, the highest first. ``cost_usd`` covers
    calls of known usage; it is None if their model has no price (``unpriced``). ``unknown_calls``
    are the others."""
    found = costs_by(database, prices, by, conditions=tuple(filters.of_model_calls()))
    found.sort(key=lambda each: (-each.spending.usd, each.key))
    keys = _KEY_COLUMNS[by]
    rows = [
        dict(zip((column.name for column in keys), (each.key, each.label), strict=False))
        | _spending_columns(each.spending)
        for each in found
    ]
    return answer(database, (*keys, *_SPENDING_COLUMNS), rows, filters, "the dearest")


def model_rows(database: Database, filters: Filters, prices: PriceList) -> Rows:
    """A row for each model, of its ended calls; the dearest first. ``replies`` counts replies to
    turns, ``summaries`` those for compaction, ``failed`` calls without one; the rest is as in
    ``cost_rows``."""
    calls = _ended_calls(prices, model_calls.c.model).where(*filters.of_model_calls())
    by_model = database.read(lambda connection: _sums(connection, prices, calls))
    spent = {model: _total(sums) for model, sums in by_model.items()}
    found = []
    for model in sorted(spent, key=lambda model: (-spent[model].usd, model)):
        rows = [row for row, _ in by_model[model]]
        replied = sum(row.replies for row in rows)
        summaries = sum(row.replies for row in rows if row.purpose == "summary")
        replies = {
            "replies": replied - summaries,
            "summaries": summaries,
            "failed": sum(row.calls for row in rows) - replied,
            "average": sum(row.seconds or 0.0 for row in rows) / replied if replied else None,
            "longest": max((row.longest for row in rows if row.longest is not None), default=None),
            "first_at": min(row.first_at for row in rows),
            "last_at": max(row.last_at for row in rows),
        }
        found.append({"model": model, **replies, **_spending_columns(spent[model])})
    return answer(database, (*_MODEL_COLUMNS, *_SPENDING_COLUMNS), found, filters, "the dearest")


def _spending_columns(spending: Spending) -> dict[str, Any]:
    return {
        "calls": spending.calls,
        **{name: getattr(spending.usage, name) for name in _TOKENS},
        "cost_usd": None if spending.unpriced else usd(spending.usd),
        "unknown_calls": spending.unknown,
        "unknown_at_most_usd": None if spending.unpriced else usd(spending.at_most),
        "unpriced": ", ".join(sorted(spending.unpriced)) or None,
    }


def usd(amount: Decimal) -> float:
    """An amount to the billionth of a USD, as ``runner costs --json`` prints it."""
    return float(round(amount, 9))


def _key(database: Database, by: By) -> ColumnElement[Any]:
    calls, at = model_calls.c, model_calls.c.started_at
    if database.dialect == "sqlite":
        day = func.date(at, "unixepoch")
    else:
        day = func.to_char(func.timezone("UTC", func.to_timestamp(at)), "YYYY-MM-DD")
    keys = {"run": calls.run_id, "model": calls.model, "purpose": calls.purpose}
    return (keys | {"job": runs.c.job_id, "tree": ROOT_RUN, "day": day})[by]


# The most that a call can have read.
_PROMPT_BOUND = model_calls.c.worst_case - model_calls.c.max_tokens
# Columns by which calls are priced alike, and columns that are summed.
_ALIKE = (
    *("key", "job_id", "model", "purpose", "agent_type", "run_model", "hour_cache", "batch"),
    "above",
)
_UNKNOWN = (
    *("unknown", "unknown_prompt", "unknown_output"),
    *("written_off", "off_prompt", "off_output"),
)
_SUMMED = (*_TOKENS, *_UNKNOWN)


def _ended_calls(prices: PriceList, key: ColumnElement[Any]) -> Select[Any]:
    """A query of model calls that have ended, with all that decides what they cost."""
    calls = model_calls.c
    prompt = func.coalesce(
        calls.input_tokens + calls.cache_read_tokens + calls.cache_creation_tokens, _PROMPT_BOUND
    )
    thresholds = [(prompt > each, each) for each in reversed(prices.thresholds)]
    known = func.coalesce(sum((calls[name] for name in _TOKENS), literal(0)), 0)
    bound = case((calls.input_tokens.is_(None), _PROMPT_BOUND), else_=0)
    unknown, written_off = calls.charged_tokens - known, calls.written_off_tokens
    return (
        select(
            *(key.label("key"), runs.c.job_id, calls.model, calls.purpose),
            *(calls.hour_cache, calls.batch, runs.c.agent_type, runs.c.model.label("run_model")),
            (case(*thresholds, else_=0) if thresholds else literal(0)).label("above"),
            *(calls[name] for name in _TOKENS),
            case((unknown > 0, 1)).label("unknown"),
            case((unknown > 0, bound)).label("unknown_prompt"),
            case((unknown > 0, unknown - bound)).label("unknown_output"),
            case((written_off > 0, 1)).label("written_off"),
            case((written_off > 0, bound)).label("off_prompt"),
            case((written_off > 0, written_off - bound)).label("off_output"),
        )
        .join_from(model_calls, runs, runs.c.id == calls.run_id)
        .where(calls.charged_tokens.is_not(None))
    )


_Sum = tuple[Row[Any], Spending]  # calls of one key that are priced alike, and what they cost


def _sums(connection: Connection, prices: PriceList, calls: Select[Any]) -> dict[str, list[_Sum]]:
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
    found: dict[str, list[_Sum]] = {}
    for each in _priced(connection, prices, query):
        found.setdefault(each[0].key, []).append(each)
    return found


def _total(sums: Sequence[_Sum]) -> Spending:
    return sum((spent for _, spent in sums), Spending())


def _priced(connection: Connection, prices: PriceList, query: Select[Any]) -> list[_Sum]:
    rows = connection.execute(query).all()
    # Specs are read whole: Postgres cannot extract anything from JSON that contains a NUL.
    stored = select(jobs.c.id, jobs.c.spec).where(jobs.c.id.in_({row.job_id for row in rows}))
    specs = dict(connection.execute(stored).all())
    return [(row, _spending(prices, row, specs[row.job_id])) for row in rows]


def _spending(prices: PriceList, row: Row[Any], spec: Mapping[str, Any]) -> Spending:
    """Return the cost of calls that are priced alike. ``spec`` is the stored spec of their job."""
    return spending(prices, _calls(row, spec))


def _calls(row: Row[Any], spec: Mapping[str, Any]) -> Calls:
    types = {agent["name"]: agent.get("model") for agent in spec.get("agents") or ()}
    own = row.run_model or types.get(row.agent_type) or spec["model"]
    summary_model = (spec.get("context") or {}).get("summary_model")
    is_own = row.purpose == "turn" or summary_model in (None, own)
    terms = Terms.of(spec["provider"], spec.get("model_options") or {}, own_model=is_own)
    terms = terms.of_call(row.hour_cache, row.batch)
    summed = {name: int(getattr(row, name) or 0) for name in _SUMMED}
    usage = Usage(**{name: summed.pop(name) for name in _TOKENS})
    return Calls(row.model, terms, int(row.above), row.calls, usage, **summed)

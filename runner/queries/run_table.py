"""The runs of a job as a table: filtered, sorted, and a page at a time.

A page begins behind a key, the sorted value and the id of the last row before it, so that the hundredth
page costs no more than the first, and nothing is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Text,
    and_,
    cast,
    func,
    literal_column,
    or_,
    select,
)

from runner.store.conditions import (
    IS_ITEM_RUN,
    IS_OPEN_APPROVAL,
    IS_OWN_CALL,
    ROOT_RUN,
    superseded_runs,
)
from runner.store.database import Database
from runner.store.tables import approvals, run_items, runs, tool_calls

# Of the largest number, with the space before it: to search all that follows would be slow.
_DIGITS = 20
_BELOW = runs.alias()
_IS_BELOW = _BELOW.c.root_run == runs.c.id  # a sub-agent's run, below the run of an item
SORTS = ("submitted", "item", "turns", "tokens", "cost", "time", "ended")


@dataclass(frozen=True, slots=True)
class RunFilters:
    """Filters of the runs of a job's items. All given ones must hold."""

    state: str | None = None
    reason: str | None = None
    text: str | None = None  # in the item or its key, in any case
    tool: str | None = None  # that it or a sub-agent has called
    denied: bool = False  # a call of it or of a sub-agent was denied
    waiting: bool = False  # a person is asked something, by it or by a sub-agent
    usd: float | None = None  # it or its sub-agents cost at least this much


def run_ids(
    database: Database,
    job_id: str,
    filters: RunFilters,
    *,
    sort: str = "submitted",
    descending: bool = False,
    after: tuple[Any, str] | None = None,
    limit: int,
) -> list[tuple[Any, str]]:
    """The sorted values and ids of the first runs that match, behind a value and an id: ``limit`` at most.
    ``sort`` is one of ``SORTS``."""
    value = _sorted_by(database, sort)
    query = select(value.label("value"), runs.c.id).where(*_conditions(database, job_id, filters))
    if after is not None:
        query = query.where(_is_behind(value, after, descending))
    order = (value.desc(), runs.c.id.desc()) if descending else (value, runs.c.id)
    return [(row.value, row.id) for row in database.rows(query.order_by(*order).limit(limit))]


def reasons(database: Database, job_id: str) -> list[tuple[str, str]]:
    """The states and reasons that runs of a job's items have."""
    found = select(runs.c.state, runs.c.reason).where(runs.c.job_id == job_id, IS_ITEM_RUN)
    found = found.distinct().order_by(runs.c.state, runs.c.reason)
    return [(row.state, row.reason) for row in database.rows(found)]


def count_up_to(database: Database, job_id: str, filters: RunFilters, most: int) -> int:
    """Return the number of runs that match, or ``most`` if there are more."""
    found = select(runs.c.id).where(*_conditions(database, job_id, filters)).limit(most).subquery()
    ((count,),) = database.rows(select(func.count()).select_from(found))
    return int(count)


def failed_runs(database: Database, job_id: str, limit: int) -> list[dict[str, Any]]:
    """The newest runs of items that failed or were stopped, and were not begun afresh."""
    names = ("id", "item_key", "state", "reason", "detail", "ended_at")
    query = (
        select(*(runs.c[name] for name in names))
        .where(runs.c.job_id == job_id, IS_ITEM_RUN, runs.c.state.in_(("failed", "stopped")))
        .where(runs.c.id.not_in(superseded_runs(job_id)))
        .order_by(runs.c.ended_at.desc())
        .limit(limit)
    )
    return database.dicts(query)


def ended_runs(database: Database, job_id: str) -> list[tuple[float, int, int]]:
    """Return when each run of an item ended, its turns, and what it was charged with its
    sub-agents in billionths of a USD, in order."""
    query = select(runs.c.ended_at, runs.c.turns, _cost(database).label("cost"))
    query = query.where(runs.c.job_id == job_id, IS_ITEM_RUN, runs.c.ended_at.is_not(None))
    return [
        (row.ended_at, row.turns, int(row.cost))
        for row in database.rows(query.order_by(runs.c.ended_at))
    ]


def _conditions(
    database: Database, job_id: str, filters: RunFilters
) -> Sequence[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = [runs.c.job_id == job_id, IS_ITEM_RUN]
    if filters.state is not None:
        found.append(runs.c.state == filters.state)
    if filters.reason is not None:
        found.append(runs.c.reason == filters.reason)
    if filters.text is not None:
        item = select(run_items.c.run_id).where(
            run_items.c.run_id == runs.c.id,
            func.lower(cast(run_items.c.item, Text)).contains(
                filters.text.lower(), autoescape=True
            ),
        )
        in_key = func.lower(runs.c.item_key).contains(filters.text.lower(), autoescape=True)
        found.append(or_(in_key, item.exists()))
    if filters.tool is not None:
        called = select(tool_calls.c.run_id).where(tool_calls.c.name == filters.tool)
        own = called.where(tool_calls.c.run_id == runs.c.id, IS_OWN_CALL)
        below = called.join(_BELOW, _BELOW.c.id == tool_calls.c.run_id).where(_IS_BELOW)
        found.append(or_(own.exists(), below.exists()))
    if filters.denied:
        denied = select(_BELOW.c.id).where(_IS_BELOW, _BELOW.c.denials > 0)
        found.append(or_(runs.c.denials > 0, denied.exists()))
    if filters.waiting:
        asking = select(ROOT_RUN).join(approvals, approvals.c.run_id == runs.c.id)
        asking = asking.where(approvals.c.job_id == job_id, IS_OPEN_APPROVAL)
        found.append(runs.c.id.in_(asking.correlate(None)))
    if filters.usd is not None:
        found.append(_cost(database) >= round(filters.usd * 1e9))
    return found


def _sorted_by(database: Database, sort: str) -> ColumnElement[Any]:
    ended = func.coalesce(runs.c.ended_at, 0.0)
    columns: dict[str, ColumnElement[Any]] = {
        "submitted": runs.c.created_at,
        "item": runs.c.item_key,
        "turns": runs.c.turns,
        "tokens": runs.c.charged_tokens + _of_tree(_BELOW.c.charged_tokens),
        "time": func.coalesce(runs.c.ended_at - runs.c.started_at, 0.0),
        "ended": ended,
    }
    return _cost(database) if sort == "cost" else columns[sort]


def _is_behind(
    value: ColumnElement[Any], after: tuple[Any, str], descending: bool
) -> ColumnElement[bool]:
    last, run_id = after
    if descending:
        return or_(value < last, and_(value == last, runs.c.id < run_id))
    return or_(value > last, and_(value == last, runs.c.id > run_id))


def _cost(database: Database) -> ColumnElement[Any]:
    """The charge of a run with its sub-agents, in billionths of a USD."""
    own = _charged(database, runs.c.progress)
    below = _of_tree(_charged(database, _BELOW.c.progress))
    return func.coalesce(own, 0) + below


def _of_tree(value: ColumnElement[Any]) -> ColumnElement[Any]:
    """The sum of a value of ``_BELOW``."""
    found = select(func.sum(value)).where(_IS_BELOW).correlate(runs)
    return cast(func.coalesce(found.scalar_subquery(), 0), BigInteger)


def _charged(database: Database, progress: ColumnElement[Any]) -> ColumnElement[Any]:
    """The charge in a run's progress. Postgres can take nothing out of JSON that has a NUL anywhere, so
    there it is found by its name: in a text inside of JSON the quotes would be escaped."""
    if database.dialect == "sqlite":
        return cast(func.json_extract(progress, "$.money.charged_cost"), BigInteger)
    behind = func.left(func.split_part(cast(progress, Text), '"charged_cost":', 2), _DIGITS)
    return cast(func.substring(behind, literal_column("'^ ?([0-9]+)'")), BigInteger)

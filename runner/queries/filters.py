"""Filters that every question about the record takes, as conditions of a query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, case, func, or_, select, tuple_

from runner.store.conditions import APPROVAL_OF_CALL, IS_OWN_CALL, in_tree
from runner.store.tables import approvals, blocks, model_calls, runs, tool_calls


@dataclass(frozen=True, slots=True)
class Filters:
    """Each that is set must hold. Times are seconds since the epoch: from ``since`` on, before ``until``.

    Args:
        job_id, run_id: whole ids. With a run go all that it has started, and that these have.
        item: an item's key; with its runs go what these have started.
        tool: a tool's name.
        model: as the API names it.
    """

    job_id: str | None = None
    run_id: str | None = None
    item: str | None = None
    since: float | None = None
    until: float | None = None
    tool: str | None = None
    model: str | None = None


_ASKED_AT = (
    select(func.min(blocks.c.created_at))
    .where(blocks.c.run_id == tool_calls.c.run_id, blocks.c.message == tool_calls.c.message)
    .correlate(tool_calls)
    .scalar_subquery()
)
# When it began; of one that did not, when it was answered, or else when the model asked for it: that
# is looked up only where it is needed.
CALLED_AT: ColumnElement[float] = func.coalesce(
    tool_calls.c.started_at, tool_calls.c.ended_at, _ASKED_AT
)
# As ``queries.transcript`` has it: its outcome once it has one.
STATE: ColumnElement[str] = func.coalesce(
    tool_calls.c.outcome,
    case(
        (tool_calls.c.interrupted, "interrupted"),
        (tool_calls.c.started_at.is_(None), "pending"),
        else_="started",
    ),
)
# Of a call that did not run, none.
TOOK: ColumnElement[float] = case((tool_calls.c.started_at.is_not(None), tool_calls.c.duration))
_TOP = runs.alias()
_OF_ITEM = select(_TOP.c.id).where(_TOP.c.parent_run.is_(None))
KEY = (tool_calls.c.run_id, tool_calls.c.message, tool_calls.c.position)
NEWEST_FIRST = (CALLED_AT.desc(), *(column.desc() for column in KEY))


def of_calls(filters: Filters, *columns: Any) -> Select[Any]:
    """Columns of the tool calls that runs made themselves, and of their runs: a fork's copies of
    another run's calls are not its own."""
    query = select(*columns).select_from(tool_calls).join(runs, runs.c.id == tool_calls.c.run_id)
    return query.where(*run_conditions(filters), *call_conditions(filters))


def call_conditions(filters: Filters) -> Iterator[ColumnElement[bool]]:
    """What the filters say of a tool call, its run apart, which is joined; a fork's copies are none."""
    yield IS_OWN_CALL
    if filters.tool is not None:
        yield tool_calls.c.name == filters.tool
    if filters.model is not None:
        yield tuple_(tool_calls.c.run_id, tool_calls.c.turn).in_(turns_of_model(filters.model))
    yield from between(CALLED_AT, filters)


def run_conditions(filters: Filters) -> Iterator[ColumnElement[bool]]:
    """What the filters say of a run itself: which job, run and item. What is below a run goes with it."""
    if filters.job_id is not None:
        yield runs.c.job_id == filters.job_id
    if filters.run_id is not None:
        yield in_tree(filters.run_id)
    if filters.item is not None:
        of_item = _OF_ITEM.where(_TOP.c.item_key == filters.item)
        yield or_(runs.c.item_key == filters.item, runs.c.root_run.in_(of_item))


def between(at: ColumnElement[Any], filters: Filters) -> Iterator[ColumnElement[bool]]:
    """What the filters say of a time."""
    if filters.since is not None:
        yield at >= filters.since
    if filters.until is not None:
        yield at < filters.until


def of_model_calls(filters: Filters) -> Iterator[ColumnElement[bool]]:
    """What the filters say of a model call, by when it began; of a tool: that it was called in the
    turn that the call was for."""
    calls = model_calls.c
    yield from run_conditions(filters)
    yield from between(calls.started_at, filters)
    if filters.model is not None:
        yield calls.model == filters.model
    if filters.tool is not None:
        turns = select(tool_calls.c.run_id, tool_calls.c.turn).where(
            tool_calls.c.name == filters.tool
        )
        yield tuple_(calls.run_id, calls.turn).in_(turns)


def turns_of_model(model: str) -> Select[Any]:
    """The turns that a model replied in."""
    calls = model_calls.c
    return select(calls.run_id, calls.turn).where(
        calls.model == model, calls.purpose == "turn", calls.stop_reason.is_not(None)
    )


def with_answers(calls: Select[Any]) -> Select[Any]:
    """A query of calls with what people were asked about them."""
    return calls.outerjoin(approvals, APPROVAL_OF_CALL)


def of_runs(filters: Filters) -> Iterator[ColumnElement[bool]]:
    """What the filters say of a run that is looked at as a whole: a tool that it called, a model that
    it called."""
    yield from run_conditions(filters)
    if filters.tool is not None:
        yield runs.c.id.in_(
            select(tool_calls.c.run_id).where(tool_calls.c.name == filters.tool, IS_OWN_CALL)
        )
    if filters.model is not None:
        yield runs.c.id.in_(
            select(model_calls.c.run_id).where(model_calls.c.model == filters.model)
        )

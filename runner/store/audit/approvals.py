"""What people were asked, what they answered, and how long it took them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, case, select, tuple_

from runner.core.rows import Column, Rows
from runner.store import ids
from runner.store.audit.filters import Filters
from runner.store.audit.finding.calls import between, run_conditions, turns_of_model
from runner.store.audit.finding.shown import at_most, cut, labelled
from runner.store.connection.database import Database
from runner.store.look.decisions import IS_OPEN
from runner.store.tables import approvals as asked
from runner.store.tables import permission_rules, runs

COLUMNS = (
    Column("approval_id"),
    Column("asked_at", "time"),
    Column("run_id"),
    Column("item"),
    Column("turn", "integer"),
    Column("call_id"),
    Column("tool"),
    Column("answer"),
    Column("answered_by"),
    Column("via"),
    Column("answered_at", "time"),
    Column("waited", "seconds"),
    Column("edited", "boolean"),
    Column("remembered"),
    Column("reason"),
    Column("about"),
)
_ANSWER = case(
    (asked.c.answer.is_not(None), asked.c.answer), (IS_OPEN, "waiting"), else_="unanswered"
)


def approvals(database: Database, filters: Filters, *, limit: int | None = None) -> Rows:
    """The questions that were asked about tool calls, the newest first.

    ``answer`` is ``approved``, ``denied``, ``expired``, ``cancelled``, ``waiting``, or ``unanswered``
    where the run went on or ended without one. ``via`` is what answered: a ``person``, a ``rule`` that
    a person had remembered, the ``timeout``, or the run's ``cancel`` or ``end``. ``remembered`` is the rule
    that was stored with the answer, or that gave it, ``about`` a line of the input.
    """
    query = (
        select(
            asked,
            runs.c.item_key,
            permission_rules.c.rule.label("its_rule"),
            _ANSWER.label("shown"),
        )
        .join(runs, runs.c.id == asked.c.run_id)
        .outerjoin(
            permission_rules,
            (permission_rules.c.job_id == asked.c.job_id)
            & (permission_rules.c.position == asked.c.remembered),
        )
        .where(*_conditions(filters))
        .order_by(asked.c.asked_at.desc(), asked.c.id.desc())
        .limit(at_most(limit))
    )
    rows = database.read(lambda connection: connection.execute(query).all())
    return labelled(database, cut(COLUMNS, [_row(row) for row in rows], limit, "the newest"))


def _conditions(filters: Filters) -> Iterator[ColumnElement[bool]]:
    yield from run_conditions(filters)
    yield from between(asked.c.asked_at, filters)
    if filters.tool is not None:
        yield asked.c.tool == filters.tool
    if filters.model is not None:
        yield tuple_(asked.c.run_id, asked.c.turn).in_(turns_of_model(filters.model))


def _row(row: Any) -> tuple[Any, ...]:
    waited = None if row.answered_at is None else row.answered_at - row.asked_at
    return (
        row.id,
        row.asked_at,
        row.run_id,
        row.item_key,
        row.turn,
        ids.call_id(row.run_id, row.turn, row.position),
        row.tool,
        row.shown,
        row.answered_by,
        row.answered_via,
        row.answered_at,
        waited,
        row.edited_input is not None,
        row.its_rule,
        row.reason or None,
        row.summary,
    )

"""How often each tool was called, what came of it, and how long it took."""

from __future__ import annotations

from typing import Any

from sqlalchemy import FromClause, Integer, Select, cast, func, select

from runner.core.rows import Column, Rows
from runner.store.audit.filters import Filters
from runner.store.audit.finding.calls import CALLED_AT, STATE, TOOK, of_calls
from runner.store.audit.finding.shown import at_most, cut
from runner.store.connection.database import Database
from runner.store.tables import tool_calls

COLUMNS = (
    Column("tool"),
    Column("outcome"),
    Column("calls", "integer"),
    Column("runs", "integer"),
    Column("seconds", "seconds"),
    Column("average", "seconds"),
    Column("longest", "seconds"),
    Column("first_at", "time"),
    Column("last_at", "time"),
)


def tools(database: Database, filters: Filters, *, limit: int | None = None) -> Rows:
    """A row for each tool and what came of its calls, the most frequent first.

    ``outcome`` is that of a call that has one, else ``interrupted`` (its run ended first), ``started``
    or ``pending``. ``seconds`` is what its calls took together, None if none of them ran.
    """
    each = of_calls(
        filters,
        tool_calls.c.name,
        STATE.label("outcome"),
        tool_calls.c.run_id,
        TOOK.label("duration"),
        CALLED_AT.label("at"),
    ).subquery()
    # SQLite sorts what it groups, which takes longest: it does so once.
    query = (_at_once(each) if database.dialect == "sqlite" else _run_by_run(each)).limit(
        at_most(limit)
    )
    rows = database.read(lambda connection: connection.execute(query).all())
    return cut(COLUMNS, [tuple(row) for row in rows], limit, "the most frequent")


def _at_once(each: FromClause) -> Select[Any]:
    one = each.c
    calls, seconds = func.count(), func.sum(one.duration)
    return (
        select(
            one.name,
            one.outcome,
            calls,
            func.count(one.run_id.distinct()),
            seconds,
            seconds / func.nullif(func.count(one.duration), 0),
            func.max(one.duration),
            func.min(one.at),
            func.max(one.at),
        )
        .group_by(one.name, one.outcome)
        .order_by(calls.desc(), one.name, one.outcome)
    )


def _run_by_run(each: FromClause) -> Select[Any]:
    """Runs are counted after their calls were put together: Postgres sorts to count what is different."""
    of_run = each.c
    by_run = (
        select(
            of_run.name,
            of_run.outcome,
            func.count().label("calls"),
            func.sum(of_run.duration).label("seconds"),
            func.count(of_run.duration).label("timed"),
            func.max(of_run.duration).label("longest"),
            func.min(of_run.at).label("first_at"),
            func.max(of_run.at).label("last_at"),
        )
        .group_by(of_run.run_id, of_run.name, of_run.outcome)
        .subquery()
    )
    one = by_run.c
    calls, seconds = cast(func.sum(one.calls), Integer), func.sum(one.seconds)
    return (
        select(
            one.name,
            one.outcome,
            calls,
            func.count(),
            seconds,
            seconds / func.nullif(func.sum(one.timed), 0),
            func.max(one.longest),
            func.min(one.first_at),
            func.max(one.last_at),
        )
        .group_by(one.name, one.outcome)
        .order_by(calls.desc(), one.name, one.outcome)
    )

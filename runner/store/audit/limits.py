"""Which limits runs have reached, and who raised them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, Select, func, literal_column, select

from runner.core.rows import Column, Rows
from runner.store.audit.filters import Filters
from runner.store.audit.finding.calls import between, of_runs
from runner.store.audit.finding.shown import at_most, cut
from runner.store.connection.database import Database
from runner.store.tables import events, runs

COLUMNS = (
    Column("run_id"),
    Column("at", "time"),
    Column("item"),
    Column("job_id"),
    Column("limit"),
    Column("state"),
    Column("raised_at", "time"),
    Column("raised_by"),
    Column("raised_to", "json"),
    Column("why"),
    Column("detail"),
)
_MOST_RUNS = 500
# To the letter as in the index of the events of that type, which else would not be used.
_IS_REACHED = events.c.type == literal_column("'limit_reached'")


def limits(database: Database, filters: Filters, *, limit: int | None = None) -> Rows:
    """The limits that runs were stopped by, and the budgets that runs wait for now; the newest first.

    ``limit`` is its name, as ``max_turns``, ``token_ceiling`` or ``budget``, and ``state`` what the run
    is now. ``raised_by`` let the run go on, with other limits where there is ``raised_to``.
    """
    found = database.read(partial(_found, filters=filters, limit=limit))
    return cut(COLUMNS, found, limit, "the newest")


def _found(connection: Connection, filters: Filters, limit: int | None) -> list[tuple[Any, ...]]:
    reached = connection.execute(_reached(filters, limit)).all()
    retried = _retried(connection, {row.run_id for row in reached})
    rows = [_row(row, retried.get(row.run_id, ())) for row in reached]
    waiting = connection.execute(_waiting(filters)).all()
    rows += [_row(row, ()) for row in waiting]
    rows.sort(key=lambda row: (-row[1], row[0]))
    return rows[: at_most(limit)]


def _reached(filters: Filters, limit: int | None) -> Select[Any]:
    return (
        select(
            *(events.c[name] for name in ("run_id", "number", "at", "data")),
            *(runs.c[name] for name in ("item_key", "job_id", "state")),
        )
        .join(runs, runs.c.id == events.c.run_id)
        .where(_IS_REACHED, *of_runs(filters), *between(events.c.at, filters))
        .order_by(events.c.at.desc(), events.c.run_id, events.c.number.desc())
        .limit(at_most(limit))
    )


def _waiting(filters: Filters) -> Select[Any]:
    """Runs that wait for their job's budget, since when their last wait began."""
    began = (
        select(func.max(events.c.at))
        .where(events.c.run_id == runs.c.id, events.c.type == "waiting")
        .scalar_subquery()
    )
    at = func.coalesce(began, runs.c.created_at)
    return select(
        runs.c.id.label("run_id"),
        *(runs.c[name] for name in ("item_key", "job_id", "state", "reason", "detail")),
        at.label("at"),
    ).where(
        runs.c.state == "waiting",
        runs.c.reason == "budget",
        *of_runs(filters),
        *between(at, filters),
    )


def _retried(connection: Connection, run_ids: Iterable[str]) -> Mapping[str, list[Row[Any]]]:
    """When each run was let go on, in order."""
    found: dict[str, list[Row[Any]]] = {}
    wanted = sorted(run_ids)
    for start in range(0, len(wanted), _MOST_RUNS):
        query = (
            select(*(events.c[name] for name in ("run_id", "number", "at", "data")))
            .where(
                events.c.run_id.in_(wanted[start : start + _MOST_RUNS]),
                events.c.type == "retried",
            )
            .order_by(events.c.run_id, events.c.number)
        )
        for row in connection.execute(query):
            found.setdefault(row.run_id, []).append(row)
    return found


def _row(reached: Row[Any], retried: Iterable[Row[Any]]) -> tuple[Any, ...]:
    told = reached._mapping
    data = _object(told["data"]) if "data" in told else told
    after = next((row for row in retried if row.number > reached.number), None)
    raised = {} if after is None else _object(after.data)
    return (
        reached.run_id,
        reached.at,
        reached.item_key,
        reached.job_id,
        data.get("reason"),
        reached.state,
        None if after is None else after.at,
        raised.get("by"),
        _raised_to(raised),
        raised.get("why") or None,
        data.get("detail") or None,
    )


_LIMITS = ("max_turns", "token_ceiling", "cost_ceiling_usd", "working_time")


def _raised_to(retried: Mapping[str, Any]) -> dict[str, Any] | None:
    """The limits that a retry changed."""
    old, new = _object(retried.get("old")), _object(retried.get("new"))
    changed = {name: new[name] for name in _LIMITS if name in new and new[name] != old.get(name)}
    return changed or None


def _object(value: Any) -> Mapping[str, Any]:
    """What an event holds, which in an imported one is of any kind."""
    return value if isinstance(value, dict) else {}

"""What happened in runs, with the place of each in its tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, and_, or_, select

from runner.core.agents.place import place_of, tree_order
from runner.store.connection.database import Database
from runner.store.look.family.places import call_labels, within
from runner.store.tables import events, runs


def events_after(
    database: Database, run_id: str, number: int, limit: int | None = None
) -> list[dict[str, Any]]:
    """The events of a run whose numbers are greater, in order. Each has its place in its tree beside
    the table's columns: ``root``, ``parent``, ``depth``, and ``label``, of an event that tells of a tool
    call that of the call."""
    query = (
        select(events)
        .where(events.c.run_id == run_id, events.c.number > number)
        .order_by(events.c.number)
        .limit(limit)
    )

    def work(connection: Connection) -> list[dict[str, Any]]:
        return _placed(connection, connection.execute(query).all())

    return database.read(work)


def tree_events_after(
    database: Database, run_id: str, numbers: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The events of a run and of all below it, in order of time; those of one run in their order.

    Args:
        numbers: by run, the last number that is known already.

    Returns:
        As ``events_after`` does.
    """
    known = (and_(runs.c.id == run, events.c.number > last) for run, last in numbers.items())
    query = (
        select(events)
        .join(runs, runs.c.id == events.c.run_id)
        .where(within(run_id), or_(runs.c.id.not_in(list(numbers)), *known))
        .order_by(events.c.run_id, events.c.number)
    )

    def work(connection: Connection) -> list[dict[str, Any]]:
        return _placed(connection, _by_time(connection.execute(query).all()))

    return database.read(work)


def with_places(connection: Connection, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events with their places; those of a job as a whole (``run_id`` is None) have none."""
    told = {row["run_id"] for row in rows if _call_of(row["data"]) is not None}
    labels = call_labels(connection, told)
    return [_with_place(row, labels) for row in rows]


def _placed(connection: Connection, rows: Sequence[Row[Any]]) -> list[dict[str, Any]]:
    return with_places(connection, [dict(row._mapping) for row in rows])


def _with_place(row: dict[str, Any], labels: Mapping[Any, str]) -> dict[str, Any]:
    if row["run_id"] is None:
        return row
    placed = {**row, **place_of(row["run_id"])}
    call = _call_of(row["data"])
    if call is not None:
        placed["label"] = labels.get((row["run_id"], *call), placed["label"])
    return placed


def _call_of(data: Any) -> tuple[int, int] | None:
    """The turn and the place of the tool call that an event tells of. What an imported one holds is of
    any kind."""
    if not isinstance(data, dict):
        return None
    turn, index = data.get("turn"), data.get("call_index")
    return (turn, index) if isinstance(turn, int) and isinstance(index, int) else None


def _by_time(rows: Sequence[Row[Any]]) -> list[Row[Any]]:
    """Rows of several runs, each run's together and in its order, as they followed one another. A clock
    that was set back does not change the order of one run."""
    latest: dict[str, float] = {}
    keyed = []
    for row in rows:
        latest[row.run_id] = max(row.at, latest.get(row.run_id, row.at))
        keyed.append(((latest[row.run_id], tree_order(row.run_id), row.number), row))
    return [row for _, row in sorted(keyed, key=lambda pair: pair[0])]

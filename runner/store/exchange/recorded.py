"""A run with all that other formats are made of, read in one view of the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table, select

from runner.core.agents.place import tree_order
from runner.core.money.prices import PriceList
from runner.errors import NotFoundError
from runner.exchange.recorded import Recorded
from runner.store.conditions import in_tree
from runner.store.connection.database import Database
from runner.store.job.cache import JobCache
from runner.store.tables import (
    blocks,
    compactions,
    jobs,
    model_calls,
    run_items,
    runs,
    tool_calls,
    verifications,
)


def load_recorded(database: Database, run_id: str, prices: PriceList) -> Recorded:
    """A run as it is recorded.

    Args:
        prices: what its model calls are priced by.

    Raises:
        NotFoundError: there is no such run. UnreachableError: the database does not answer.
    """

    def work(connection: Connection) -> Recorded:
        run = _one(connection, runs, runs.c.id == run_id)
        if run is None:
            raise NotFoundError(f"no run is named {run_id}: look with `runner list`")
        job = _one(connection, jobs, jobs.c.id == run["job_id"])
        item = _one(connection, run_items, run_items.c.run_id == run_id)
        assert job is not None
        return Recorded(
            run=run,
            item=None if item is None else item["item"],
            job_name=job["name"],
            spec=JobCache().on(connection).spec_of_run(run["job_id"], run_id),
            blocks=_all(connection, blocks, run_id),
            calls={
                (row["message"], row["position"]): row
                for row in _all(connection, tool_calls, run_id)
            },
            model_calls=_all(connection, model_calls, run_id),
            compactions=_all(connection, compactions, run_id),
            verifications=_all(connection, verifications, run_id),
            prices=prices,
            children=_children(connection, run_id),
        )

    return database.read(work)


def run_ids(database: Database, job_id: str) -> Sequence[tuple[str, str]]:
    """The ids of a job's runs with their keys, in order, each before those that it has started."""
    query = select(runs.c.id, runs.c.item_key).where(runs.c.job_id == job_id)
    rows = database.read(lambda connection: connection.execute(query).all())
    return sorted(((row.id, row.item_key) for row in rows), key=lambda run: tree_order(run[0]))


def _children(connection: Connection, run_id: str) -> dict[tuple[int, int] | None, tuple[str, ...]]:
    columns = (runs.c.id, runs.c.parent_message, runs.c.parent_position)
    query = select(*columns).where(runs.c.parent_run == run_id, in_tree(run_id))
    found: dict[tuple[int, int] | None, tuple[str, ...]] = {}
    for row in sorted(connection.execute(query).all(), key=lambda row: tree_order(row.id)):
        at = None if row.parent_position is None else (row.parent_message, row.parent_position)
        found[at] = (*found.get(at, ()), row.id)
    return found


def _one(connection: Connection, table: Table, condition: Any) -> dict[str, Any] | None:
    row = connection.execute(select(table).where(condition)).mappings().one_or_none()
    return None if row is None else dict(row)


def _all(connection: Connection, table: Table, run_id: str) -> tuple[dict[str, Any], ...]:
    columns = [column for column in table.c if column.name != "compressed"]
    query = select(*columns).where(table.c.run_id == run_id).order_by(*table.primary_key)
    return tuple(map(dict, connection.execute(query).mappings()))

"""Statements that the driver runs itself give and take what SQLAlchemy's own execution does."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import bindparam, select
from sqlalchemy.exc import IntegrityError

from runner.store.database import Database
from runner.store.statement import Writes, find
from runner.store.tables import events, runs, workers
from tests.store.attempts import submit_one

DATA = {"z": "100 % $1 :name ' \u0000 \ud800 \u2028", "a": [1, None, 2**40, 0.1]}


def event_rows(run_id: str, count: int) -> list[dict[str, Any]]:
    return [
        {"run_id": run_id, "number": n, "at": n / 3, "attempt": 1, "type": "x", "data": DATA}
        for n in range(1001, 1001 + count)
    ]


@pytest.mark.parametrize("count", [0, 1, 16, 17, 1000])
def test_any_number_of_rows_is_written_as_it_is(database: Database, count: int) -> None:
    rows = event_rows(submit_one(database), count)
    writes = Writes()
    writes.insert(events, rows)
    database.write(writes.run)
    query = select(events).where(events.c.number > 1000).order_by(events.c.number)
    assert [row._asdict() for row in database.read(lambda c: c.execute(query).all())] == rows
    read = database.read(lambda connection: find(connection, query, {}))
    assert [row._asdict() for row in read] == rows


def test_rows_that_name_different_columns_and_changes_go_together(database: Database) -> None:
    run_id = submit_one(database)
    row: dict[str, Any] = {"host_id": "h", "hostname": "h", "pid": 1, "slots": 1, "started_at": 0.5}
    writes = Writes()
    writes.insert(workers, [{"id": "b", **row, "lease_expires_at": 1.0, "ended_at": 2.0}])
    writes.insert(
        workers,
        [
            {"id": "a", **row, "lease_expires_at": 1.0},
            {"id": "c", **row, "lease_expires_at": 1.0, "ended_at": None},
        ],
    )
    writes.change(runs, {"pause_requested": True, "progress": DATA, "due_at": 3.5}, id=run_id)
    writes.change(runs, {"lost_leases": 3}, id="another")
    database.write(writes.run)
    ended = select(workers.c.id, workers.c.ended_at).order_by(workers.c.id)
    assert database.read(lambda c: c.execute(ended).all()) == [("a", None), ("b", 2.0), ("c", None)]
    query = select(
        runs.c.pause_requested, runs.c.progress, runs.c.due_at, runs.c.lost_leases
    ).where(runs.c.id == bindparam("run"))
    (found,) = database.read(lambda connection: find(connection, query, {"run": run_id}))
    assert found.pause_requested is True
    assert found == (True, DATA, 3.5, 0)


def test_an_error_of_the_driver_is_raised_as_sqlalchemy_would(database: Database) -> None:
    writes = Writes()
    writes.insert(events, event_rows("nobody", 1))
    with pytest.raises(IntegrityError, match=r"(?i)foreign key"):
        database.write(writes.run)

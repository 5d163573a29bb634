"""Statements that the driver runs itself give and take what SQLAlchemy's own execution does."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, bindparam, literal, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from runner.store.database import Database
from runner.store.statements import Writes, execute, insert_many
from runner.store.tables import events, runs, workers
from tests.store.attempts import submit_one

pytestmark = pytest.mark.dialect

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
    read = database.read(lambda connection: execute(connection, query, {}))
    assert [row._asdict() for row in read] == rows


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_many_rows_are_inserted_as_they_are(database: Database, count: int) -> None:
    rows = [{**row, "type": "\\N\t\\.\n'é"} for row in event_rows(submit_one(database), count)]
    database.write(lambda connection: insert_many(connection, events, rows))
    query = select(events).where(events.c.number > 1000).order_by(events.c.number)
    assert [row._asdict() for row in database.read(lambda c: c.execute(query).all())] == rows


def test_many_rows_are_inserted_with_nulls_and_defaults_whatever_their_order(
    database: Database,
) -> None:
    row: dict[str, Any] = {"ended_at": None, "lease_expires_at": 1.0, "started_at": 0.5, "slots": 1}
    row |= {"pid": 2**31 - 1, "hostname": "h", "host_id": ""}
    rows = [{**row, "id": "a"}, {"id": "b", **row, "ended_at": 2.5}]
    database.write(lambda connection: insert_many(connection, workers, rows))
    query = select(*(workers.c[name] for name in rows[0])).order_by(workers.c.id)
    found = database.read(lambda connection: connection.execute(query).all())
    assert [each._asdict() for each in found] == rows


def test_many_rows_with_a_bad_one_leave_nothing(database: Database) -> None:
    rows = [*event_rows(submit_one(database), 3), *event_rows("nobody", 1)]
    with pytest.raises(IntegrityError, match=r"(?i)foreign key"):
        database.write(lambda connection: insert_many(connection, events, rows))
    query = select(events.c.number).where(events.c.number > 1000)
    assert database.find(query, {}) == []


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
    (found,) = database.read(lambda connection: execute(connection, query, {"run": run_id}))
    assert found.pause_requested is True
    assert found == (True, DATA, 3.5, 0)


def test_an_error_of_the_driver_is_raised_as_sqlalchemy_would(database: Database) -> None:
    writes = Writes()
    writes.insert(events, event_rows("nobody", 1))
    with pytest.raises(IntegrityError, match=r"(?i)foreign key"):
        database.write(writes.run)


def test_a_statement_finds_the_same_however_often_it_is_used(database: Database) -> None:
    run_ids = [submit_one(database) for _ in range(3)]
    query = select(runs.c.id, runs.c.due_at, runs.c.worker_id).where(runs.c.id == bindparam("run"))
    for run_id in run_ids * 10:
        (row,) = database.find(query, {"run": run_id})
        assert (row.id, row.worker_id) == (run_id, None)
    assert database.find(query, {"run": "another"}) == []


@pytest.mark.slow
def test_a_connection_goes_on_with_more_statements_than_it_keeps(database: Database) -> None:
    statements = [select(literal(number).label("number")) for number in range(140)]

    def work(connection: Connection) -> list[int]:
        return [
            execute(connection, each, {})[0].number
            for _ in range(8)
            for each in reversed(statements)
        ]

    assert database.read(work) == [*reversed(range(140))] * 8


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_text_is_refused_and_not_cut_at_a_nul(database: Database) -> None:
    run_id = submit_one(database)
    writes = Writes()
    writes.change(runs, {"detail": "before\0after"}, id=run_id)
    (row,) = event_rows(run_id, 1)
    bad = [{**row, "type": "before\0after"}]
    for _ in range(10):
        with pytest.raises(DBAPIError, match="0x00"):
            database.write(writes.run)
        with pytest.raises(DBAPIError, match="0x00"):
            database.write(lambda connection: insert_many(connection, events, bad))
    detail = select(runs.c.detail).where(runs.c.id == bindparam("run"))
    assert database.find(detail, {"run": run_id}) == [("",)]


def test_a_statement_that_failed_leaves_its_transaction_nothing(database: Database) -> None:
    run_id = submit_one(database)
    count = select(events.c.number).where(events.c.run_id == bindparam("run"))
    before = database.find(count, {"run": run_id})

    def work(connection: Connection) -> None:
        good, bad = Writes(), Writes()
        good.insert(events, event_rows(run_id, 1))
        bad.insert(events, event_rows("nobody", 1))
        good.run(connection)
        bad.run(connection)

    for _ in range(10):
        with pytest.raises(IntegrityError):
            database.write(work)
        assert database.find(count, {"run": run_id}) == before


def test_what_is_prepared_outlives_what_sqlalchemy_rolls_back(database: Database) -> None:
    run_id = submit_one(database)
    query = select(runs.c.id).where(runs.c.id == bindparam("run"))

    def work(connection: Connection) -> None:
        for _ in range(10):
            connection.execute(query, {"run": run_id})
        raise LookupError

    for _ in range(10):
        assert database.find(query, {"run": run_id}) == [(run_id,)]
        with pytest.raises(LookupError):
            database.write(work)

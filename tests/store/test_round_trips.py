"""A run costs few round trips to the server. A claim and its event are stored together."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import delete, insert, select
from sqlalchemy.exc import IntegrityError

from runner.core.events import Event
from runner.store import due_runs as runs_store
from runner.store.changes import event_rows
from runner.store.database import Database
from runner.store.tables import events
from tests.store.attempts import WORKER, add_worker, claim, run_row, submit_one, text
from tests.store.examples import NOW


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_a_run_of_one_turn_costs_few_round_trips(database: Database, tmp_path: Path) -> None:
    claim(database, submit_one(database, "first")).reply(text("Done."))  # opens the connection
    run_id = submit_one(database, "second")
    trace = tmp_path / "trace"
    with trace.open("w") as file, database.writer.connect() as connection:
        pgconn = cast(Any, connection.connection.driver_connection).pgconn
        pgconn.trace(file.fileno())
        connection.close()
        claim(database, run_id).reply(text("Done."))
        pgconn.untrace()
    sent = [line.split("\t")[1:4] for line in trace.read_text().splitlines() if "\t" in line]
    trips = [message for who, _, message in sent if who == "F" and message in {"Sync", "Query"}]
    assert run_row(database, run_id).state == "succeeded"
    assert len(trips) <= 11, "3 of them look for the worker, 2 read the job"


def test_a_claim_is_not_stored_without_its_event(database: Database) -> None:
    run_id = submit_one(database)
    add_worker(database)
    run = runs_store.look_at(database, run_id, NOW)
    assert run is not None
    in_its_place = event_rows(
        run_id, [Event("waiting", {})], NOW, after=run_row(database, run_id).event_count
    )
    database.execute(insert(events).values(in_its_place))
    with pytest.raises(IntegrityError):
        runs_store.claim(database, run, WORKER, NOW)
    assert run_row(database, run_id).state == "queued"
    database.execute(delete(events).where(events.c.run_id == run_id, events.c.type == "waiting"))
    lease = runs_store.claim(database, run, WORKER, NOW)
    assert lease is not None
    newest = database.rows(
        select(events).where(events.c.run_id == run_id).order_by(events.c.number)
    )[-1]
    started = "attempt_started", {"attempt": 1, "worker": WORKER}
    assert (newest.type, newest.data) == started
    assert (newest.number, newest.attempt, newest.at) == (
        run_row(database, run_id).event_count,
        1,
        NOW,
    )
    assert runs_store.claim(database, run, WORKER, NOW) is None, "someone was faster"

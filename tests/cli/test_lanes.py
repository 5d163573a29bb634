"""``runner lane``, and what ``show`` and ``list`` say of runs in batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import insert, update

from runner.store.database import Database
from runner.store.tables import batch_calls, batches, runs
from tests.cli.conftest import Result
from tests.store.attempts import run_row, submit_one
from tests.store.examples import NOW, SPEC

Command = Callable[..., Result]


@pytest.fixture
def run_id(database: Database) -> str:
    """A run whose call waits to share a batch."""
    run_id = submit_one(database, spec=replace(SPEC, lane="batch"))
    job_id = run_row(database, run_id).job_id
    waits = {"state": "waiting", "reason": "batch", "due_at": None}
    database.execute(update(runs).where(runs.c.id == run_id).values(waits))
    call = {"run_id": run_id, "number": 1, "job_id": job_id, "asked_at": NOW}
    database.execute(insert(batch_calls).values(call))
    return run_id


def send(database: Database, **more: object) -> None:
    row = {"id": "bat_1", "account": "org", "workspace": "", "count": 200, "digest": ""}
    row |= {"asked_at": NOW, "checked_at": NOW, "not_ours": [], **more}  # type: ignore[dict-item]
    database.execute(insert(batches).values(row))
    database.execute(update(batch_calls).values(batch_id="bat_1"))


def test_show_and_list_say_which_batch_a_run_waits_for(
    command: Command, database: Database, run_id: str
) -> None:
    job_id = run_row(database, run_id).job_id
    assert "waits for others to share a batch" in command("show", run_id).out
    send(database)
    assert "may not exist" in command("show", run_id).out
    database.execute(update(batches).values(api_id="msgbatch_7", expires_at=NOW + 86_400))
    assert "is in msgbatch_7 of 200 calls" in command("show", run_id).out
    assert "is in msgbatch_7 of 200 calls" in " ".join(command("list", job_id).out.split())


def test_show_says_which_lane_a_job_takes_and_why(
    command: Command, database: Database, run_id: str
) -> None:
    job_id = run_row(database, run_id).job_id
    line = "batch; 1 call to be sent; a round takes about 1h00m"
    assert line in command("show", job_id).out
    assert line in command("lane", job_id).out
    told = command("lane", job_id, "auto", "--json").json
    assert told["lane"] == "auto"
    assert "batch for a new item: nothing says when it has to end" in told["detail"]


def test_a_lane_of_batches_is_refused_for_jobs_that_cannot_have_it(
    command: Command, database: Database
) -> None:
    scripted = submit_one(database, spec=replace(SPEC, provider="scripted", script={"*": []}))
    fast = submit_one(database, spec=replace(SPEC, model_options={"speed": "fast"}))
    for run_id, why in (
        (scripted, 'provider = "scripted", which has no batches'),
        (fast, "batches do not take speed"),
    ):
        refused = command("lane", run_row(database, run_id).job_id, "batch")
        assert refused.code == 2
        assert why in refused.err

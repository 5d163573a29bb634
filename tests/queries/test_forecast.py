"""``queries.forecast`` and the forecast of a job, on both databases."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import select, update

from runner.app.forecast import forecast_of
from runner.core.budget import Budget
from runner.core.commands import Target
from runner.queries.forecast import begun_trees
from runner.store import control
from runner.store import jobs as jobs_store
from runner.store.database import Database
from runner.store.tables import runs, workers
from tests.cli.questions import app_on
from tests.store.attempts import claim, text
from tests.store.examples import NOW, SPEC, submission


def three_of_five(database: Database) -> str:
    """A job with three finished runs, one in hand and one that has not begun."""
    spec = replace(SPEC, budget=Budget(tokens=100_000_000))
    job_id = jobs_store.submit(database, submission(*"abcde", spec=spec), NOW)
    query = select(runs.c.id).where(runs.c.job_id == job_id).order_by(runs.c.id)
    ids = [row.id for row in database.rows(query)]
    for run_id in ids[:3]:
        claim(database, run_id).reply(text("Done."))
    claim(database, ids[3])
    times = update(runs).values(started_at=NOW, ended_at=NOW + 10)
    database.write(lambda connection: connection.execute(times.where(runs.c.id.in_(ids[:3]))))
    return job_id


def test_begun_runs_are_found_with_their_tokens(database: Database) -> None:
    job_id = three_of_five(database)
    found = begun_trees(database, [job_id])
    assert sorted(row.state for row in found) == ["running", *["succeeded"] * 3]
    assert sorted(int(row.tokens) for row in found) == [0, 110, 110, 110]
    assert {row.ended_at for row in found} == {None, NOW + 10}


def test_job_has_a_forecast_after_three_finished_runs(database: Database) -> None:
    job_id = three_of_five(database)
    found = forecast_of(app_on(database), job_id)
    assert found is not None
    assert (found.finished, found.usd, found.ends_at) == (3, None, None)  # no price, no live worker
    assert 330 < found.tokens.low < found.tokens.expected < found.tokens.high
    assert found.budget_tokens == 100_000_000
    assert "within its budget; from 3 finished runs" in found.line
    alive = update(workers).values(lease_expires_at=1e11)
    database.write(lambda connection: connection.execute(alive))
    ended = forecast_of(app_on(database), job_id)
    assert ended is not None
    assert ended.ends_at is not None
    assert ended.ends_at.low < ended.ends_at.high


def test_forecast_leaves_out_items_that_were_cancelled_before_they_began(
    database: Database,
) -> None:
    job_id = three_of_five(database)
    before = forecast_of(app_on(database), job_id)
    query = select(runs.c.id).where(runs.c.job_id == job_id, runs.c.state == "queued")
    [queued] = database.rows(query)
    control.cancel(database, Target("run", queued.id), NOW)
    after = forecast_of(app_on(database), job_id)
    assert before is not None
    assert after is not None
    assert after.tokens.low < before.tokens.low
    assert after.tokens.expected < before.tokens.expected

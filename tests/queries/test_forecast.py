"""The forecast of a job, on both databases."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from runner.app.forecast import JobForecast, forecast_of
from runner.app.handle import App
from runner.core.budget import Budget
from runner.core.commands import Target
from runner.core.times import Times, Window
from runner.queries.jobs import begun_trees
from runner.store import control
from runner.store import jobs as jobs_store
from runner.store.database import Database
from runner.store.tables import jobs, runs, workers
from tests.cli.questions import app_on
from tests.store.attempts import claim, text
from tests.store.examples import NOW, SPEC, submission


def three_of_five(database: Database, **changes: Any) -> str:
    """A job with three finished runs, one in hand and one that has not begun."""
    spec = replace(SPEC, budget=Budget(tokens=100_000_000), **changes)
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
    ended = with_an_end(database, job_id, NOW + 15)
    assert ended.ends_at is not None
    assert ended.ends_at.low < ended.ends_at.high


@pytest.mark.parametrize(
    ("where", "words"),
    [("after", ", within its finish_by"), ("in", ", perhaps over"), ("before", ", likely over")],
)
def test_the_end_is_compared_with_finish_by(database: Database, where: str, words: str) -> None:
    job_id = three_of_five(database)
    ends = with_an_end(database, job_id, NOW + 15).ends_at
    assert ends is not None
    at = {"after": ends.high, "in": (ends.expected + ends.high) / 2, "before": ends.low}[where]
    database.execute(update(jobs).values(finish_by=at))
    assert words in with_an_end(database, job_id, NOW + 15).line


def test_the_end_of_a_job_with_a_window_has_its_closed_hours(database: Database) -> None:
    opened, closed = datetime.fromtimestamp(NOW, UTC), NOW + 2 * 3_600
    closes = opened + timedelta(hours=1)
    window = Window(f"{opened:%H:%M}", f"{closes:%H:%M}", "UTC")
    job_id = three_of_five(database, times=Times(window=window))
    early = with_an_end(database, job_id, NOW + 15).ends_at
    late = with_an_end(database, job_id, closed).ends_at
    assert early is not None
    assert late is not None
    assert early.high < closes.timestamp()
    opens = window.opens_at(closed)
    assert (
        closed + 20 * 3_600 < opens < late.low < opens + 2 * 3_600
    )  # the item in hand has had an hour


def test_the_work_on_an_item_is_measured_in_open_hours(database: Database) -> None:
    opened = datetime.fromtimestamp(NOW, UTC)
    window = Window(f"{opened:%H:%M}", f"{opened + timedelta(hours=1):%H:%M}", "UTC")
    job_id = three_of_five(database, times=Times(window=window))
    next_day = NOW + 86_400
    late = update(runs).where(runs.c.ended_at.is_not(None)).values(ended_at=next_day + 10)
    database.execute(late)
    ends = with_an_end(database, job_id, next_day + 15).ends_at
    assert ends is not None
    assert ends.expected < next_day + 9 * 86_400  # an hour for each item, not 24


def with_an_end(database: Database, job_id: str, now: float) -> JobForecast:
    """The forecast at a time at which a worker is alive."""
    database.execute(update(workers).values(lease_expires_at=1e11))
    app = app_on(database)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(App, "now", lambda _: now)
        found = forecast_of(app, job_id)
    assert found is not None
    return found


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

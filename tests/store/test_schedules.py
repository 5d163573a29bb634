"""Schedules fire once, whoever looks and whatever was missed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import func, select, update

from runner.core.run import Author
from runner.core.times import Moment, Times
from runner.errors import UsageError
from runner.store import jobs as jobs_store
from runner.store import schedules
from runner.store.database import Database
from runner.store.schedules import Cron
from runner.store.tables import job_events, jobs, run_items, runs
from runner.store.tables import schedules as table
from tests.store.examples import SPEC, submission

pytestmark = pytest.mark.dialect

BERLIN = "Europe/Berlin"
ADA = Author("ada")
NIGHTLY = Cron("0 22 * * 1-5", BERLIN)


def at(text: str, *, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(BERLIN), fold=fold).timestamp()


MONDAY = at("2026-11-23 12:00")
DUE = at("2026-11-23 22:00")


def add(database: Database, cron: Cron = NIGHTLY, **options: Any) -> str:
    spec = options.pop("spec", SPEC)
    return schedules.add(database, submission("a", "b", spec=spec), cron, "ws_1", MONDAY, ADA)


def shown(database: Database) -> Any:
    (found,) = schedules.listed(database)
    return found


def count(database: Database) -> int:
    return int(database.rows(select(func.count()).select_from(jobs))[0][0])


def test_a_schedule_submits_its_job_when_it_is_due(database: Database) -> None:
    schedule_id = add(database)
    assert shown(database)["next_at"] == DUE
    assert schedules.fire_due(database, DUE - 1) == []
    (job_id,) = schedules.fire_due(database, DUE + 1)
    job = database.rows(select(jobs).where(jobs.c.id == job_id))[0]
    text = submission().text
    assert (job.name, job.spec_text, job.workspace_id) == ("mend", text, "ws_1")
    assert job.key == f"{schedule_id} 2026-11-23T21:00Z"
    queued = select(runs.c.item_key, runs.c.state, runs.c.due_at, run_items.c.item)
    queued = queued.join(run_items, run_items.c.run_id == runs.c.id).order_by(runs.c.id)
    assert [tuple(row) for row in database.rows(queued)] == [
        (key, "queued", DUE + 1, {"file": key}) for key in "ab"
    ]
    event = database.rows(select(job_events.c.data).where(job_events.c.job_id == job_id))[0].data
    assert (event["by"], event["why"]) == ("ada", f"schedule {schedule_id}")
    assert (event["schedule"], event["due_at"], event["missed"]) == (schedule_id, DUE, None)
    fired = shown(database)
    assert (fired["fired_at"], fired["fired_job"], fired["detail"]) == (DUE + 1, job_id, "")
    assert fired["next_at"] == at("2026-11-24 22:00")
    assert schedules.fire_due(database, DUE + 2) == []
    assert len(schedules.fire_due(database, at("2026-11-24 22:00"))) == 1


def test_of_many_workers_one_fires(
    open_database: Callable[[], Database], database: Database
) -> None:
    add(database)
    each = [database, *(open_database() for _ in range(3))]
    with ThreadPoolExecutor(8) as pool:
        fired = list(pool.map(lambda n: schedules.fire_due(each[n % 4], DUE), range(16)))
    assert sum(map(len, fired)) == 1
    assert count(database) == 1


def test_a_crash_while_it_fires_leaves_it_due(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*arguments: Any, **options: Any) -> None:
        raise Killed

    add(database)
    with monkeypatch.context() as patch:
        patch.setattr(schedules, "_set", die)
        with pytest.raises(Killed):
            schedules.fire_due(database, DUE)
    assert count(database) == 0
    assert len(schedules.fire_due(database, DUE)) == 1


def test_times_missed_in_an_outage_fire_once_and_it_says_so(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    schedule_id = add(database)
    now = at("2026-11-26 08:00")
    with caplog.at_level(logging.WARNING):
        (job_id,) = schedules.fire_due(database, now)
    missed = (
        "due at 2026-11-23 21:00 UTC, and no worker was there until 2026-11-26 07:00 UTC; later times "
        "left out: 2"
    )
    assert caplog.messages == [f"{schedule_id} submitted {job_id}: {missed}"]
    assert shown(database)["detail"] == missed
    event = database.rows(select(job_events.c.data).where(job_events.c.job_id == job_id))[0].data
    assert event["missed"] == missed
    assert schedules.fire_due(database, now + 1) == []
    assert shown(database)["next_at"] == at("2026-11-26 22:00")


def test_a_paused_schedule_fires_nothing_and_leaves_out_what_it_missed(database: Database) -> None:
    schedule_id = add(database)
    schedules.pause(database, schedule_id, MONDAY, ADA)
    now = at("2026-11-25 08:00")
    assert schedules.fire_due(database, now) == []
    schedules.resume(database, schedule_id, now, ADA)
    assert schedules.fire_due(database, now) == []
    assert shown(database)["next_at"] == at("2026-11-25 22:00")
    schedules.remove(database, schedule_id, now, Author("lena", "Enough."))
    assert schedules.fire_due(database, at("2026-11-27 08:00")) == []
    assert schedules.listed(database) == []
    (removed,) = schedules.listed(database, removed=True)
    told = [(each["type"], each["by"], each["why"]) for each in removed["changes"]]
    assert told == [
        *(("added", "ada", ""), ("paused", "ada", ""), ("resumed", "ada", "")),
        ("removed", "lena", "Enough."),
    ]


def test_a_jobs_times_are_those_after_it_fires(database: Database) -> None:
    times = Times(not_before=Moment("22:30", BERLIN), finish_by=Moment("07:00", BERLIN))
    add(database, spec=replace(SPEC, times=times))
    (job_id,) = schedules.fire_due(database, DUE)
    job = database.rows(select(jobs.c.finish_by).where(jobs.c.id == job_id))[0]
    assert job.finish_by == at("2026-11-24 07:00")
    assert database.rows(select(runs.c.due_at))[0].due_at == at("2026-11-23 22:30")
    once = replace(SPEC, times=Times(finish_by=Moment("2026-11-24 07:00", BERLIN, DUE)))
    with pytest.raises(UsageError) as refused:
        add(database, spec=once)
    assert str(refused.value) == (
        "finish_by 2026-11-24 07:00 Europe/Berlin is on one day only: give a scheduled job a time of "
        "day, such as 07:00"
    )


def test_a_schedule_that_cannot_be_submitted_says_why_and_goes_on(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    schedule_id = add(database)
    broken = {**submission().spec.to_json(), "of_a_later_version": 1}
    database.execute(update(table).values(spec=broken))
    with caplog.at_level(logging.WARNING):
        assert schedules.fire_due(database, DUE) == []
        assert schedules.fire_due(database, DUE + 1) == []
    (message,) = caplog.messages
    assert message.startswith(f"{schedule_id} could not submit its job: ")
    assert "of_a_later_version" in shown(database)["detail"]
    assert shown(database)["next_at"] == at("2026-11-24 22:00")


@pytest.mark.parametrize(
    ("expression", "now", "expected"),
    [
        ("30 2 * * *", "2026-03-28 12:00", ["2026-03-29 03:00", "2026-03-30 02:30"]),
        ("30 2 * * *", "2026-10-24 12:00", ["2026-10-25 02:30", "2026-10-26 02:30"]),
        ("0 22 * * 1-5", "2026-11-20 22:00", ["2026-11-23 22:00", "2026-11-24 22:00"]),
    ],
)
def test_clocks_that_are_set_neither_skip_nor_double_a_time(
    expression: str, now: str, expected: list[str]
) -> None:
    cron = Cron(expression, BERLIN)
    first = cron.next_after(at(now))
    assert [first, cron.next_after(first)] == [at(text) for text in expected]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("61 * * * *", "'61 * * * *' is not a cron expression (bad minute)"),
        ("* * * * * *", "'* * * * * *' is not a cron expression (wrong number of fields)"),
        ("", "'' is not a cron expression (wrong number of fields)"),
    ],
)
def test_what_is_no_cron_expression_is_refused(expression: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        Cron(expression, BERLIN).next_after(MONDAY)
    assert str(refused.value) == (
        f'{message}: give minute, hour, day of month, month and day of week, such as "0 22 * * 1-5"'
    )


def test_a_cron_expression_without_a_time_to_come_is_refused() -> None:
    with pytest.raises(UsageError, match="names no future time"):
        Cron("* * */20 * 1L", BERLIN).next_after(MONDAY)


def test_a_schedule_whose_key_was_used_submits_nothing_twice(database: Database) -> None:
    schedule_id = add(database)
    jobs_store.submit(database, submission(), MONDAY, f"{schedule_id} 2026-11-23T21:00Z")
    assert len(schedules.fire_due(database, DUE)) == 1
    assert count(database) == 1

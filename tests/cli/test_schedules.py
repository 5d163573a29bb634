"""``schedule``, ``finish-by``, and what is said of runs that wait for their job's times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import update

from runner.app.humanize import moment
from runner.cli import exit_codes
from runner.core.times import Moment, Times, Window
from runner.store.database import Database
from runner.store.tables import jobs
from tests.cli.conftest import Result
from tests.cli.test_budget import summarise_job
from tests.store.attempts import claim, run_row, submit_one
from tests.store.examples import NOW, SPEC

JOB = 'name = "nightly"\nmodel = "m"\nprompt = "p"\nfinish_by = "07:00 UTC"\n'
HOUR = 3_600.0
LATER = Moment("2099-01-01 12:00", "UTC", datetime(2099, 1, 1, 12, tzinfo=UTC).timestamp())


@pytest.fixture
def job(folder: Path) -> str:
    (folder / "job.toml").write_text(JOB)
    return "job.toml"


@pytest.mark.slow
def test_a_schedule_is_added_listed_paused_and_removed(
    command: Callable[..., Result], job: str
) -> None:
    added = command("schedule", "add", job, "--cron", "0 22 * * 1-5", "--tz", "Europe/Berlin")
    schedule_id = added.out.strip()
    assert (added.code, schedule_id[:4]) == (0, "sch_")
    (found,) = command("schedule", "list", "--json").json
    next_at = datetime.fromisoformat(found["next_at"]).timestamp()
    first_at = moment(next_at)
    assert added.err.endswith(f"\nfirst at {first_at}, if a worker is running then\n")
    assert (found["id"], found["name"], found["cron"]) == (schedule_id, "nightly", "0 22 * * 1-5")
    assert (found["zone"], found["paused_at"], found["fired_at"]) == ("Europe/Berlin", None, None)
    listed = command("schedule", "list").out
    assert schedule_id[-8:] in listed
    assert moment(next_at) in listed
    paused = command("schedule", "pause", schedule_id[-6:])
    assert paused.out == f"{schedule_id[-8:]} (nightly): paused\n"
    assert "  paused" in command("schedule", "list").out
    resumed = command("schedule", "resume", schedule_id)
    assert resumed.out == f"{schedule_id[-8:]} (nightly): next at {moment(next_at)}\n"
    removed = command("schedule", "rm", schedule_id)
    assert removed.out == f"{schedule_id[-8:]} (nightly): removed\n"
    assert command("schedule", "list", "--json").json == []
    assert "  removed" in command("schedule", "list", "--all").out
    gone = command("schedule", "rm", "sch_zz")
    assert gone.code == exit_codes.USAGE
    assert gone.err == "runner: no schedule is named 'sch_zz': look with `runner schedule list`\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--cron", "0 22 * *"), "'0 22 * *' is not a cron expression (wrong number of fields)"),
        (
            ("--cron", "0 22 * * *", "--tz", "Berlin"),
            "--tz 'Berlin' is not a time zone that this host",
        ),
    ],
)
def test_a_bad_schedule_is_refused_in_one_line(
    command: Callable[..., Result], job: str, options: tuple[str, ...], said: str
) -> None:
    refused = command("schedule", "add", job, *options)
    assert (refused.code, refused.out) == (exit_codes.USAGE, "")
    *warnings, error = refused.err.splitlines()
    assert error.startswith(f"runner: {said}")
    assert all(each.startswith("warning: ") for each in warnings)


def clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(NOW + seconds, UTC):%H:%M}"


@pytest.mark.slow
def test_list_and_show_say_why_a_run_waits_and_until_when(
    command: Callable[..., Result], database: Database
) -> None:
    window, later = Window("22:00", "07:00", "UTC"), LATER
    run_id = submit_one(database, spec=replace(SPEC, times=Times(later, window)))
    run = run_row(database, run_id)
    said = f"waits until {moment(run.due_at)} (window {window})"
    assert said in command("list", run.job_id).out
    assert said in command("show", run_id).out
    assert f"window      {window}" in command("show", run.job_id).out
    run_id = submit_one(database, spec=replace(SPEC, times=Times(later)))
    said = f"waits until {moment(later.at)} (not_before {later})"
    assert said in command("show", run_id).out
    opened = submit_one(database, spec=replace(SPEC, times=Times(Moment(clock(HOUR), "UTC"))))
    assert "waits until" not in command("show", opened).out


def test_list_says_until_when_jobs_wait(command: Callable[..., Result], database: Database) -> None:
    window = Window(clock(HOUR), clock(2 * HOUR), "UTC")
    later, due = LATER, Moment("then", "", NOW + HOUR)
    ids = [
        run_row(database, submit_one(database, spec=replace(SPEC, times=times))).job_id
        for times in (Times(), Times(later), Times(later, window), Times(due), Times())
    ]
    past = submit_one(database, spec=replace(SPEC, times=Times(finish_by=later)))
    past_job = run_row(database, past).job_id
    database.execute(update(jobs).where(jobs.c.id == past_job).values(finish_by=NOW))
    claim(database, past)
    found = {job["id"]: job["waits_for"] for job in command("list", "--json").json}
    opens = Times(later, window).next_start(NOW)
    assert opens is not None
    assert found == {
        **dict.fromkeys(ids),
        ids[1]: f"waits until {moment(later.at)} (not_before {later})",
        ids[
            2
        ]: f"waits until {moment(opens[0])} ({opens[1]} {window if opens[1] == 'window' else later})",
        past_job: f"no model call begins since finish_by {later}: runner finish-by {past_job} TIME",
    }
    listed = command("list").out
    assert all(said.replace(past_job, past_job[-8:]) in listed for said in found.values() if said)


def test_a_person_moves_finish_by(command: Callable[..., Result], database: Database) -> None:
    times = Times(finish_by=Moment(clock(HOUR), "UTC"))
    run_id = submit_one(database, spec=replace(SPEC, times=times))
    claim(database, run_id, NOW + HOUR)
    job_id = run_row(database, run_id).job_id
    how = f"runner finish-by {job_id[-8:]} TIME"
    assert (
        f"no model call begins since finish_by {clock(HOUR)} UTC: {how}"
        in command("list", job_id).out
    )
    moved = command("finish-by", job_id, "2099-01-01 09:00 UTC")
    until = datetime(2099, 1, 1, 9, tzinfo=UTC).timestamp()
    assert moved.out == (
        f"{job_id[-8:]}: model calls begin until {moment(until)} (2099-01-01 09:00 UTC)\n"
    )
    assert moved.err == (
        f"1 run goes on\nno worker is running: go on with `runner run --resume {job_id[-8:]}`, or start "
        "`runner worker`\n"
    )
    assert run_row(database, run_id).state == "queued"
    assert "finish by  2099-01-01 09:00 UTC" in command("show", job_id).out
    past = command("finish-by", job_id, "2020-01-01 09:00 UTC")
    assert (past.code, past.err) == (
        exit_codes.USAGE,
        "runner: 2020-01-01 09:00 UTC has passed: give a later time\n",
    )
    bad = command("finish-by", job_id, "nine")
    assert bad.err.startswith('runner: TIME must be a time such as "22:00"')


def test_the_summary_says_how_runs_past_finish_by_go_on(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    times = Times(finish_by=Moment(clock(HOUR), "UTC"))
    run_id = submit_one(database, spec=replace(SPEC, times=times))
    claim(database, run_id, NOW + HOUR)
    job_id = run_row(database, run_id).job_id
    assert summarise_job(database, job_id) == exit_codes.WAITING
    said = f"1 run waits since the job's finish_by: runner finish-by {job_id[-8:]} TIME"
    assert said in capsys.readouterr().out

"""``budget``, and what is said of runs that wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Connection, update

from runner.app.report import report_on
from runner.cli import exit_codes
from runner.cli.report import summarise
from runner.core.budget import Budget, Limits, billionths
from runner.core.prices import Rates, Tariff
from runner.core.spec import JobSpec
from runner.queries.timeline import events_after
from runner.store import leases
from runner.store.database import Database
from runner.store.tables import job_budgets, jobs, runs
from tests.cli.conftest import Result
from tests.cli.questions import app_on
from tests.store.attempts import USAGE, WORKER, claim, run_row, submit_one, text
from tests.store.examples import NOW, SPEC
from tests.store.test_depth_first import ITEM, finish, half_done, submit

TOKENS = 30_000  # less than the worst case of a call: its reply alone may have 32,000
RATES = Rates(*map(Decimal, ("1", "1.25", "2", "0.1", "5")))


def summarise_job(database: Database, job_id: str, *, as_json: bool = False) -> int:
    found = report_on(app_on(database), job_id, NOW, with_changes=False)
    return summarise(found, interrupted=False, as_json=as_json)


def priced(spec: JobSpec) -> Mapping[str, Tariff]:
    return {spec.model: Tariff(RATES)}


def waiting(database: Database, budget: Budget | None = None) -> tuple[str, str]:
    """A job whose only run waits for its budget; the ids of both."""
    spec = replace(SPEC, budget=budget or Budget(tokens=TOKENS))
    run_id = submit_one(database, spec=spec)
    claim(database, run_id, tariffs=priced)
    run = run_row(database, run_id)
    assert (run.state, run.reason) == ("waiting", "budget")
    return str(run.job_id), run_id


def test_a_budget_is_shown_with_what_waits_for_it(
    command: Callable[..., Result], database: Database
) -> None:
    job_id, _ = waiting(database)
    shown = command("budget", job_id)
    assert shown.code == 0
    assert "0 of 30,000 tokens used" in shown.out
    assert f"1 run waits for it: runner budget {job_id[-8:]} --tokens N" in shown.out
    told = command("budget", job_id, "--json").json
    assert (told["budget_tokens"], told["spent_tokens"], told["reserved_tokens"]) == (TOKENS, 0, 0)
    assert (told["budget_usd"], told["spent_usd"], told["waiting_runs"]) == (None, None, 1)
    assert told["woken"] == []


def test_a_raised_budget_wakes_what_waits_for_it(
    command: Callable[..., Result], database: Database
) -> None:
    job_id, run_id = waiting(database)
    raised = command("budget", job_id, "--tokens", "100000", "--as", "lena")
    assert raised.code == 0
    assert "0 of 100,000 tokens used" in raised.out
    assert "1 run goes on" in raised.err
    assert f"runner run --resume {job_id[-8:]}" in raised.err
    assert run_row(database, run_id).state == "queued"
    last = events_after(database, run_id)[-1]
    assert (last["type"], last["data"]["by"]) == ("resumed", "lena")


@pytest.mark.slow
def test_a_budget_in_usd_is_shown_with_what_is_used_and_reserved(
    command: Callable[..., Result], database: Database
) -> None:
    run_id = submit_one(database, spec=replace(SPEC, budget=Budget(usd=40.0, tokens=10**9)))
    attempt = claim(database, run_id, tariffs=priced)
    job_id = run_row(database, run_id).job_id
    in_hand = command("budget", job_id, "--json").json
    assert in_hand["reserved_usd"] > 0 == in_hand["spent_usd"]
    assert ", $0." in command("budget", job_id).out
    attempt.reply(text("Done."), usage=USAGE)
    told = command("budget", job_id, "--json").json
    assert (told["budget_usd"], told["spent_usd"]) == (40, 0.00015)
    assert (told["reserved_usd"], told["reserved_tokens"]) == (0, 0)
    for shown in (command("budget", job_id).out, command("show", job_id).out):
        assert "$0.0002 of $40.00 used" in shown
        assert "110 of 1,000,000,000 tokens used" in shown


def test_a_budget_below_what_calls_in_hand_have_reserved_says_so(
    command: Callable[..., Result], database: Database
) -> None:
    run_id = submit_one(database, spec=replace(SPEC, budget=Budget(tokens=10**6)))
    claim(database, run_id)
    lowered = command("budget", run_row(database, run_id).job_id, "--tokens", "10")
    assert lowered.code == 0
    assert "running calls may still use what they reserved" in lowered.err


def test_a_job_without_a_budget_says_so_and_gets_none(
    command: Callable[..., Result], database: Database
) -> None:
    job_id = run_row(database, submit_one(database)).job_id
    assert "none: each run has its own limits" in command("budget", job_id).out
    assert command("budget", job_id, "--json").json["spent_tokens"] is None
    refused = command("budget", job_id, "--usd", "4")
    assert (refused.code, refused.out) == (exit_codes.USAGE, "")
    assert "has no budget" in refused.err


@pytest.mark.parametrize("sum_", ["-1", "0", "nan", "inf", "1e30", "forty"])
def test_what_is_no_sum_of_money_is_refused(
    command: Callable[..., Result], database: Database, sum_: str
) -> None:
    refused = command("budget", "job_1", f"--usd={sum_}")
    assert refused.code == exit_codes.USAGE
    assert "USD" in refused.err
    assert len(refused.err.splitlines()) == 1


@pytest.mark.slow
def test_everywhere_it_is_said_how_to_go_on(
    command: Callable[..., Result], database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    job_id, run_id = waiting(database, Budget(usd=0.01))
    how = f"runner budget {job_id[-8:]} --usd N"
    listed = command("list", job_id).out
    assert "its next call may use " in listed
    assert f" left: {how}" in listed
    assert how in command("show", run_id).out
    resumed = command("resume", run_id)
    assert resumed.code == 0
    assert f"runner budget {job_id[-8:]}" in resumed.out
    assert run_row(database, run_id).state == "waiting"
    code = summarise_job(database, job_id)
    assert code == exit_codes.WAITING
    assert f"1 run waits for the job's budget: {how}" in capsys.readouterr().out


def stopped_by_cost(database: Database, **options: Any) -> str:
    spec = replace(SPEC, limits=Limits(cost_ceiling_usd=0.001), **options)
    run_id = submit_one(database, spec=spec)
    claim(database, run_id, tariffs=priced)
    run = run_row(database, run_id)
    assert (run.state, run.reason) == ("stopped", "cost_ceiling")
    return run_id


@pytest.mark.slow
def test_a_cost_ceiling_is_raised_only_where_there_is_a_price(
    command: Callable[..., Result], database: Database
) -> None:
    run_id = stopped_by_cost(database)
    refused = command("retry", run_id, "--usd", "2")
    assert (refused.code, refused.out) == (exit_codes.USAGE, "")
    assert "'claude-test' has no price, so its cost cannot be limited" in refused.err
    run_id = stopped_by_cost(database, model="claude-opus-5-5")
    retried = command("retry", run_id, "--usd", "2.50")
    assert retried.code == 0
    run = run_row(database, run_id)
    assert (run.state, run.cost_ceiling_usd) == ("queued", 2.5)
    assert "$0.00 of $2.50" in command("show", run_id).out


def test_a_working_time_is_raised(command: Callable[..., Result], database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id).fail("invalid_request_error", "No.")
    assert command("retry", run_id, "--working-time", "90m").code == 0
    assert run_row(database, run_id).working_time == 5_400
    assert "of 1h30m" in command("show", run_id).out
    refused = command("retry", run_id, "--working-time", "soon")
    assert refused.code == exit_codes.USAGE
    assert "is not a duration such as 90s, 30m or 8h" in refused.err


@pytest.mark.slow
def test_unknown_charges_are_shown_apart_everywhere_and_written_off(
    command: Callable[..., Result], database: Database
) -> None:
    run_id = submit_one(database, spec=replace(SPEC, budget=Budget(tokens=900_000)))
    claim(database, run_id, tariffs=priced)
    leases.take_from(database, [WORKER], NOW)
    charged = run_row(database, run_id).charged_tokens
    job_id = str(run_row(database, run_id).job_id)
    said = {
        ("list",): f"{charged:,} ({charged:,} unknown)",
        ("list", job_id): f"{charged:,} ({charged:,} unknown)",
        ("show", run_id): f"0 out, {charged:,} for calls of unknown usage)",
        ("costs", job_id): f"({charged:,} tokens) for 1 call of unknown usage",
        ("budget", job_id): f"({charged:,} tokens) for 1 call of unknown usage",
        ("report", job_id): f"({charged:,} tokens) for 1 call of unknown usage",
        ("transcript", run_id): f"({charged:,} tokens) for 1 call of unknown usage",
    }
    for arguments, words in said.items():
        assert words in command(*arguments).out, arguments
    assert command("show", run_id, "--json").json["unknown_tokens"] == charged
    assert command("list", job_id, "--json").json[0]["tree_unknown_tokens"] == charged
    done = command("budget", job_id, "--write-off", f"{run_id}/1", "--reason", "the console says 0")
    assert f"({charged:,} tokens) of 1 call written off" in done.out
    for arguments in (("costs", job_id), ("show", run_id), ("budget", job_id)):
        assert f"({charged:,} tokens) of 1 call written off" in command(*arguments).out
    assert command("costs", job_id, "--json").json["total"]["written_off_tokens"] == charged
    wrong = command("budget", job_id, "--write-off", "nonsense")
    assert wrong.code == exit_codes.USAGE
    assert "RUN/NUMBER" in wrong.err


def test_a_list_marks_what_is_near_its_limits(
    command: Callable[..., Result], database: Database
) -> None:
    limits = Limits(max_turns=5, token_ceiling=500)
    run_id = submit_one(database, spec=replace(SPEC, limits=limits, budget=Budget(tokens=500)))

    def work(connection: Connection) -> None:
        connection.execute(update(runs).values(turns=4, charged_tokens=410, input_tokens=410))
        connection.execute(update(job_budgets).values(spent_tokens=410))

    database.write(work)
    assert (
        "near its limits: 4 of 5 turns, 410 of 500 tokens"
        in command("list", str(run_row(database, run_id).job_id)).out
    )
    assert "82% of its budget is spent" in command("list").out


def test_a_list_marks_a_run_that_is_near_its_cost_ceiling(
    command: Callable[..., Result], database: Database
) -> None:
    limits = Limits(cost_ceiling_usd=0.5)
    run_id = submit_one(database, spec=replace(SPEC, limits=limits))
    job_id = str(run_row(database, run_id).job_id)

    def charge(usd: float) -> None:
        progress = run_row(database, run_id).progress
        progress["money"]["charged_cost"] = billionths(usd)
        database.execute(update(runs).values(progress=progress))

    charge(0.39)
    assert "near its limits" not in command("list", job_id).out
    charge(0.42)
    assert "near its limits: $0.4200 of $0.5000" in command("list", job_id).out


@pytest.mark.slow
def test_list_and_show_say_how_many_items_do_not_begin_and_what_to_do(
    command: Callable[..., Result], database: Database
) -> None:
    job_id, ids = submit(database, 12)
    finish(database, *ids[:9])
    half_done(database, ids[9])
    left = "the rest of the budget is for started items: runner budget {} --tokens N"
    said = left.format(job_id)
    shown = command("show", job_id).out
    assert f"2 items do not start: {left.format(job_id[-8:])}" in shown
    assert command("show", job_id, "--json").json["held_back"].startswith("2 items do not start")
    listed = {job["id"]: job["waits_for"] for job in command("list", "--json").json}
    assert listed == {job_id: f"2 items do not start: {said}"}
    assert command("budget", job_id, "--tokens", str(30 * ITEM)).code == 0
    assert "do not start" not in command("show", job_id).out


def test_show_says_that_items_would_take_longer_than_until_finish_by(
    command: Callable[..., Result], database: Database
) -> None:
    job_id, ids = submit(database, 5, SPEC)
    finish(database, *ids[:3], seconds=7_200.0)
    half_done(database, ids[3])
    of_job = update(jobs).where(jobs.c.id == job_id)
    database.execute(of_job.values(finish_by=time.time() + 3_600))
    said = f"before finish_by: runner finish-by {job_id[-8:]} TIME"
    shown = command("show", job_id).out
    assert "1 item does not start: an item would probably not end" in shown
    assert said in shown

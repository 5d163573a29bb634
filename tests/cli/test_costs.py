"""``costs``, and costs where jobs and runs are shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from runner.app import humanize
from runner.app.costs import cost_fields
from runner.core.commands import Target
from runner.core.conversation import Usage
from runner.core.prices import BY, Spending
from runner.queries.transcript import show_run
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.jobs import SESSIONS
from runner.store.tables import jobs
from tests.cli.conftest import Result
from tests.cli.test_terminal import HOSTILE, steers
from tests.queries.test_losses import two_turns
from tests.store.attempts import claim, submit_one, text, tool_use
from tests.store.examples import NOW, SPEC

USAGE = Usage(
    input_tokens=10_000, cache_read_tokens=60_000, cache_creation_tokens=20_000, output_tokens=1_000
)
COST = 0.046  # 0.010 + 0.025 + 0.006 + 0.005
PRICED = """
[models.claude-test]
input = 1
cache_write_5m = 1.25
cache_write_1h = 2
cache_read = 0.1
output = 5
"""


@pytest.fixture
def priced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of the tests has a price."""
    (folder / "prices.toml").write_text(PRICED)
    monkeypatch.setenv("RUNNER_PRICES", "prices.toml")


def work(database: Database, **options: Any) -> str:
    run_id = submit_one(database, **options)
    claim(database, run_id).reply(text("Done."), usage=USAGE)
    return run_id


def job_of(database: Database, run_id: str) -> str:
    return str(show_run(database, run_id)["job_id"])


@pytest.mark.parametrize("by", BY)
def test_costs_are_told_by_any_of_them(
    command: Callable[..., Result], database: Database, priced: None, by: str
) -> None:
    run_id = work(database)
    work(database, spec=replace(SPEC, name="other"))
    told = command("costs", "--by", by, "--json").json
    assert told["by"] == by
    assert told["prices"]["date"] >= "2026"
    assert sum(line["calls"] for line in told["lines"]) == told["total"]["calls"] == 2
    assert told["total"]["cost_usd"] == 2 * COST
    assert told["total"]["cache_share"] == round(6 / 9, 4)
    keys = [line[by] for line in told["lines"]]
    assert {
        "job": job_of(database, run_id),
        "run": run_id,
        "tree": run_id,
        "model": "claude-test",
        "day": "2023-11-14",
        "purpose": "turn",
    }[by] in keys
    shown = command("costs", "--by", by)
    assert shown.code == 0
    assert "cost: $0.0920; 67% of the input from the cache" in shown.out
    assert all(key[-8:] in shown.out for key in keys)


def test_costs_of_a_job_are_told_by_run(
    command: Callable[..., Result], database: Database, priced: None
) -> None:
    run_id = work(database)
    work(database)
    told = command("costs", job_of(database, run_id), "--json").json
    (line,) = told["lines"]
    assert (line["run"], line["label"], line["cost_usd"]) == (run_id, "one", COST)
    assert told["total"]["input_tokens"] == 10_000
    assert "$0.0460" in command("costs", job_of(database, run_id)).out


@pytest.mark.slow
def test_model_without_a_price_is_said_and_never_free(
    command: Callable[..., Result], database: Database
) -> None:
    run_id = work(database)
    total = command("costs", "--json").json["total"]
    assert (total["cost_usd"], total["unpriced_models"]) == (None, ["claude-test"])
    shown = command("costs").out
    assert "cost: ? (no price for claude-test)" in shown
    assert "RUNNER_PRICES" in shown
    assert "no price for claude-test" in command("show", run_id).out
    assert command("show", run_id, "--json").json["cost_usd"] is None


@pytest.mark.slow
def test_script_costs_nothing_and_says_so(
    command: Callable[..., Result], database: Database
) -> None:
    run_id = work(database, spec=replace(SPEC, provider="scripted", script={}))
    total = command("costs", "--json").json["total"]
    assert (total["cost_usd"], total["scripted_calls"]) == (0, 1)
    assert "cost: none (scripted)" in command("costs").out
    assert "none (scripted)" in command("show", run_id).out


def test_calls_of_unknown_usage_are_said_apart(
    command: Callable[..., Result], database: Database, priced: None
) -> None:
    run_id = submit_one(database)
    claim(database, run_id).reply(tool_use(1), stop="tool_use", usage=USAGE).finish("ok")
    cancel(database, Target("run", run_id), NOW)
    (line,) = command("costs", "--by", "run", "--json").json["lines"]
    assert (line["cost_usd"], line["unknown_calls"]) == (COST, 1)
    assert line["unknown_at_most_usd"] > 0
    shown = command("show", run_id).out
    assert "$0.0460, plus at most $" in shown
    assert "for 1 call of unknown usage" in shown


@pytest.mark.slow
def test_jobs_and_runs_are_shown_and_listed_with_their_cost(
    command: Callable[..., Result], database: Database, priced: None
) -> None:
    run_id = work(database)
    job_id = job_of(database, run_id)
    for shown in (
        command("show", run_id, "--json").json,
        command("show", job_id, "--json").json,
        *command("list", "--json").json,
        *command("list", job_id, "--json").json,
    ):
        assert shown["cost_usd"] == COST
        assert shown["cache_share"] == round(6 / 9, 4)
        assert "spending" not in shown
    for thing in (run_id, job_id):
        assert "$0.0460; 67% of the input from the cache" in command("show", thing).out


@pytest.mark.slow
def test_before_the_first_call_there_is_no_cost(
    command: Callable[..., Result], database: Database
) -> None:
    run_id = submit_one(database)
    assert "cost" not in command("show", run_id).out
    assert command("show", run_id, "--json").json["cost_usd"] == 0
    assert "cost: no calls yet" in command("costs").out
    assert command("costs", "--json").json["lines"] == []


def test_price_list_that_is_none_is_a_usage_error_before_anything_is_done(
    command: Callable[..., Result], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_PRICES", "none.toml")
    result = command("run", "job.toml")
    assert result.code == 2
    assert "none.toml (RUNNER_PRICES) cannot be read" in result.err
    assert list(folder.iterdir()) == []


def test_costs_do_not_steer_the_terminal(
    command: Callable[..., Result], database: Database
) -> None:
    name = HOSTILE.replace("\x00", "").replace("\ud800", "")
    work(database, spec=replace(SPEC, name=name))
    shown = command("costs").out
    assert not any(map(steers, shown.replace("\n", "")))


@pytest.mark.parametrize(
    ("usd", "words"),
    [
        ("0", "$0.00"),
        ("0.00000001", "<$0.0001"),
        ("0.0123", "$0.0123"),
        ("1.005", "$1.00"),
        ("12345.678", "$12,345.68"),
    ],
)
def test_amounts_are_told_as_a_person_says_them(usd: str, words: str) -> None:
    assert humanize.dollars(Decimal(usd)) == words


def test_cost_that_is_known_in_part_says_so() -> None:
    spent = Spending(calls=2, usd=Decimal(3), unpriced=frozenset({"x"}))
    assert humanize.cost(spent) == "$3.00 + ?"
    assert cost_fields(spent)["cost_usd"] is None
    assert cost_fields(spent)["priced_usd"] == 3


@pytest.mark.slow
def test_costs_of_a_job_say_what_was_lost_and_what_would_cost_less(
    command: Callable[..., Result], database: Database, priced: None
) -> None:
    job_id = job_of(database, two_turns(database))
    shown = command("costs", job_id)
    # 100,000 tokens are written at $1.25 a million instead of read at $0.10; an hour's first write is $2.
    assert "lost: $0.1150 to expired caches (1 call)" in shown.out
    assert 'at most $0.1255 less: lane = "batch"' in shown.out
    assert '$0.0400 less: cache_control = { type = "ephemeral", ttl = "1h" }' in shown.out
    told = command("costs", job_id, "--json").json["losses"]
    assert told["expired_caches"] == {"calls": 1, "usd": 0.115, "unknown_at_most_usd": 0}
    assert [way["saves_usd"] for way in told["cheaper"]] == [0.1255, 0.04]
    assert command("costs", "--json").json["losses"] is None
    report = command("report", job_id).out
    assert "- lost: $0.1150 to expired caches (1 call)" in report
    assert "- cheaper: `$0.0400 less: cache_control" in report


def test_nothing_is_proposed_for_imported_sessions(
    command: Callable[..., Result], database: Database, priced: None
) -> None:
    job_id = job_of(database, two_turns(database))
    imported = update(jobs).values(name=SESSIONS, source=SESSIONS)
    database.write(lambda connection: connection.execute(imported))
    report = command("report", job_id).out
    assert "- lost: $0.1150 to expired caches (1 call)" in report
    assert " less: " not in report + command("costs", job_id).out


def test_costs_take_the_filters_and_formats_of_the_record(
    command: Callable[..., Result], database: Database, priced: None
) -> None:
    run_id = work(database)
    work(database, spec=replace(SPEC, name="other"))
    (row,) = command("costs", job_of(database, run_id), "--format", "json").json
    assert (row["run_id"], row["cost_usd"]) == (run_id, COST)
    assert command("costs", "--since", "yesterday", "--json").json == []
    assert len(command("costs", "--until", "2023-12-01", "--by", "run", "--json").json) == 2
    told = command("costs", "--item", "one", "--format", "csv")
    assert len(told.out.splitlines()) == 3

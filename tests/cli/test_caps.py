"""``budget --all``, and what is said of runs that wait for the cap of the day."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import update

from runner.cli import exit_codes
from runner.core.conversation import ModelReply
from runner.store.database import Database
from runner.store.tables import model_calls
from tests.cli.conftest import Result
from tests.cli.test_budget import priced
from tests.store.attempts import USAGE, Attempt, claim, replied, run_row, submit_one, text
from tests.store.examples import SPEC


def take(database: Database) -> Attempt:
    run_id = submit_one(database, spec=replace(SPEC, model="claude-opus-5-5"))
    return claim(database, run_id, time.time(), priced)


@pytest.mark.slow
def test_a_cap_is_set_shown_changed_and_removed(
    command: Callable[..., Result], database: Database
) -> None:
    assert "none: set one with `runner budget --all --usd N" in command("budget", "--all").out
    assert command("budget", "--all", "--json").json is None
    zone = ("--tz", "Europe/Berlin")
    given = command("budget", "--all", "--usd", "50", "--per", "day", *zone, "--as", "ada")
    assert given.code == 0
    assert "$50.00 per day, Europe/Berlin" in given.out
    command("budget", "--all", "--usd", "40", "--as", "bo", "--reason", "It is late.")
    told = command("budget", "--all", "--json").json
    assert (told["cap_usd"], told["zone"], told["per"]) == (40, "Europe/Berlin", "day")
    assert [(each["by"], each["new"]["usd"]) for each in told["changes"]] == [
        ("ada", 50),
        ("bo", 40),
    ]
    assert "by bo: It is late." in command("budget", "--all").out
    assert "none: it was removed" in command("budget", "--all", "--remove").out
    assert command("budget", "--all", "--remove").code == exit_codes.USAGE


@pytest.mark.slow
def test_everywhere_it_is_said_that_runs_wait_for_the_cap_and_until_when(
    command: Callable[..., Result], database: Database
) -> None:
    command("budget", "--all", "--usd", "0.01", "--tz", "Pacific/Kiritimati")
    run_id = take(database).state.run_id
    row = run_row(database, run_id)
    assert (row.state, row.reason) == ("queued", "cap")
    line = "1 run waits for the cap of the day, until "
    assert line in command("list").err
    assert "00:00 Pacific/Kiritimati" in command("budget", "--all").out
    assert line in command("doctor").out
    how = "(the cap of the day: runner budget --all)"
    for shown in ("show", run_id), ("list", row.job_id), ("list",):
        assert how in command(*shown).out
    (job,) = command("list", "--json").json
    assert how in job["waits_for"]
    told = command("budget", "--all", "--json").json
    assert (told["waiting_runs"], told["waiting_until"]) == (1, row.due_at)
    raised = command("budget", "--all", "--usd", "50")
    assert "1 run goes on" in raised.err
    assert run_row(database, run_id).due_at <= time.time()


def test_a_new_cap_begins_with_what_the_day_has_cost(
    command: Callable[..., Result], database: Database
) -> None:
    reply = ModelReply((text("Done."),), "end_turn", USAGE, "claude-opus-5-5")
    yesterday = take(database).append(replied(reply)).state.run_id
    earlier = update(model_calls).values(started_at=model_calls.c.started_at - 86_400)
    database.execute(earlier.where(model_calls.c.run_id == yesterday))
    take(database).append(replied(reply))
    zone = ("--tz", "UTC")
    told = command("budget", "--all", "--usd", "50", *zone, "--json").json
    both = command("costs", "--json").json["total"]["cost_usd"]
    assert told["spent_usd"] == pytest.approx(both / 2) != 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "name one job, or give --all"),
        (("job_1", "--all"), "name one job, or give --all"),
        (("job_1", "--tz", "UTC"), "add --all"),
        (("--all", "--tokens", "5"), "--all takes --usd"),
        (("--all", "--remove", "--usd", "5"), "or --remove alone"),
        (("--all", "--tz", "UTC"), "give --usd too"),
        (("--all", "--usd", "5", "--tz", "Europe/Berlim"), "did you mean Europe/Berlin?"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(
    command: Callable[..., Result], database: Database, options: tuple[str, ...], said: str
) -> None:
    refused = command("budget", *options)
    assert (refused.code, refused.out) == (exit_codes.USAGE, "")
    assert said in refused.err
    assert len(refused.err.splitlines()) == 1

"""``runner audit``: every question answers in every format, and takes the same filters."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click
import pytest

from runner.cli.audit import FORMATS, audit
from runner.core.commands import Target
from runner.store.control import cancel
from runner.store.database import Database
from tests.cli.conftest import Result
from tests.store.attempts import claim
from tests.store.audit.played import Job, bash, play, submit, turn
from tests.store.examples import NOW

Command = Callable[..., Result]
QUESTIONS = (
    *("tools", "commands", "files", "connections", "errors"),
    *("decisions", "approvals", "limits"),
    "models",
)


@pytest.fixture
def job(database: Database) -> Job:
    return play(database)


def test_every_question_is_in_the_group_and_is_tested_here() -> None:
    assert set(audit.commands) == {*QUESTIONS, "sql", "views"}


@pytest.mark.parametrize("name", sorted(audit.commands))
def test_help_has_an_example(command: Command, name: str) -> None:
    told = command("audit", name, "--help")
    assert told.code == 0
    assert f"Example:\n    runner audit {name}" in told.out


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question_takes_the_same_options(name: str) -> None:
    options = {
        option
        for parameter in audit.commands[name].params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
    }
    filters = {"--job", "--run", "--since", "--until", "--tool", "--item", "--model", "--state"}
    assert filters | {"--limit", "--format", "--json"} <= options


@pytest.mark.slow
def test_every_question_answers_in_every_format(command: Command, job: Job) -> None:
    for name in QUESTIONS:
        as_json = command("audit", name, "--json")
        assert (as_json.code, as_json.err) == (0, "")
        rows = as_json.json
        told = command("audit", name, "--format", "jsonl").out.splitlines()
        assert [json.loads(line) for line in told] == rows
        heads, *cells = csv.reader(io.StringIO(command("audit", name, "--format", "csv").out))
        assert [heads, len(cells)] == [list(rows[0]) if rows else heads, len(rows)]
        assert len(command("audit", name).out.splitlines()) == (1 + len(rows) if rows else 0)


@pytest.mark.slow
def test_timeline_tells_of_a_run(command: Command, job: Job) -> None:
    run_id = job.runs[0]
    rows = command("events", run_id[-8:], "--format", "json").json
    events = command("events", run_id, "--json").json
    assert [row["event"] for row in rows] == [event["type"] for event in events]


@pytest.mark.slow
def test_ids_may_be_shortened(command: Command, database: Database, job: Job) -> None:
    other = submit(database, "c.py")
    turn(claim(database, other.runs[0]), *bash("ls"))
    for options in (("--run", other.runs[0][-8:]), ("--job", other.id[-8:]), ("--item", "c.py")):
        (row,) = command("audit", "tools", *options, "--json").json
        assert (row["tool"], row["calls"]) == ("Bash", 1)


def test_a_question_can_cover_only_runs_in_one_state(command: Command, database: Database) -> None:
    for state in ("waiting", "cancelled"):
        run_id = submit(database, f"{state}.py").runs[0]
        turn(claim(database, run_id), *bash(f"echo {state}"))
        if state == "cancelled":
            cancel(database, Target("run", run_id), NOW)
    for state in ("waiting", "cancelled"):
        (row,) = command("audit", "commands", "--state", state, "--json").json
        assert row["command"] == f"echo {state}"
        (line,) = command("costs", "--by", "run", "--state", state, "--json").json
        assert line["run_id"] == row["run_id"]


@pytest.mark.slow
def test_times_are_days_moments_and_how_long_ago(command: Command, job: Job) -> None:
    def calls(*options: str) -> int:
        rows = command("audit", "decisions", "--each", *options, "--json").json
        return len(rows)

    everything = calls()
    at = datetime.fromtimestamp(NOW + 15).isoformat()
    assert calls("--since", "2023-11-01") == everything == 9
    assert calls("--until", "2023-11-01") == 0
    assert calls("--until", at) == 3
    assert calls("--since", at) == everything - 3
    assert calls("--since", "3d") == calls("--since", "12h") == calls("--since", "30m") == 0
    assert calls("--until", "2w") == everything


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--since", "tomorrow"), "is not a time: use 2026-11-22"),
        (("--since", "2026-13-01"), "is not a time"),
        (("--since", "1999999w"), "is not a time"),
        (("--since", "1h", "--until", "2h"), "--since must be before --until"),
        (("--job", "nothing"), "no job is named 'nothing'"),
        (("--run", "nothing"), "no run is named 'nothing'"),
        (("--tool", "\udcff"), "--tool is not text in UTF-8"),
        (("--item", "a\udcff"), "--item is not text in UTF-8"),
        (("--job", "\udcff"), "--job is not text in UTF-8"),
        (("--json", "--format", "csv"), "--json is --format json, and not csv"),
        (("--limit", "-1"), "-1 is not in the range"),
        (("--format", "xml"), "'xml' is not one of"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(
    command: Command, job: Job, options: tuple[str, ...], told: str
) -> None:
    refused = command("audit", "tools", *options)
    assert refused.code != 0
    assert refused.out == ""
    assert told in refused.err
    assert refused.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["* *", ""])
def test_pattern_that_is_none_is_refused_in_a_line(
    command: Command, job: Job, pattern: str
) -> None:
    refused = command("audit", "commands", pattern)
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)


@pytest.mark.slow
def test_limit_is_kept_and_told(command: Command, job: Job) -> None:
    few = command("audit", "commands", "--limit", "2", "--json")
    assert len(few.json) == 2
    assert few.err == "only the newest 2: there are more (--limit 0 gives all)\n"
    every = command("audit", "commands", "--limit", "0", "--json")
    assert (len(every.json), every.err) == (6, "")
    assert every.json[:2] == few.json


def test_what_a_model_wrote_cannot_steer_a_terminal(command: Command, database: Database) -> None:
    attempt = claim(database, submit(database, "a").runs[0])
    turn(attempt, *bash("ls '\x1b[2J\x1b]0;x\x07'\n\u202e"))
    told = command("audit", "commands")
    assert len(told.out.splitlines()) == 2
    assert not set(told.out) & {"\x1b", "\x07", "\u202e"}
    (row,) = command("audit", "commands", "--format", "jsonl").out.splitlines()
    assert json.loads(row)["command"] == "ls '\x1b[2J\x1b]0;x\x07'\n\u202e"


def test_formats_are_those_that_are_documented(command: Command) -> None:
    assert FORMATS == ("table", "json", "jsonl", "csv")
    told: Any = command("audit", "tools", "--help").out
    assert "[table|json|jsonl|csv]" in told

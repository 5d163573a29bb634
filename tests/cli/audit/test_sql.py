"""``audit sql`` and ``audit views``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.cli import exit_codes
from runner.queries.sql.views import VIEWS
from runner.store.database import Database
from tests.cli.conftest import Result
from tests.cli.test_terminal import HOSTILE, steers
from tests.store.attempts import claim, submit_one, text

Command = Callable[..., Result]


@pytest.fixture
def said(database: Database) -> Database:
    """A run that said something that would steer a terminal."""
    claim(database, submit_one(database, key="=1+1")).reply(text(HOSTILE))
    return database


def test_question_is_answered_as_a_table(said: Database, command: Command) -> None:
    result = command("audit", "sql", "SELECT state, turns, seconds FROM v_runs")
    assert result.code == 0
    assert result.out.splitlines()[0].split() == ["state", "turns", "seconds"]
    assert result.out.splitlines()[1].split() == ["succeeded", "1", "0.0s"]


@pytest.mark.slow
@pytest.mark.parametrize("format", ["table", "json", "jsonl", "csv"])
def test_nothing_in_an_answer_steers_a_terminal(
    said: Database, command: Command, format: str
) -> None:
    name = 'AS "x\x1b[31my"'
    sql = f"SELECT text {name}, item FROM v_messages WHERE role = 'assistant'"
    result = command("audit", "sql", sql, "--format", format)
    assert result.code == 0
    assert "[31my" in result.out
    if format != "csv":  # piped, it is exact: a terminal is given it visibly
        assert not any(steers(character) for character in result.out.replace("\n", ""))
    assert ("'=1+1" in result.out) == (format == "csv")


@pytest.mark.slow
def test_answer_is_exact_as_json(said: Database, command: Command) -> None:
    sql = "SELECT content FROM v_messages WHERE role = 'assistant'"
    (row,) = command("audit", "sql", sql, "--json").json
    assert json.loads(row["content"]) == text(HOSTILE)


@pytest.mark.slow
def test_question_may_come_from_a_file(
    said: Database, command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "question.sql").write_text("SELECT count(*) AS runs\nFROM v_runs -- all\n")
    result = command("audit", "sql", "--file", "question.sql", "--format", "jsonl")
    assert json.loads(result.out) == {"runs": 1}
    for arguments in ((), ("SELECT 1", "--file", "question.sql")):
        assert command("audit", "sql", *arguments).code == exit_codes.USAGE


@pytest.mark.slow
def test_rows_beyond_the_limit_are_left_out_and_that_is_said(
    said: Database, command: Command
) -> None:
    sql = "SELECT type FROM v_events"
    result = command("audit", "sql", sql, "--limit", "2", "--format", "jsonl")
    assert len(result.out.splitlines()) == 2
    assert "first 2 rows" in result.err
    whole = command("audit", "sql", sql, "--limit", "0", "--format", "jsonl")
    assert len(whole.out.splitlines()) > 2
    assert whole.err == ""


@pytest.mark.slow
def test_question_that_changes_something_is_refused(said: Database, command: Command) -> None:
    result = command("audit", "sql", "DELETE FROM runs")
    assert (result.code, result.out) == (exit_codes.USAGE, "")
    assert len(result.err.splitlines()) == 1
    assert command("audit", "sql", "SELECT count(*) AS n FROM runs", "--json").json == [{"n": 1}]


@pytest.mark.slow
def test_question_that_takes_too_long_fails(said: Database, command: Command) -> None:
    endless = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT max(n) FROM c"
    result = command("audit", "sql", endless, "--timeout", "1s")
    assert result.code == exit_codes.FAILED
    assert "--timeout" in result.err


def test_role_of_the_environment_is_taken(
    said: Database, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_AUDIT_ROLE", "auditor")
    result = command("audit", "sql", "SELECT 1")
    assert "no roles" in result.err


@pytest.mark.slow
def test_without_a_database_none_is_made(command: Command, folder: Path) -> None:
    result = command("audit", "sql", "SELECT 1")
    assert (result.code, result.out) == (exit_codes.SUCCEEDED, "")
    assert "no jobs yet" in result.err
    assert list(folder.iterdir()) == []


def test_views_are_listed_without_a_database(command: Command) -> None:
    rows = command("audit", "views", "--json").json
    assert [(row["view"], row["column"]) for row in rows] == [
        (view.name, column.name) for view in VIEWS for column in view.columns
    ]
    assert {row["view"] for row in command("audit", "views", "v_costs", "--json").json} == {
        "v_costs"
    }
    assert "v_costs" in command("audit", "views", "v_cost").err

"""Rows are printed exactly for programs, and harmlessly for people and spreadsheets."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.cli.audit import FORMATS, say_rows
from runner.queries.rows import Column, Rows
from tests.cli.test_terminal import steers

HOSTILE = "\x1b]0;title\x07\x1b[2J a\r\nb\u202e\x9b31m"
FORMULAS = ("=1+1", "+1", "-1+cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1")
COLUMNS = (
    Column("run_id"),
    Column("at", "time"),
    Column("calls", "integer"),
    Column("share", "real"),
    Column("took", "seconds"),
    Column("cost_usd", "usd"),
    Column("edited", "boolean"),
    Column("raised_to", "json"),
    Column("text"),
)
ROW = ("run_1", 1_700_000_000.25, 1234, 0.5, 65.0, 0.00123, True, {"max_turns": 5}, "a, b")
EMPTY = ("run_2", None, None, None, None, None, None, None, None)

Captured = pytest.CaptureFixture[str]


def steering(text: str) -> str:
    return "".join(sign for sign in text if sign != "\n" and steers(sign))


def printed(capsys: Captured, format: str, *rows: Any, columns: Any = COLUMNS) -> str:
    say_rows(Rows(columns, rows), format)
    return capsys.readouterr().out


def test_table_says_values_as_people_do(capsys: Captured, monkeypatch: Any) -> None:
    head, first, second = printed(capsys, "table", ROW, EMPTY).splitlines()
    assert head.split() == [
        "run",
        "id",
        "at",
        "calls",
        "share",
        "took",
        "cost",
        "usd",
        "edited",
        "raised",
        "to",
        "text",
    ]
    for shown in (
        "2023-11-1",
        "1,234",
        "0.5",
        "1m05s",
        "$0.0012",
        "yes",
        '{"max_turns": 5}',
        "a, b",
    ):
        assert shown in first
    assert second == "run_2"


def test_numbers_stand_on_the_right(capsys: Captured) -> None:
    columns = (Column("tool"), Column("calls", "integer"))
    table = printed(capsys, "table", ("Bash", 5), ("Read", 12_345), columns=columns)
    assert table == "tool   calls\nBash       5\nRead  12,345\n"


def test_json_is_exact(capsys: Captured) -> None:
    names = [column.name for column in COLUMNS]
    rows = [dict(zip(names, row, strict=True)) for row in (ROW, EMPTY)]
    rows[0]["at"] = "2023-11-14T22:13:20.250+00:00"
    assert json.loads(printed(capsys, "json", ROW, EMPTY)) == rows
    assert json.loads(printed(capsys, "json")) == []
    lines = printed(capsys, "jsonl", ROW, EMPTY).splitlines()
    assert [json.loads(line) for line in lines] == rows


def test_csv_has_times_in_utc_and_plain_numbers(capsys: Captured) -> None:
    head, first, second = csv.reader(io.StringIO(printed(capsys, "csv", ROW, EMPTY)))
    assert head == [column.name for column in COLUMNS]
    assert first == [
        *("run_1", "2023-11-14T22:13:20.250+00:00", "1234", "0.5", "65.0", "0.00123", "true"),
        *('{"max_turns": 5}', "a, b"),
    ]
    assert second == ["run_2", *[""] * 8]


@pytest.mark.parametrize("formula", FORMULAS)
def test_csv_has_no_formula_in_it(capsys: Captured, formula: str) -> None:
    columns = (Column("text"), Column("value", "json"), Column("number", "real"))
    printed_csv = printed(capsys, "csv", (formula, formula, -1.5), columns=columns)
    _, (text, value, number) = csv.reader(io.StringIO(printed_csv, newline=""))
    assert (text[:2], number) == (f"'{formula[0]}", "-1.5")
    assert not value.startswith(FORMULAS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text("=+-@;\t\r\n,a '\"＝", min_size=1))
def test_no_spreadsheet_finds_a_formula_whatever_separates_its_cells(
    capsys: Captured, text: str
) -> None:
    told = printed(capsys, "csv", (text, "x"), columns=(Column("text"), Column("last")))
    _, (found, _) = csv.reader(io.StringIO(told, newline=""))
    for part in re.split(r"[;\t\r\n]", found):
        assert not part.lstrip(" ").startswith(("=", "+", "-", "@", "＝"))
    assert found.replace("'", "") == text.replace("'", "")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(("time", at) for at in (1e300, -1e300, 9223372036854775807, "soon", float("nan"))),
        *(("seconds", took) for took in (float("inf"), "long", float("nan"))),
        *((kind, "many") for kind in ("integer", "real", "usd")),
        ("usd", float("nan")),
    ],
)
@pytest.mark.parametrize("format", FORMATS)
def test_value_that_is_none_of_its_kind_is_said_as_it_is(
    capsys: Captured, format: str, kind: Any, value: Any
) -> None:
    told = printed(capsys, format, (value, 1), columns=(Column("at", kind), Column("n", "integer")))
    assert str(value)[:4].lower() in told.lower() or "$nan" in told.lower()


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1))
def test_csv_gives_every_text_again(capsys: Captured, texts: list[str]) -> None:
    rows = [(each, "end") for each in texts]
    told = printed(capsys, "csv", *rows, columns=(Column("text"), Column("last")))
    _, *found = csv.reader(io.StringIO(told, newline=""))
    assert len(found) == len(texts)
    for (text, last), given_text in zip(found, texts, strict=True):
        assert (text.replace("'", ""), last) == (given_text.replace("'", ""), "end")


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_steers_a_terminal(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    rows = [(HOSTILE, {HOSTILE: HOSTILE}, 1)]
    columns = (Column("text"), Column("value", "json"), Column(HOSTILE, "integer"))
    told = printed(capsys, format, *rows, columns=columns)
    assert not steering(told)


def test_piped_table_does_not_steer_either(capsys: Captured) -> None:
    told = printed(capsys, "table", (HOSTILE, 1), columns=(Column("text"), Column("n", "integer")))
    assert not steering(told)
    assert len(told.splitlines()) == 2


def test_terminal_shows_ids_by_their_ends_and_no_empty_columns(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    columns = (Column("tool"), Column("run_id"), Column("answer"), Column("text"))
    rows = [("mcp__a_long_server__tool", "run_01hf7yat00523ypyqabbm952gt", None, "x" * 300)]
    told = printed(capsys, "table", *rows, columns=columns)
    assert "mcp__a_long_server__tool" in told
    assert "abbm952gt"[-8:] in told
    assert "run_01" not in told
    assert "answer" not in told
    assert max(map(len, told.splitlines())) <= 80


def test_note_is_said_beside_the_rows(capsys: Captured) -> None:
    say_rows(Rows((Column("n", "integer"),), [(1,)], f"cut {HOSTILE}"), "json")
    out, err = capsys.readouterr()
    assert json.loads(out) == [{"n": 1}]
    assert err.startswith("cut ")
    assert not steering(err)

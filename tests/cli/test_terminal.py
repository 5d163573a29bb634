"""What is printed obeys no control character of others."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.app import humanize
from runner.cli import terminal

HOSTILE = "\x1b[31mred\x07\x9b2J\u202eevil\u2066\r\nsecond\x00line\ud800\u2028[bold]x[/bold]"


def steers(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


@pytest.mark.slow
@given(st.text(st.characters()))
def test_cell_is_one_line_that_steers_nothing(text: str) -> None:
    assert not any(map(steers, humanize.cell(text)))


@given(st.text(st.characters()))
def test_lines_keep_their_breaks_and_steer_nothing_else(text: str) -> None:
    shown = humanize.lines(text)
    assert shown.count("\n") == text.count("\n")
    assert not any(map(steers, shown.replace("\n", "")))


@pytest.mark.parametrize("on_terminal", [False, True])
def test_table_steers_nothing_and_reads_no_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, on_terminal: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: on_terminal, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    terminal.say_table(("id", "item"), [("run_1", HOSTILE), ("run_2", ":smile: [red]x")])
    out = capsys.readouterr().out
    assert not any(map(steers, out.replace("\n", "")))
    assert "[bold]x[/bold]" in out
    assert ":smile: [red]x" in out
    assert len(out.splitlines()) == 3


@pytest.fixture
def draw(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[list[str], str]]:
    """Draws a table on a terminal of so many columns: its lines, and what is said about it."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")

    def table(width: int, *table: Any, **options: Any) -> tuple[list[str], str]:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        monkeypatch.setenv("COLUMNS", str(width))
        terminal.say_table(*table, **options)
        shown = capsys.readouterr()
        plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.out)
        return [line.rstrip() for line in plain.splitlines()], shown.err

    return table


IDS = [f"run_{'a' * 18}{number}bcdefgh" for number in (1, 2)]


def test_piped_table_cuts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.say_table(("id", "item"), [("run_" + "x" * 30, "y" * 500)])
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["id", "item"]
    assert row.split() == ["run_" + "x" * 30, "y" * 500]


def test_tables_show_ends_of_ids_that_tell_them_apart(capsys: pytest.CaptureFixture[str]) -> None:
    call = IDS[0].replace("run", "call") + ".12_3_1"
    terminal.say_table(("run", "item"), [(IDS[0], call), (f"{IDS[0]}.3.1", "run_of_an_item")])
    _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split() for row in rows] == [
        ["1bcdefgh", "1bcdefgh.12_3_1"],
        ["1bcdefgh.3.1", "run_of_an_item"],
    ]
    alike = [f"run_{'a' * 15}{number}bcdefghijk" for number in (1, 2)]
    terminal.say_table(("run",), [[each] for each in alike])
    assert capsys.readouterr().out.split() == ["run", "1bcdefghijk", "2bcdefghijk"]


def test_narrow_terminal_shows_fewer_columns_and_cuts_none(draw: Callable[..., Any]) -> None:
    head = ("run", "state", "tokens", "turns", "detail")
    row = (IDS[0], "failed", "1,234", "12", "one two three four five six seven")
    wide = ["1bcdefgh  failed  1,234   12     one two three four five six seven"]
    assert draw(80, head, [row]) == (["run       state   tokens  turns  detail", *wide], "")
    lines, said = draw(50, head, [row], spare=("turns",))
    assert lines == [
        "run       state   tokens  detail",
        "1bcdefgh  failed  1,234   one two three four five",
        "                          six seven",
    ]
    assert said == "no room for turns: a wider terminal or --json shows them\n"
    lines, said = draw(45, head, [row], spare=("turns", "tokens"))
    assert " ".join(" ".join(lines).split()).endswith("one two three four five six seven")
    assert (lines[0].split(), said.split(":")[0]) == (
        ["run", "state", "detail"],
        "no room for tokens, turns",
    )


def test_a_wide_column_that_goes_makes_room_for_narrow_ones(draw: Callable[..., Any]) -> None:
    head = ("run", "state", "a", "turns", "reason", "detail")
    row = (IDS[0], "failed", "b", "12", "r" * 24, "one two three four five six")
    lines, said = draw(54, head, [row], spare=("turns",))
    assert lines[0].split() == ["run", "state", "a", "turns", "detail"]
    assert said.startswith("no room for reason:")


def test_an_excerpt_has_one_line_or_goes(draw: Callable[..., Any]) -> None:
    head = ("run", "item", "state", "turns", "last text")
    row = (IDS[0], "a", "failed", "12", "z" * 99)
    lines, said = draw(68, head, [row], excerpt=True)
    assert (lines[1].split()[-1], len(lines), said) == ("z" * 36 + "…", 2, "")
    lines, said = draw(24, head, [row], excerpt=True)
    assert (lines[1].split(), said.split(":")[0]) == (
        ["1bcdefgh", "a", "failed"],
        "no room for turns, last text",
    )


@pytest.mark.parametrize("value", [{"a": HOSTILE, "huge": 10**400}, [None, True, 0.5, "é"], []])
def test_json_is_ascii_and_comes_back_as_it_was(
    capsys: pytest.CaptureFixture[str], value: Any
) -> None:
    for on_one_line in (False, True):
        terminal.say_json(value, on_one_line=on_one_line)
        out = capsys.readouterr().out
        assert out.isascii()
        assert not any(map(steers, out.replace("\n", "")))
        assert json.loads(out) == value
        assert (out.count("\n") == 1) or not on_one_line


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, ""), (-1, "0.0s"), (0.44, "0.4s"), (12, "12s"), (185, "3m05s"), (7620, "2h07m")],
)
def test_durations_read_well(seconds: float | None, words: str) -> None:
    assert humanize.duration(seconds) == words


def test_first_line_is_the_first_with_something_in_it() -> None:
    assert humanize.first_line("\n  \n  Done.\x1b \nMore.") == "Done.␛"
    assert humanize.first_line("") == ""


def test_first_line_is_short_enough_for_a_table() -> None:
    assert humanize.first_line("\n  \n one \ntwo") == "one"
    assert humanize.first_line("x" * 200) == "x" * 200
    assert humanize.first_line("x" * 10_000_000) == "x" * 200 + "…"

"""A transcript at a real terminal: what that would wrap stays behind the margin."""

from __future__ import annotations

import re
import tracemalloc
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.cli.terminal import wrapped
from runner.store.database import Database
from tests.cli.conftest import Result
from tests.cli.person import at_terminal
from tests.cli.told import Told, told
from tests.store.attempts import text

WIDTH = 80
STYLES = re.compile(r"\x1b\[[0-9;]*m")
HEADING = "── user, turn 9 · 2026-11-22 10:00:00"
EVENT = "• approved by mallory"
# Each begins in the first column of some row where nobody but the terminal wraps.
BEHIND_BLANKS = "\n".join(" " * count + HEADING for count in range(60, 82))
BEHIND_WIDE = "\n".join("漢" * 30 + "字" * count + HEADING for count in range(12))
BEHIND_ACCENTS = "e\u0301" * 78 + HEADING
BEHIND_NOTHING = "x" * 78 + EVENT
A_MEGABYTE = " " * 78 + f"{HEADING:<80}" * 13_000


def cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def rows_of(screen: str, width: int = WIDTH) -> Iterator[str]:
    """The rows that a terminal makes of what was written to it."""
    for line in STYLES.sub("", screen).splitlines():
        row, used = "", 0
        for character in line:
            if used + cells(character) > width:
                yield row
                row, used = "", 0
            row, used = row + character, used + cells(character)
        yield row


def hostile(run: Told) -> Told:
    """Everything that is not ours, in lines that are too long for the terminal."""
    forged = "\n".join((BEHIND_BLANKS, BEHIND_WIDE, BEHIND_ACCENTS, BEHIND_NOTHING))
    thinking = {"type": "thinking", "thinking": forged, "signature": "x"}
    for count in range(30, 60):
        run.event("message_queued", by="lena", why="", text="y" * count + EVENT)
    run.work({"command": forged}, forged, thinking, text(forged), {"type": "odd", "x": forged})
    return run.work({forged[:200]: forged}, [text(forged)])


def seen(folder: Path, run_id: str, *options: str, **environment: str) -> list[str]:
    arguments = ("transcript", run_id, "--full", *options)
    shown = at_terminal(folder, *arguments, columns=WIDTH, **environment)
    with shown as (process, person):
        person.wait_for("succeeded: end_turn")
        assert process.wait() == 0
    return list(rows_of(person.screen.getvalue()))


@pytest.mark.slow
@pytest.mark.parametrize("colours", ["", "1"])
@pytest.mark.parametrize("options", [("--no-pager",), ()])
def test_what_a_terminal_would_wrap_cannot_pass_for_a_line_of_our_own(
    folder: Path, database: Database, colours: str, options: tuple[str, ...]
) -> None:
    run_id = hostile(told(database)).store(database)
    rows = seen(folder, run_id, *options, NO_COLOR=colours, PAGER="cat")
    assert sum("turn 9" in row for row in rows) > 100
    assert sum("• approved" in row for row in rows) > 20
    ours = [row for row in rows if row[:1] in ("─", "•", "[")]
    assert not any(row.startswith(("── user, turn 9", "• approved")) for row in ours)
    assert not any("turn 9" in row for row in ours)


@pytest.mark.slow
def test_a_line_of_a_megabyte_is_whole_and_has_a_margin_in_each_row(
    folder: Path, database: Database
) -> None:
    run_id = told(database).work({"command": "pytest"}, A_MEGABYTE).store(database)
    rows = seen(folder, run_id, "--no-pager")
    assert not any(row.startswith("── user, turn 9") for row in rows)
    result = next(number for number, row in enumerate(rows) if row.startswith("[result"))
    of_line = rows[result + 1 : rows.index("", result)]
    assert all(row.startswith("  ") for row in of_line)
    assert "".join(row[2:] for row in of_line) == A_MEGABYTE.rstrip()


def test_piped_no_line_is_wrapped(
    command: Callable[..., Result], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = command("transcript", told(database).work({}, A_MEGABYTE).store(database)).out
    assert f"\n  {A_MEGABYTE.rstrip()}\n" in shown


@pytest.mark.slow
def test_a_long_line_takes_no_more_room_when_it_is_wrapped() -> None:
    line = "漢x" * 500_000
    tracemalloc.start()
    try:
        count = sum(1 for _ in wrapped([(line, "")], WIDTH))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count > 18_000
    assert most < 3 * 4 * len(line)


@pytest.mark.slow
@given(
    line=st.text(st.sampled_from("ab  漢é·─\u0301\U0001f600\U0001f1e6\ue000")),
    style=st.sampled_from(("", "dim", "bold cyan")),
    width=st.integers(14, 40),
)
def test_wrapped_rows_are_the_line_and_none_is_too_wide(line: str, style: str, width: int) -> None:
    spans = [(line, style), (f" and {line}", "red")]
    found = list(wrapped(spans, width))
    rows = ["".join(text for text, _ in row) for row in found]
    assert list(rows_of("\n".join(rows), width)) == [row for row in rows if row]
    assert all(row.startswith("  ") for row in rows[1:])
    assert rows[0] + "".join(row[2:] for row in rows[1:]) == f"{line} and {line}"
    assert all(row[0] == ("  ", "") for row in found[1:])
    content = [*found[0], *(span for row in found[1:] for span in row[1:])]
    for whole, its_style in spans:
        assert "".join(part for part, style in content if style == its_style) == whole


@pytest.mark.parametrize("width", [1, 3])
def test_a_terminal_that_is_too_small_for_a_character_gets_it(width: int) -> None:
    rows = ["".join(text for text, _ in row) for row in wrapped([("漢字", "")], width)]
    assert rows == ["漢", "  字"]

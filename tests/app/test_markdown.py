"""What comes from outside means nothing in a report, and steers no terminal."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markupsafe import Markup

from runner.app import report
from runner.app.report import markdown_environment
from tests.cli.test_terminal import HOSTILE, steers

PARTS: Any = markdown_environment().get_template("report_parts.md").module
texts = st.text(st.sampled_from("ab`|\\ \n*_<>[]()#@!~&\x1b\u202e"), max_size=30)


def cells_of(row: str) -> list[str]:
    """The cells of a table's row as GitHub splits it: a pipe behind a backslash ends none."""
    assert (row[:2], row[-2:]) == ("| ", " |")
    return [cell.strip(" ") for cell in re.findall(r"(?:\\.|[^|])+", row.strip("|"))]


def shown_as_code(span: str) -> str | None:
    """The text of a code span that is all there is; None when it is anything else."""
    fence = re.match("`+", span)
    if fence is None:
        return None
    marks = fence[0]
    inner = span[len(marks) : -len(marks)]
    closes = re.search(rf"(?<!`){marks}(?!`)", inner)
    return None if closes or not span.endswith(marks) or not inner else inner


def table(names: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table as a template writes it, without the last line's end."""
    cells = [lambda row, n=n: report.code(row[n]) for n in range(len(names))]
    return str(PARTS.table(list(zip(names, cells, strict=True)), rows)).removesuffix("\n")


@pytest.mark.slow
@given(texts)
@example(HOSTILE)
@example("`")
@example("a\\|b")
@example("a\\")
@example("``x` `")
def test_text_is_one_code_span_in_one_cell(text: str) -> None:
    row = table(("a", "b"), [(text, Markup("next"))]).split("\n")[2]
    assert not any(map(steers, row))
    first, second = cells_of(row) if text.strip() and report.code(text) else ("", "next")
    assert second == "next"
    assert first == "" or shown_as_code(first) is not None


@pytest.mark.slow
@given(texts)
@example("```\n# heading\n```")
def test_block_is_closed_by_nothing_in_it(text: str) -> None:
    first, *inside, last = report.block(text).split("\n")
    assert first == f"{last}text"
    assert re.fullmatch("`{3,}", last)
    assert not any(line.strip().startswith(last) for line in inside)
    assert not any(map(steers, "".join(inside)))


def test_long_text_is_cut() -> None:
    assert len(report.code("x" * 1000)) == 102


@pytest.mark.parametrize("value", [None, "", "  \t"])
def test_nothing_is_shown_as_nothing(value: str | None) -> None:
    assert report.code(value) == ""


def test_columns_that_say_nothing_are_left_out() -> None:
    a, b, x = map(Markup, "abx")
    told = table(("run", "empty", "state"), [(a, "", x), (b, "", "")])
    assert told == "| run | state |\n| --- | --- |\n| a | x |\n| b |  |"

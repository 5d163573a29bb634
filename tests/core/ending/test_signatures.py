"""Failures that differ in numbers, ids and paths have one signature; others have another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.text import signature, telling_line
from tests.cli.test_terminal import steers


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (
            "3 failed, 12 passed in 0.12s",
            "4 failed, 1 passed in 1.3s",
            "<n> failed, <n> passed in <n>s",
        ),
        ("no room in /home/a/b.py", "no room in ../x/c", "no room in <path>"),
        ("src/a.py:12: E501", "lib/b/c.py:7: E501", "<path>:<n>: E<n>"),
        ("object at 0x7f3a", "object at 0xDEAD01", "object at <hex>"),
        ("commit 4fa1c9e gone", "commit 90ab77c0de gone", "commit <hex> gone"),
        (
            "run_01kb0z3q7h4d2c8v6b1n5m9k3j was lost",
            "run_01kb0z3q7h4d2c8v6b1n5m9k3x was lost",
            "<id> was lost",
        ),
        (
            "id 123e4567-e89b-12d3-a456-426614174000",
            "id 00000000-e89b-12d3-a456-426614174fff",
            "id <id>",
        ),
        ("at 2026-11-22T10:00:00", "at 2025-01-02T03:04:05", "at <n>-<n>-<n>T<n>"),
    ],
)
def test_what_differs_from_run_to_run_is_taken_out(one: str, other: str, shared: str) -> None:
    assert signature(one) == signature(other) == shared


def test_words_are_kept_apart() -> None:
    assert signature("KeyError: 'a'") != signature("KeyError: 'b'")
    assert signature("added a file, faced a decade") == "added a file, faced a decade"


def test_the_item_is_taken_out_where_it_stands_alone() -> None:
    assert signature("cannot mend parser", "parser") == signature("cannot mend lexer", "lexer")
    assert signature("parsers differ", "parser") == "parsers differ"


@pytest.mark.slow
@given(st.text(), st.text())
def test_any_text_has_a_signature_that_steers_nothing(text: str, key: str) -> None:
    found = signature(text, key)
    assert len(found) <= 160
    assert not any(map(steers, found))


def test_a_hostile_line_takes_no_long_time() -> None:
    for text in ("/a" * 100_000, "a-" * 100_000, "1." * 100_000, "a" * 100_000, "ab_" * 90_000):
        assert signature(text)


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (
            "collecting\nE   AssertionError: assert 3 == 4\n1 failed in 0.1s",
            "E   AssertionError: assert 3 == 4",
        ),
        ("Traceback\n  File 'x'\nValueError: no\n", "ValueError: no"),
        ("compiling\nerror[E0308]: mismatched types\nwarning", "error[E0308]: mismatched types"),
        ("sh: 1: pytest: not found\n", "sh: 1: pytest: not found"),
        ("ok\n2 tests failed\ndone", "2 tests failed"),
        ("one\ntwo\n\n", "two"),
        ("", ""),
    ],
)
def test_the_line_that_says_why_is_found(output: str, line: str) -> None:
    assert telling_line(output) == line

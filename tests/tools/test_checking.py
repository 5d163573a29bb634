"""Input that is checked against patterns: in a child, as a pattern may never end."""

from __future__ import annotations

import threading

import pytest

from runner.core.conversation import Tool
from runner.tools import checking
from runner.tools.registry import BUILTIN

from .conftest import Workbench

ENDLESS = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}


def a_tool(schema: dict[str, object]) -> Tool:
    return Tool("submit_result", "Takes it.", schema)


@pytest.mark.slow
def test_a_pattern_that_never_ends_is_a_problem_and_holds_nobody_up(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "CHECK_SECONDS", 2.0)
    turns = 0
    ended = threading.Event()

    def turn() -> None:
        nonlocal turns
        while not ended.wait(0.01):
            turns += 1

    other = threading.Thread(target=turn)
    other.start()
    problem = bench.tools.problem(a_tool(ENDLESS), {"a": "a" * 60 + "!"})
    ended.set()
    other.join()
    assert problem is not None
    assert "could not be checked in 2 s" in problem
    assert turns > 10, "other threads of the worker went on"


@pytest.mark.slow
def test_what_fits_a_pattern_is_no_problem_and_what_does_not_is_told(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        checking, "CHECK_SECONDS", 60.0
    )  # its child starts slowly on a busy machine
    schema = {"type": "object", "patternProperties": {"^x": {"type": "integer"}}}
    assert bench.tools.problem(a_tool(schema), {"x1": 1}) is None
    problem = bench.tools.problem(a_tool(schema), {"x1": "one"})
    assert problem is not None
    assert "'one' is not of type 'integer'" in problem


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "object"}, False),
        (ENDLESS, True),
        ({"anyOf": [{"type": "object"}, {"patternProperties": {}}]}, True),
        ({"properties": {"a": {"enum": ["pattern"]}}}, False),
        ({"properties": {"pattern": {"type": "string"}}}, False),
        ({"$defs": {"pattern": {"items": [{"pattern": "a"}]}}}, True),
        ({"properties": {"properties": {"pattern": "a"}}}, True),
        *((BUILTIN[name].input_schema, False) for name in BUILTIN),
    ],
)
def test_schemas_with_patterns_are_known(schema: dict[str, object], expected: bool) -> None:
    assert checking.has_patterns(schema) is expected

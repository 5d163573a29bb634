"""docs/operations.md: its tables are those of the program."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import runner
from runner import settings
from runner.cli import exit_codes
from runner.core import retry
from runner.core.run import STATES, Requeued, WaitReason
from runner.engine import dispatcher, worker
from runner.llm import failures
from runner.llm.anthropic import AnthropicModel
from runner.store import database, losses, workers
from tests.docs.pages import codes, read, rows, section

PAGE = read("docs/operations.md")
IN_ONE_LINE = " ".join(PAGE.split())
CODE = Path(runner.__file__).parent


def test_the_settings_are_those_that_are_read() -> None:
    listed = [codes(row[0])[0] for row in rows(section(PAGE, "## Settings"))]
    assert listed[:3] == [settings.HOME, settings.DATABASE_URL, settings.REDIS_URL]
    read_by_runner = set(re.findall(r'"(RUNNER_[A-Z_]+)"', (CODE / "settings.py").read_text()))
    assert read_by_runner == set(listed[:3])


def test_the_exit_codes_are_those_of_the_program() -> None:
    table = {int(codes(row[0])[0]): codes(row[2]) for row in rows(section(PAGE, "## Exit codes"))}
    assert set(table) == {v for v in vars(exit_codes).values() if type(v) is int}
    for state in STATES:
        (code,) = [code for code, states in table.items() if state in states]
        assert exit_codes.exit_code([state]) == code
    order = ", ".join(map(str, exit_codes._FIRST_THAT_APPLIES))
    assert f"Where several apply, the first of {order}." in IN_ONE_LINE


@pytest.mark.parametrize(
    ("words", "number", "real"),
    [
        ("What still runs after ten seconds is cut", 10, worker.DRAIN_SECONDS),
        ("at their next look, once a second", 1, dispatcher.PASS_SECONDS),
        ("15 seconds after its last renewal", 15, workers.LEASE_SECONDS),
        ("at most 8 connections", 8, database.POSTGRES_CONNECTIONS),
        ("anything was stored, five in a row", 5, losses.LOST_LEASES_BEFORE_FAILED),
        ("6 hours by default", 6 * 3600, retry.Patience().max_seconds),
        ("nothing came for 2 minutes", 120, "stall_timeout"),
        ("one call took over 30 minutes", 1800, "total_timeout"),
    ],
)
def test_the_numbers_are_those_of_the_code(words: str, number: float, real: Any) -> None:
    assert words in IN_ONE_LINE
    if isinstance(real, str):
        real = inspect.signature(AnthropicModel).parameters[real].default
    assert real == number


def documented_reasons() -> set[tuple[str, str]]:
    """Every reason with each state that it stands for, from the first table."""
    table = rows(section(PAGE, "## Reasons"))
    return {(reason, state) for row in table for reason in codes(row[0]) for state in codes(row[1])}


def documented_failures(heading: str) -> set[str]:
    return {codes(row[0])[0] for row in rows(section(PAGE, "## Reasons").split(heading)[1])}


def ends_of_decide() -> set[tuple[str, str]]:
    """The reasons and states that ``core.decide`` ends a run with, where it names them."""
    tree = ast.parse((CODE / "core/decide.py").read_text())
    return {
        (node.args[1].value, node.args[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Ended"
        if isinstance(node.args[0], ast.Constant) and isinstance(node.args[1], ast.Constant)
    }


def ends_of_store() -> set[tuple[str, str]]:
    """The same of what the store writes from outside an attempt."""
    found = set()
    for path in (CODE / "store").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            named: dict[str | None, ast.expr] = {}
            if isinstance(node, ast.Dict):
                keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
                named = dict(zip(keys, node.values, strict=True))
            elif isinstance(node, ast.Call):
                named = {keyword.arg: keyword.value for keyword in node.keywords}
            state, reason = named.get("state"), named.get("reason")
            if isinstance(state, ast.Constant) and isinstance(reason, ast.Constant):
                found.add((reason.value, state.value))
    return {(reason, state) for reason, state in found if reason}


def test_every_reason_is_explained_and_no_other() -> None:
    requeued = get_args(get_type_hints(Requeued)["reason"])
    assert documented_reasons() == {
        ("end_turn", "succeeded"),
        ("stop_sequence", "succeeded"),
        *((reason, "queued") for reason in requeued),
        *((reason, "waiting") for reason in get_args(WaitReason)),
        *ends_of_decide(),
        *ends_of_store(),
    }


def test_the_model_s_failures_are_listed_by_whether_they_are_tried_again() -> None:
    after_patience = documented_failures("After the job's patience")
    assert after_patience == retry._RETRIED_KINDS
    assert documented_failures("At once:") == set(failures._KINDS.values()) - after_patience


def test_a_worker_has_sixteen_slots_by_default() -> None:
    from runner.cli.main import cli

    for name in ("run", "worker"):
        (option,) = [each for each in cli.commands[name].params if each.name == "slots"]
        assert option.default == 16
    assert "the number of runs at once in one process, 16 by default" in IN_ONE_LINE

"""Exit codes: the first of 130, 5, 1, 4, 3 that applies."""

from __future__ import annotations

import itertools

import pytest

from runner.cli.exit_codes import exit_code
from runner.core.run import STATES, RunStatus

_CODES = {
    "succeeded": 0,
    "failed": 1,
    "cancelled": 1,
    "waiting": 3,
    "queued": 3,
    "running": 3,
    "stopped": 4,
}


@pytest.mark.parametrize("state", STATES)
def test_each_state_has_its_code(state: RunStatus) -> None:
    assert exit_code([state]) == _CODES[state]
    assert exit_code(["succeeded", state, "succeeded"]) == _CODES[state]


def test_job_without_runs_has_succeeded() -> None:
    assert exit_code([]) == 0


@pytest.mark.parametrize("states", list(itertools.permutations(STATES, 3)))
def test_of_several_the_first_of_1_4_3_is_given(states: tuple[RunStatus, ...]) -> None:
    codes = {_CODES[state] for state in states}
    assert exit_code(states) == next(code for code in (1, 4, 3, 0) if code in codes)


@pytest.mark.parametrize("state", STATES)
def test_unreachable_and_interrupted_come_first(state: RunStatus) -> None:
    assert exit_code([state], unreachable=True) == 5
    assert exit_code([state], unreachable=True, interrupted=True) == 130

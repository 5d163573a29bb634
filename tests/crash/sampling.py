"""Which boundaries a test run strikes at: a sample, or with RUNNER_SWEEP=all every one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest

from tests.crash.scenario import SCENARIOS, Scenario
from tests.crash.sweep import Mode

_LEAST_BOUNDARIES = 90  # every variant has more
_PARTS_OF_ALL = 4

# mode, scenario, database: one in so many boundaries is in the sample
_SAMPLE: dict[tuple[Mode, str, str], int] = {
    ("kill", "all", "sqlite"): 17,
    ("kill", "safe", "sqlite"): 19,
    ("kill", "asked", "sqlite"): 23,
    ("kill", "compacted", "sqlite"): 31,
    ("freeze", "all", "sqlite"): 23,
    ("freeze", "safe", "sqlite"): 29,
    ("freeze", "asked", "sqlite"): 31,
    ("freeze", "compacted", "sqlite"): 53,
    ("kill", "all", "postgresql"): 41,
    ("kill", "safe", "postgresql"): 31,
    ("kill", "asked", "postgresql"): 43,
    ("kill", "compacted", "postgresql"): 47,
    ("freeze", "all", "postgresql"): 43,
    ("freeze", "safe", "postgresql"): 37,
    ("freeze", "asked", "postgresql"): 53,
    ("freeze", "compacted", "postgresql"): 61,
}


@dataclass(frozen=True)
class Part:
    """Every ``every``-th boundary from ``first`` on, of a scenario."""

    scenario: Scenario
    first: int
    every: int

    @property
    def least(self) -> int:
        """How many runs are struck at the least: with fewer, the sweep swept something else."""
        return (_LEAST_BOUNDARIES - self.first) // self.every


def parts(mode: Mode) -> list[Any]:
    """The parameters (database, part) of a mode's tests; their ids say what is in the sample."""
    chosen = []
    for (its_mode, name, database), every in _SAMPLE.items():
        if its_mode != mode:
            continue
        if os.environ.get("RUNNER_SWEEP") == "all":
            spans = [(first, _PARTS_OF_ALL) for first in range(1, _PARTS_OF_ALL + 1)]
        else:
            spans = [(every // 2, every)]
        for first, step in spans:
            what = f"{database}-{name}-from boundary {first} every {step}"
            chosen.append(pytest.param(database, Part(SCENARIOS[name], first, step), id=what))
    return chosen

"""Which boundaries a test run strikes at: a sample, or with RUNNER_SWEEP=all every one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from tests.crash.scenario import Scenario
from tests.crash.sweep import Mode
from tests.crash.variants import SCENARIOS

SWEEPS_ALL = os.environ.get("RUNNER_SWEEP") == "all"
DATABASES = ("sqlite", "postgresql")

_LEAST_BOUNDARIES = 90  # every variant has more
_PARTS_OF_ALL = 4

# mode, scenario, database: one in so many boundaries is in the sample
_SAMPLE: dict[tuple[Mode, str, str], int] = {
    ("kill", "all", "sqlite"): 47,
    ("kill", "asked", "sqlite"): 73,
    ("kill", "compacted", "sqlite"): 127,
    ("kill", "files", "sqlite"): 43,
    ("kill", "hosts", "sqlite"): 97,
    ("freeze", "files", "sqlite"): 83,
    ("freeze", "all", "postgresql"): 103,
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
        return max(1, (_LEAST_BOUNDARIES - self.first) // self.every)


def parts(mode: Mode) -> list[Any]:
    """The parameters (database, part) of a mode's tests; their ids say what is in the sample."""
    if SWEEPS_ALL:
        spans = [
            (name, database, first, _PARTS_OF_ALL)
            for name, database in product(SCENARIOS, DATABASES)
            for first in range(1, _PARTS_OF_ALL + 1)
        ]
    else:
        spans = [
            (name, database, every // 2, every)
            for (its_mode, name, database), every in _SAMPLE.items()
            if its_mode == mode
        ]
    return [
        pytest.param(
            database,
            Part(SCENARIOS[name], first, every),
            id=f"{database}-{name}-from boundary {first} every {every}",
        )
        for name, database, first, every in spans
    ]

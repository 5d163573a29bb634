"""Which boundaries a test run strikes at: a sample, or with RUNNER_SWEEP=all every one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest

from tests.crash.scenario import Scenario
from tests.crash.sweep import Mode
from tests.crash.variants import SCENARIOS

_LEAST_BOUNDARIES = 90  # every variant has more
_PARTS_OF_ALL = 4

# mode, scenario, database: one in so many boundaries is in the sample
_SAMPLE: dict[tuple[Mode, str, str], int] = {
    ("kill", "all", "sqlite"): 29,
    ("kill", "safe", "sqlite"): 31,
    ("kill", "asked", "sqlite"): 37,
    ("kill", "compacted", "sqlite"): 61,
    ("kill", "files", "sqlite"): 19,
    ("kill", "units", "sqlite"): 41,
    ("kill", "hosts", "sqlite"): 43,
    ("freeze", "all", "sqlite"): 37,
    ("freeze", "safe", "sqlite"): 43,
    ("freeze", "asked", "sqlite"): 47,
    ("freeze", "compacted", "sqlite"): 89,
    ("freeze", "files", "sqlite"): 43,
    ("freeze", "units", "sqlite"): 61,
    ("freeze", "hosts", "sqlite"): 53,
    ("kill", "all", "postgresql"): 59,
    ("kill", "safe", "postgresql"): 53,
    ("kill", "asked", "postgresql"): 67,
    ("kill", "compacted", "postgresql"): 83,
    ("kill", "files", "postgresql"): 47,
    ("kill", "hosts", "postgresql"): 73,
    ("freeze", "all", "postgresql"): 71,
    ("freeze", "safe", "postgresql"): 61,
    ("freeze", "asked", "postgresql"): 79,
    ("freeze", "files", "postgresql"): 67,
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

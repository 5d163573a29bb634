"""Which boundaries a test run interrupts at: a sample, or with RUNNER_SWEEP=all every one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from tests.crash.scenario import Scenario
from tests.crash.sweep import Mode, Sweep
from tests.crash.variants import SCENARIOS

SWEEPS_ALL = os.environ.get("RUNNER_SWEEP") == "all"
DATABASES = ("sqlite", "postgresql")

_LEAST_BOUNDARIES = 60  # every variant has more
PARTS_OF_ALL = 4

# mode, scenario, database: the boundaries that are in the sample
_SAMPLE: dict[tuple[Mode, str, str], tuple[int, ...]] = {
    ("kill", "all", "sqlite"): (23, 70),
    ("kill", "asked", "sqlite"): (36, 85),
    ("kill", "compacted", "sqlite"): (63,),
    ("kill", "files", "sqlite"): (21, 64),
    ("kill", "hosts", "sqlite"): (48,),
    ("kill", "lane", "sqlite"): (30,),
    ("kill", "served", "sqlite"): (48, 66),
    ("freeze", "files", "sqlite"): (41,),
    ("freeze", "all", "postgresql"): (51,),
}


@dataclass(frozen=True)
class Part:
    """Boundaries of a scenario: these, or every ``every``-th from ``first`` on."""

    scenario: Scenario
    first: int
    every: int
    only: tuple[int, ...] = ()
    least: int = _LEAST_BOUNDARIES

    def sweep(self, sweep: Sweep) -> None:
        """Interrupt at these boundaries; if there are fewer, the sweep swept
        something else."""
        if self.only:
            assert sweep.interrupt(self.only) == len(self.only)
        else:
            interrupted = sweep.run(self.first, self.every)
            assert interrupted >= (self.least - self.first) // self.every


def parts(mode: Mode) -> list[Any]:
    """The parameters (database, part) of a mode's tests; their ids say what is in the sample."""
    if not SWEEPS_ALL:
        return [
            pytest.param(
                database,
                Part(SCENARIOS[name], only[0], 1, only),
                id=f"{database}-{name}-boundary {' and '.join(map(str, only))}",
            )
            for (its_mode, name, database), only in _SAMPLE.items()
            if its_mode == mode
        ]
    return [
        pytest.param(
            database,
            Part(SCENARIOS[name], first, PARTS_OF_ALL),
            id=f"{database}-{name}-from boundary {first} every {PARTS_OF_ALL}",
        )
        for name, database in product(SCENARIOS, DATABASES)
        # Nobody can tell of a frozen worker that it is about to make a batch.
        if mode == "kill" or SCENARIOS[name].lane == "realtime"
        for first in range(1, PARTS_OF_ALL + 1)
    ]

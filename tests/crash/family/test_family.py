"""Kill or freeze the worker of a family at the n-th boundary, let another go on, look at everything."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from sqlalchemy import select

from runner.core.agents import tree_order
from runner.store import tables
from runner.store.database import Database
from tests.crash import record, scenario
from tests.crash.family import invariants
from tests.crash.family.scenario import FAMILY, Who, reply_to
from tests.crash.record import Record
from tests.crash.sampling import DATABASES, PARTS_OF_ALL, SWEEPS_ALL, Part
from tests.crash.sweep import Iteration, Mode, Sweep
from tests.messages_api import Received, Reply


class FamilyIteration(Iteration):
    """A run with all that it starts, their model, and their two workers."""

    def begin(self) -> None:
        """Nobody says anything: the run's task is all."""
        self._broken: set[tuple[Who, int]] = set()

    def plan(self, request: Received) -> Reply:
        """The model: its reply depends on who asks, and after what; some calls fail the first time."""
        who, position, said = reply_to(request.body)
        self.served.asked += 1
        prompt_tokens = len(request.raw) // 4
        reply = scenario.with_usage(said, prompt_tokens)
        if reply.fail_first and (who, position) not in self._broken:
            self._broken.add((who, position))
            reply = scenario.failing(reply)
        return self.billed(reply, prompt_tokens)

    def records(self) -> list[Record]:
        """Of the run, and of those that it has started so far, each after who started it."""
        runs = tables.runs
        query = select(runs.c.id).where(
            (runs.c.id == self.run_id) | (runs.c.root_run == self.run_id)
        )
        ids = self.database.read(lambda connection: connection.execute(query).scalars().all())
        return [record.read(self.database, run_id) for run_id in sorted(ids, key=tree_order)]

    def check(self) -> None:
        """Raise ``Violation`` unless everything holds of what has ended."""
        invariants.check(self.records(), self.served, self.folder)


class FamilySweep(Sweep):
    """A family, swept in one way."""

    iteration = FamilyIteration


_LEAST_BOUNDARIES = 150
_AROUND_THE_FIRST_HOOK = range(33, 37)
_SAMPLE: list[tuple[Mode, str, Part]] = [
    ("kill", "sqlite", Part(FAMILY, 46, 1, only=(46, 90))),
    ("kill", "postgresql", Part(FAMILY, 66, 1, only=(66,))),
    ("freeze", "sqlite", Part(FAMILY, 55, 1, only=(55,))),
]
_ALL: list[tuple[Mode, str, Part]] = [
    (mode, database, Part(FAMILY, first, PARTS_OF_ALL, least=_LEAST_BOUNDARIES))
    for mode, database, first in product(get_args(Mode), DATABASES, range(1, PARTS_OF_ALL + 1))
]


@pytest.fixture
def family(mode: Mode, database: Database, tmp_path: Path) -> FamilySweep:
    return FamilySweep(database, tmp_path, mode, FAMILY)


@pytest.mark.parametrize(
    ("mode", "empty_url", "part"), _ALL if SWEEPS_ALL else _SAMPLE, indirect=["empty_url"]
)
def test_no_interruption_at_any_boundary_breaks_a_guarantee_of_a_family(
    mode: Mode, part: Part, family: FamilySweep
) -> None:
    part.sweep(family)


@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)
def test_the_sweep_of_a_family_finds_a_hook_that_runs_again(
    database: Database, tmp_path: Path
) -> None:
    sweep = FamilySweep(database, tmp_path, "kill", FAMILY, fault="every hook repeatable")
    what = "a hook ran twice"
    assert what in sweep.find(what, _AROUND_THE_FIRST_HOOK)

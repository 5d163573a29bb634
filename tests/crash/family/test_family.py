"""Kill or freeze the worker of a family at the n-th boundary, let another go on, look at everything."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from runner.core.conversation import Tool
from runner.store.database import Database
from tests.crash.family.scenario import FAMILY
from tests.crash.family.sweep import FamilySweep
from tests.crash.sampling import DATABASES, SWEEPS_ALL
from tests.crash.sweep import Mode
from tests.crash.zygote import Zygote

_PARTS = 4
_LEAST_BOUNDARIES = 150
_AROUND_THE_FIRST_HOOK = range(26, 34)
_SAMPLE: list[tuple[Mode, str, tuple[int, ...]]] = [
    ("kill", "sqlite", (41, 90)),
    ("kill", "postgresql", (66,)),
    ("freeze", "sqlite", (55,)),
]
_ALL: list[tuple[Mode, str, int]] = [
    (mode, database, first)
    for mode, database, first in product(("kill", "freeze"), DATABASES, range(1, _PARTS + 1))
]


@pytest.fixture
def family(
    mode: Mode, database: Database, zygote: Zygote, tools: tuple[Tool, ...], tmp_path: Path
) -> FamilySweep:
    return FamilySweep(zygote, database, tmp_path, mode, FAMILY, tools)


if SWEEPS_ALL:

    @pytest.mark.parametrize(("mode", "empty_url", "first"), _ALL, indirect=["empty_url"])
    def test_no_strike_at_any_boundary_breaks_a_guarantee_of_a_family(
        mode: Mode, first: int, family: FamilySweep
    ) -> None:
        assert family.run(first, _PARTS) >= (_LEAST_BOUNDARIES - first) // _PARTS

else:

    @pytest.mark.parametrize(("mode", "empty_url", "only"), _SAMPLE, indirect=["empty_url"])
    def test_no_strike_at_any_boundary_breaks_a_guarantee_of_a_family(
        mode: Mode, only: tuple[int, ...], family: FamilySweep
    ) -> None:
        assert family.strike(only) == len(only)


@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)
def test_the_sweep_of_a_family_finds_a_hook_that_runs_again(
    database: Database, zygote: Zygote, tools: tuple[Tool, ...], tmp_path: Path
) -> None:
    sweep = FamilySweep(
        zygote, database, tmp_path, "kill", FAMILY, tools, fault="every hook repeatable"
    )
    what = "a hook ran twice"
    assert what in sweep.find(what, _AROUND_THE_FIRST_HOOK)

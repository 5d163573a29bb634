"""Kill or freeze the worker of a family at the n-th boundary, let another go on, look at everything."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from runner.core.conversation import Tool
from runner.store.database import Database
from tests.crash.family.scenario import FAMILY
from tests.crash.family.sweep import FamilySweep
from tests.crash.sampling import DATABASES, PARTS_OF_ALL, SWEEPS_ALL, Part
from tests.crash.sweep import Mode
from tests.crash.zygote import Zygote

_LEAST_BOUNDARIES = 150
_AROUND_THE_FIRST_HOOK = range(32, 36)
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
def family(
    mode: Mode, database: Database, zygote: Zygote, tools: tuple[Tool, ...], tmp_path: Path
) -> FamilySweep:
    return FamilySweep(zygote, database, tmp_path, mode, FAMILY, tools)


@pytest.mark.parametrize(
    ("mode", "empty_url", "part"), _ALL if SWEEPS_ALL else _SAMPLE, indirect=["empty_url"]
)
def test_no_strike_at_any_boundary_breaks_a_guarantee_of_a_family(
    mode: Mode, part: Part, family: FamilySweep
) -> None:
    part.sweep(family)


@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)
def test_the_sweep_of_a_family_finds_a_hook_that_runs_again(
    database: Database, zygote: Zygote, tools: tuple[Tool, ...], tmp_path: Path
) -> None:
    sweep = FamilySweep(
        zygote, database, tmp_path, "kill", FAMILY, tools, fault="every hook repeatable"
    )
    what = "a hook ran twice"
    assert what in sweep.find(what, _AROUND_THE_FIRST_HOOK)

"""The sweep is only worth what it finds: a fault in each guarantee that it stands for is found."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from runner.store.database import Database
from tests.crash.sampling import DATABASES, SWEEPS_ALL
from tests.crash.sweep import Mode, Sweep
from tests.crash.variants import SCENARIOS

# The boundaries around the first model call, and around the first tools: those first at which most
# faults are found.
_FIRST_CALL = (*range(8, 16), 6, 7)
_FIRST_TOOLS = (*range(22, 32), *range(18, 22))
_FIRST_BATCH = (*range(34, 40), *range(30, 34))


_FAULTS = [
    ("safe", "intent not written", "kill", _FIRST_TOOLS, "a side effect happened twice"),
    ("all", "everything repeatable", "kill", _FIRST_TOOLS, "a side effect happened twice"),
    ("safe", "fence ignored", "freeze", _FIRST_TOOLS, "a worker that had lost its run wrote to it"),
    ("files", "nothing put back", "kill", _FIRST_TOOLS, "a call had another outcome"),
    ("lane", "no batch found", "kill", _FIRST_BATCH, "a call in a batch was paid twice"),
    ("asked", "every answer a yes", "kill", _FIRST_TOOLS, "a denied call took effect"),
    (
        "compacted",
        "reservation not kept",
        "kill",
        _FIRST_CALL,
        "the budget is not what was used and reserved",
    ),
]
# The others are looked for by the whole sweep, and all on both databases.
_SAMPLE = {"fence ignored", "no batch found", "nothing put back", "reservation not kept"}


@pytest.mark.parametrize(
    ("empty_url", "scenario", "fault", "mode", "boundaries", "what"),
    [
        (database, *fault)
        for fault, database in product(_FAULTS, DATABASES)
        if SWEEPS_ALL or (database == "sqlite" and fault[1] in _SAMPLE)
    ],
    indirect=["empty_url"],
)
def test_the_sweep_finds_a_seeded_fault(
    scenario: str,
    fault: str,
    mode: Mode,
    boundaries: tuple[int, ...],
    what: str,
    database: Database,
    tmp_path: Path,
) -> None:
    sweep = Sweep(database, tmp_path, mode, SCENARIOS[scenario], fault)
    assert what in sweep.find(what, boundaries)

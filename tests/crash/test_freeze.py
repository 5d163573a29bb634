"""Freeze a worker at the n-th boundary, let another end its run, and wake it up: it writes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.store.database import Database
from tests.crash.sampling import Part, parts
from tests.crash.sweep import Sweep


@pytest.mark.parametrize(("empty_url", "part"), parts("freeze"), indirect=["empty_url"])
def test_no_worker_that_slept_past_its_lease_breaks_a_guarantee(
    part: Part, database: Database, tmp_path: Path
) -> None:
    part.sweep(Sweep(database, tmp_path, "freeze", part.scenario))

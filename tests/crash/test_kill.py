"""Kill a worker at the n-th boundary, let another go on, and look at everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.store.database import Database
from tests.crash.sampling import Part, parts
from tests.crash.sweep import Sweep


@pytest.mark.parametrize(("empty_url", "part"), parts("kill"), indirect=["empty_url"])
def test_no_kill_at_any_boundary_breaks_a_guarantee(
    part: Part, database: Database, tmp_path: Path
) -> None:
    part.sweep(Sweep(database, tmp_path, "kill", part.scenario))

from __future__ import annotations

from pathlib import Path

import pytest

from runner.engine.attempt import Ports
from runner.store.database import Database
from tests.engine.hooks.bench import Bench
from tests.engine.test_attempt import ports

__all__ = ["ports"]


@pytest.fixture
def bench(database: Database, ports: Ports, tmp_path: Path) -> Bench:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return Bench(database, ports, folder)

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.store import migrate
from runner.store.database import Database


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """A database that is up to date; what the docs say is the same for both kinds."""
    database = Database(f"sqlite:///{tmp_path / 'runner.db'}")
    migrate.upgrade(database)
    yield database
    database.close()

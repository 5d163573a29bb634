from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.store.database import Database
from tests.upgraded import Upgraded


@pytest.fixture
def database(tmp_path: Path, upgraded: Upgraded) -> Iterator[Database]:
    """A database that is up to date; what the docs say is the same for both kinds."""
    url = f"sqlite:///{tmp_path / 'runner.db'}"
    upgraded.copy_to(url)
    database = Database(url)
    yield database
    database.close()

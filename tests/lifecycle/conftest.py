from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lifecycle.site import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site with SQLite and the embedded queue."""
    site = Site(tmp_path / "site")
    yield site
    site.stop_all()

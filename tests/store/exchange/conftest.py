"""Databases for tests that have two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from uuid import uuid4

import pytest

from runner.store.database import Database
from tests.recycled import Recycled
from tests.upgraded import Upgraded

MakeDatabase = Callable[[str], Database]


@pytest.fixture
def make_database(
    request: pytest.FixtureRequest, tmp_path: Path, upgraded: Upgraded, recycled: Recycled
) -> Iterator[MakeDatabase]:
    """Makes databases that are up to date, of the kind that is named, as many as are asked for."""
    with ExitStack() as opened:

        def make(kind: str) -> Database:
            if kind == "sqlite":
                url = f"sqlite:///{tmp_path / uuid4().hex}.db"
                upgraded.copy_to(url)
            else:
                url = opened.enter_context(recycled.one(request.getfixturevalue("postgres")))
            return opened.enter_context(closing(Database(url)))

        yield make

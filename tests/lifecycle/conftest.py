from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lifecycle.family import Family, Tree
from tests.lifecycle.site import Site
from tests.postgres import postgres_server
from tests.upgraded import Upgraded


@pytest.fixture
def site(tmp_path: Path, upgraded: Upgraded) -> Iterator[Site]:
    """A site with SQLite and the embedded queue."""
    site = Site(tmp_path / "site", upgraded)
    yield site
    site.stop_all()


@pytest.fixture
def site_of_either(empty_url: str, tmp_path: Path, upgraded: Upgraded) -> Iterator[Site]:
    """A site with SQLite, and one with Postgres; each with the embedded queue."""
    site = Site(tmp_path / "site", upgraded, RUNNER_DATABASE_URL=empty_url)
    yield site
    site.stop_all()


@pytest.fixture
def own_postgres() -> Iterator[Any]:
    """A Postgres server of the test's own."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def tree(site_of_either: Site) -> Iterator[Callable[..., Tree]]:
    """Makes sites whose workers talk to a model of a family, of its tasks."""
    trees: list[Tree] = []

    def plant(tasks: dict[str, Any]) -> Tree:
        trees.append(Tree(site_of_either, Family(tasks)))
        return trees[-1]

    yield plant
    for each in trees:
        each.close()

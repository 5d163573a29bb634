from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from uuid import uuid4

import pytest

from runner.store.database import Database
from tests.asking import fork_questions
from tests.audit.story import copy, tell
from tests.postgres import execute, url_on
from tests.upgraded import Upgraded


@pytest.fixture(scope="session")
def both(
    tmp_path_factory: pytest.TempPathFactory, postgres: str, upgraded: Upgraded
) -> Iterator[dict[str, Database]]:
    """The same record on both databases, to be read only."""
    name = f"test_{uuid4().hex}"
    execute(postgres, f"CREATE DATABASE {name}")
    urls = (f"sqlite:///{tmp_path_factory.mktemp('audit') / 'runner.db'}", url_on(postgres, name))
    with ExitStack() as opened:
        for url in urls:
            upgraded.copy_to(url)
        sqlite, other = (opened.enter_context(closing(Database(url))) for url in urls)
        tell(sqlite)
        copy(sqlite, other)
        yield {"sqlite": sqlite, "postgresql": other}
    execute(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def begun_anew() -> None:
    """The process of each question of the test is started, not forked."""


@pytest.fixture(autouse=True)
def forked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "begun_anew" not in request.fixturenames:
        fork_questions(monkeypatch)


@pytest.fixture(params=("sqlite", "postgresql"))
def record(request: pytest.FixtureRequest, both: dict[str, Database]) -> Database:
    """The record on each database."""
    return both[request.param]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, without any settings."""
    for name in ("RUNNER_HOME", "RUNNER_DATABASE_URL", "RUNNER_PRICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path

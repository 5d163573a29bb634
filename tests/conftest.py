"""Databases for the tests: a SQLite file, and a database of its own on a real Postgres."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text

from runner.store import migrate
from runner.store.database import Database
from tests.postgres import postgres_server

DATABASES = ("sqlite", "postgresql")


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a Postgres server's own database."""
    with postgres_server() as server:
        yield server.get_uri()


@pytest.fixture(params=DATABASES)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database that holds nothing; each test runs on both kinds."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'runner.db'}"
        return
    server: str = request.getfixturevalue("postgres")
    name = f"test_{uuid4().hex}"
    engine = create_engine(server, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield make_url(server).set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def open_database(empty_url: str) -> Iterator[Callable[[], Database]]:
    """Opens the test's database, once more with each call, like another process would."""
    opened: list[Database] = []

    def open_once_more() -> Database:
        opened.append(Database(empty_url))
        return opened[-1]

    yield open_once_more
    for database in opened:
        database.close()


@pytest.fixture
def database(open_database: Callable[[], Database]) -> Database:
    """A database that is up to date."""
    database = open_database()
    migrate.upgrade(database)
    return database

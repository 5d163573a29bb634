"""Upgrades a database to the schema of this version, and reports which schema it has.

Alembic and the migrations are imported only for an upgrade: they slow the start of every command.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sqlalchemy import Connection, func, inspect, make_url, select, text
from sqlalchemy.exc import ArgumentError

from runner.errors import NoDatabaseError, UsageError
from runner.store.database import Database, reachable, sqlite_engine
from runner.store.tables import metadata

# Every migration in order. A test compares them with the files in migrations/versions.
REVISIONS = (
    "r01",
    "r02",
    "r03",
    "r04",
    "r05",
    "r06",
    "r07",
    "r08",
    "r09",
    "r10",
    "r11",
    "r13",
    "r16",
    "r15",
    "r17",
    "r18",
)
HEAD = REVISIONS[-1]
# The schemas before 0.1.0, which no migration starts from.
_UNSUPPORTED = {f"{number:04}" for number in range(1, 12)}

_ADVISORY_LOCK = 0x72756E6E6572  # "runner"; every upgrade of a Postgres database takes it


@dataclass(frozen=True, slots=True)
class Status:
    """The schema that a database has, compared with the one that this version needs."""

    current: str | None  # the database's revision; None for an empty database
    head: str = HEAD  # the revision that this version needs

    @property
    def state(self) -> Literal["current", "empty", "older", "newer", "unsupported"]:
        if self.current is None:
            return "empty"
        if self.current == self.head:
            return "current"
        if self.current in _UNSUPPORTED:
            return "unsupported"
        return "older" if self.current in REVISIONS else "newer"

    @property
    def advice(self) -> str:
        """Return what to do if the schema is not current."""
        return {
            "newer": "install the version that upgraded it",
            "unsupported": "keep it for the version that wrote it, and use a new database",
        }.get(self.state, "run `runner db upgrade`")


def is_created(url: str) -> bool:
    """False if opening ``url`` would create a SQLite file. Always true for a server."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        return True  # opening it reports what is wrong with the URL
    if parsed.get_backend_name() != "sqlite":
        return True
    return bool(parsed.database) and Path(str(parsed.database)).exists()


def check(database: Database) -> Status:
    """Return the status of a database. Raises ``UnreachableError``."""
    return Status(database.read(_revision))


def require_current(database: Database) -> None:
    """Raise ``UsageError`` (``NoDatabaseError`` without any tables) unless the schema is current."""
    status = check(database)
    if status.state == "empty":
        raise NoDatabaseError(database.where)
    if status.state != "current":
        raise _unusable(database, status)


def upgrade(database: Database, to: str = HEAD) -> Status:
    """Upgrade a database. Processes that upgrade it at the same time wait for each other.

    Args:
        to: the revision to stop at; tests of a migration start from the one before.

    Returns:
        The status before the upgrade.

    Raises:
        UsageError: this version cannot upgrade the database, or it has tables of another program.
        UnreachableError: it does not answer.
    """
    status = check(database)
    if status.state == "current":
        return status
    with reachable(database), _alone(database) as connection:
        before = Status(_revision(connection))
        if before.state in ("newer", "unsupported"):
            raise _unusable(database, before)
        tables = set(inspect(connection).get_table_names()) if before.state == "empty" else set()
        if taken := sorted(tables & set(metadata.tables)):
            raise UsageError(
                f"the database {database.where} has tables of another program ({', '.join(taken)}): "
                "give Runner a database of its own"
            )
        if before.state != "current":
            _run_migrations(connection, to)
        return before


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _unusable(database: Database, status: Status) -> UsageError:
    problem = {
        "older": "is not up to date",
        "newer": f"is of a newer Runner (revision {status.current}, this one knows {HEAD})",
        "unsupported": f"is of a Runner before 0.1.0 (revision {status.current})",
    }[status.state]
    return UsageError(f"the database {database.where} {problem}: {status.advice}")


@contextmanager
def _alone(database: Database) -> Iterator[Connection]:
    """A transaction that excludes every other upgrade."""
    if database.dialect == "postgresql":
        with database.writer.begin() as connection:
            connection.execute(select(func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
            yield connection
        return
    engine = sqlite_engine(database.url, "BEGIN IMMEDIATE", foreign_keys=False)
    try:
        with engine.begin() as connection:
            yield connection
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
            if broken is not None:
                raise UsageError(f"the database has rows that refer to nothing: {tuple(broken)}")
    finally:
        engine.dispose()


def _run_migrations(connection: Connection, to: str) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "runner.migrations:")
    config.attributes["connection"] = connection
    command.upgrade(config, to)

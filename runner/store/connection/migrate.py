"""Brings a database to this version's schema, and says how far it is.

Alembic and the migrations are imported only when there is something to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection, NullPool, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError

from runner.errors import UsageError
from runner.store.connection.database import BUSY_TIMEOUT_SECONDS, Database, reachable
from runner.store.tables import metadata

# Every migration, in order; a test compares it with the files.
REVISIONS = tuple(f"{number:04}" for number in range(1, 12))
HEAD = REVISIONS[-1]

_ADVISORY_LOCK = 0x72756E6E6572  # "runner"; every upgrade of a Postgres database takes it


@dataclass(frozen=True, slots=True)
class Status:
    """The revision that a database has (None: it holds nothing yet) and the one that is wanted."""

    current: str | None
    head: str = HEAD

    @property
    def state(self) -> Literal["current", "empty", "older", "newer"]:
        if self.current is None:
            return "empty"
        if self.current == self.head:
            return "current"
        return "older" if self.current in REVISIONS else "newer"


def is_created(url: str) -> bool:
    """Whether opening ``url`` would find a database and not create one. True for servers."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        return True  # opening it says what is wrong with it
    if parsed.get_backend_name() != "sqlite":
        return True
    return bool(parsed.database) and Path(str(parsed.database)).exists()


def check(database: Database) -> Status:
    """How far a database is.

    Raises:
        UnreachableError: it does not answer.
    """
    return Status(database.read(_revision))


def require_current(database: Database) -> None:
    """Do nothing when the database can be used as it is.

    Raises:
        UsageError: it is empty, older or newer, and what to do. UnreachableError: no answer.
    """
    status = check(database)
    where = database.url.render_as_string(hide_password=True)
    match status.state:
        case "current":
            return
        case "empty":
            raise UsageError(f"no jobs yet in {where}: start one with `runner run SPEC`")
        case "older":
            raise UsageError(f"the database {where} is not up to date: run `runner db upgrade`")
        case "newer":
            raise _newer(database, status.current)


def upgrade(database: Database) -> Status:
    """Bring a database up to date. Safe when several processes do it at once.

    Returns:
        How far it was before.

    Raises:
        UsageError: a newer Runner has upgraded it, or it holds tables of something else.
        UnreachableError: it does not answer.
    """
    status = check(database)
    if status.state == "current":
        return status
    with reachable(database), _alone(database) as connection:
        before = Status(_revision(connection))
        if before.state == "newer":
            raise _newer(database, before.current)
        if before.state == "empty":
            _refuse_strangers(database, connection)
        if before.state != "current":
            _run_migrations(connection)
        return before


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _newer(database: Database, revision: str | None) -> UsageError:
    where = database.url.render_as_string(hide_password=True)
    return UsageError(
        f"the database {where} is of a newer Runner (revision {revision}, this one knows {HEAD}): "
        "install that version"
    )


def _refuse_strangers(database: Database, connection: Connection) -> None:
    taken = sorted(set(inspect(connection).get_table_names()) & set(metadata.tables))
    if taken:
        where = database.url.render_as_string(hide_password=True)
        raise UsageError(
            f"the database {where} has tables of something else ({', '.join(taken)}): "
            "give Runner a database of its own"
        )


@contextmanager
def _alone(database: Database) -> Iterator[Connection]:
    """A transaction that no other upgrade runs beside."""
    if database.dialect == "sqlite":
        with _alone_on_sqlite(database) as connection:
            yield connection
        return
    with database.writer.begin() as connection:
        connection.execute(
            text("SELECT pg_advisory_xact_lock(:lock)").bindparams(lock=_ADVISORY_LOCK)
        )
        yield connection


@contextmanager
def _alone_on_sqlite(database: Database) -> Iterator[Connection]:
    """Foreign keys are off: recreating a table, which is how SQLite alters one, would delete the
    rows that refer to it (https://sqlite.org/lang_altertable.html#otheralter)."""
    engine = create_engine(
        database.url, poolclass=NullPool, connect_args={"timeout": BUSY_TIMEOUT_SECONDS}
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys=OFF")

    @event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    with engine.begin() as connection:
        yield connection
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
        if broken is not None:
            raise UsageError(f"the database has rows that refer to nothing: {tuple(broken)}")


def _run_migrations(connection: Connection, revision: str = HEAD) -> None:
    from alembic import command
    from alembic.config import Config

    import runner.migrations

    config = Config()
    folder = Path(runner.migrations.__file__).parent
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)

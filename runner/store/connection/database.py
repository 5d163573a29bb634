"""Connections and transactions, for SQLite and Postgres alike.

SQLite has one writer a process: what has queued up while the last transaction was written goes into
the next one, so that many runs share one flush to disk.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine, Select, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import QueuePool

from runner.errors import RunnerError, UnreachableError, UsageError
from runner.store.connection import postgres
from runner.store.connection.driver import to_json
from runner.store.connection.statement import find

T = TypeVar("T")

BUSY_TIMEOUT_SECONDS = 30.0
POSTGRES_CONNECTIONS = 8
_MOST_SHARING_A_COMMIT = 64
_DRIVERS = {"sqlite", "sqlite+pysqlite", "postgresql", "postgresql+psycopg"}
_OUTAGE_CLASSES = {"08", "25", "40", "53", "57", "58"}


class Database:
    """A database that is open: ``write`` and ``read`` run work in a transaction of its own.

    Args:
        url: a SQLAlchemy URL, ``sqlite:///path`` or ``postgresql://…``.

    Raises:
        UsageError: the URL is not one, or names another kind of database.
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError) as error:
            raise UsageError(
                "the database URL cannot be read: use sqlite:///path or postgresql://user@host/name"
            ) from error
        if parsed.drivername not in _DRIVERS:
            raise UsageError(
                f"databases of kind {parsed.drivername!r} are not supported: use sqlite or postgresql"
            )
        self.url = parsed
        self.dialect = parsed.get_backend_name()
        if self.dialect == "sqlite":
            self._open_sqlite()
        else:
            self._open_postgres()

    def _open_sqlite(self) -> None:
        path = self.url.database
        if not path or path == ":memory:":
            raise UsageError("a SQLite database needs a file: sqlite:///path/to/runner.db")
        folder = Path(path).parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"the folder {folder} cannot be made ({error.strerror}): choose another RUNNER_HOME"
            ) from error
        self.writer = _sqlite_engine(self, "BEGIN IMMEDIATE", connections=1)
        self.reader = _sqlite_engine(self, "BEGIN", connections=4)
        self._single = self.reader
        self._writes: _SharedCommits | None = _SharedCommits(self.writer)

    def _open_postgres(self) -> None:
        opened = postgres.engines(
            self.url, connections=POSTGRES_CONNECTIONS, patience=BUSY_TIMEOUT_SECONDS
        )
        self._single, self.writer, self.reader = opened
        self._writes = None

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a writing transaction; whatever it raises rolls back what it did.

        Raises:
            UnreachableError: the database does not answer or is locked; whether the work was
                committed is not known.
        """
        with reachable(self):
            if self._writes is not None:
                return self._writes.run(work)
            with self.writer.begin() as connection:
                return work(connection)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a reading transaction, with one view of the data.

        Raises:
            UnreachableError: the database does not answer.
        """
        with self.reading() as connection:
            return work(connection)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A reading transaction, as for ``read``."""
        with reachable(self), self.reader.begin() as connection:
            yield connection

    def find(self, query: Select[Any], values: Mapping[str, Any]) -> list[Any]:
        """The rows of one query, which needs no transaction for one view of the data: its columns by
        name. ``query`` is the same object each time.

        Raises:
            UnreachableError: the database does not answer.
        """
        with reachable(self), self._single.connect() as connection:
            return find(connection, query, values)

    def close(self) -> None:
        if self._writes is not None:
            self._writes.close()
        self.writer.dispose()
        self.reader.dispose()


@contextmanager
def reachable(database: Database) -> Iterator[None]:
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeoutError) as error:
        raise _unreachable(database, error) from error
    except DBAPIError as error:
        if error.connection_invalidated or _is_outage(error.orig):
            raise _unreachable(database, error) from error
        raise


def _is_outage(error: BaseException | None) -> bool:
    """Whether an error is the database's own trouble: a file that is none (SQLite), or a server that
    is full, shutting down or read-only after a failover
    (https://www.postgresql.org/docs/current/errcodes-appendix.html)."""
    if type(error) is sqlite3.DatabaseError:
        return True
    return str(getattr(error, "sqlstate", None))[:2] in _OUTAGE_CLASSES


def _unreachable(database: Database, error: Exception) -> RunnerError:
    reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
    where = database.url.render_as_string(hide_password=True)
    if "no such table" in reason or "no such column" in reason:
        return UsageError(f"the database {where} is not up to date: run `runner db upgrade`")
    return UnreachableError(f"the database {where} does not answer ({reason})")


def _sqlite_engine(database: Database, begin: str, *, connections: int) -> Engine:
    engine = create_engine(
        database.url,
        json_serializer=to_json,
        poolclass=QueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=BUSY_TIMEOUT_SECONDS,
        connect_args={"timeout": BUSY_TIMEOUT_SECONDS, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions begin where we say so
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


class _Work(Generic[T]):
    """One caller's work in a shared transaction."""

    def __init__(self, work: Callable[[Connection], T]) -> None:
        self._work = work
        self.done = False
        self.error: BaseException | None = None
        self._value: T | None = None

    def run(self, connection: Connection) -> None:
        self._value = self._work(connection)

    def value(self) -> T:
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]  # run() has set it


class _SharedCommits:
    """Whoever gets the lock commits for all who wait for it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._waiting: deque[_Work[Any]] = deque()

    def run(self, work: Callable[[Connection], T]) -> T:
        mine = _Work(work)
        self._waiting.append(mine)
        while not mine.done:
            with self._lock:
                if not mine.done:
                    self._commit(self._take())
        return mine.value()

    def _take(self) -> list[_Work[Any]]:
        count = min(len(self._waiting), _MOST_SHARING_A_COMMIT)
        return [self._waiting.popleft() for _ in range(count)]

    def _commit(self, batch: list[_Work[Any]]) -> None:
        """All in one transaction; when one of them fails, each in one of its own."""
        try:
            self._commit_together(batch)
        except Exception as error:
            if len(batch) == 1 or isinstance(error, OperationalError):
                for work in batch:
                    work.error = error
            else:
                for work in batch:
                    self._commit([work])
        except BaseException as error:
            for work in batch:
                work.error = error
            raise
        finally:
            for work in batch:
                work.done = True

    def _commit_together(self, batch: list[_Work[Any]]) -> None:
        if self._connection is None:
            self._connection = self._engine.connect()
        try:
            with self._connection.begin():
                for work in batch:
                    work.run(self._connection)
        except DBAPIError:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None
            raise

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

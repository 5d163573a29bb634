"""Connections and transactions, for SQLite and Postgres alike.

SQLite has one writer per process: writes that queue up during a transaction share the next one, so
that many runs share one flush to disk. Processes write in turns.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    Select,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import QueuePool

from runner.errors import RunnerError, UnreachableError, UsageError
from runner.store.statements import Row, driver_errors, execute

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

BUSY_TIMEOUT_SECONDS = 30.0  # how long to wait for a lock on SQLite, and for a free connection
POSTGRES_CONNECTIONS = 8  # the most that a process opens
_FULL = re.compile("too many (clients|connections)|remaining connection slots")
_FULL_PAUSE_SECONDS = 0.5
_FULL_SILENCE_SECONDS = 600.0  # between two warnings of a full server
_READERS_ON_SQLITE = 4
_WRITES_PER_COMMIT = 64
_LOCK_PAUSE_SECONDS = 0.001  # between two looks at a lock of SQLite
_LONGEST_TURN_SECONDS = 0.25  # that others wait for the process that is the next to write
_DRIVERS = {"sqlite", "sqlite+pysqlite", "postgresql", "postgresql+psycopg"}

# Classes of Postgres errors that are the server's own trouble: it is full, shutting down, damaged, or
# read-only after a failover (https://www.postgresql.org/docs/current/errcodes-appendix.html).
_OUTAGE_CLASSES = {"08", "25", "40", "53", "57", "58", "XX"}
_NO_RIGHTS = "42501"  # somebody has taken them from this user, and can give them back
# Two transactions cannot both go on, so the server has rolled one back: a deadlock (somebody takes locks in
# another order than ``store.budgets`` says), or a failed serialization.
_COLLISIONS = {"40P01", "40001"}
# Without a pause, this transaction could take its locks again before the other one wakes up.
_COLLISION_PAUSE_SECONDS = 0.05
# A table or a column is not there: by Postgres' codes, and in SQLite's words.
_UNDEFINED = {"42P01", "42703"}
_UNDEFINED_ON_SQLITE = ("no such table", "no such column", "has no column named")
_UNWRITABLE_ON_SQLITE = ("attempt to write a readonly database", "unable to open database file")

# A Postgres host that disappears is noticed in seconds, not hours
# (https://www.postgresql.org/docs/current/libpq-connect.html).
_NETWORK_TIMEOUTS = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}

_COMPACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


MOST_AT_ONCE = 200  # rows that one transaction changes, or values that one query lists


def in_lots(items: Sequence[T], size: int = MOST_AT_ONCE) -> Iterator[Sequence[T]]:
    """Yield the items in lots, each small enough for one query, or for a transaction that does not hold up
    workers for long."""
    return (items[start : start + size] for start in range(0, len(items), size))


@dataclass(frozen=True, slots=True)
class Json:
    """A value that is JSON text already."""

    text: str


def to_json(value: Any) -> str:
    """JSON text, compact and in order. Text that UTF-8 cannot encode (lone surrogates) is escaped."""
    if isinstance(value, Json):
        return value.text
    text = _COMPACT.encode(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text


_POOL: dict[str, Any] = {
    "json_serializer": to_json,
    "poolclass": QueuePool,
    "max_overflow": 0,
    "pool_timeout": BUSY_TIMEOUT_SECONDS,
}


def connections_for(slots: int) -> int:
    """Return how many connections to Postgres a worker's threads share, by its slots."""
    return min(2 + slots // 8, POSTGRES_CONNECTIONS)


class _Lent:
    """Gives connections to threads in the order in which they ask. SQLAlchemy's pool may give one back to
    the thread that has just returned it, and let a waiting thread starve."""

    def __init__(self, connections: int) -> None:
        self._free = connections
        self._lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold one connection's turn. Raises SQLAlchemy's ``TimeoutError``."""
        mine = threading.Lock()
        with self._lock:
            if self._free:
                self._free -= 1
            else:
                mine.acquire()
                self._waiting.append(mine)
        try:
            if not mine.acquire(timeout=BUSY_TIMEOUT_SECONDS):
                seconds = f"{BUSY_TIMEOUT_SECONDS:.0f} s"
                raise PoolTimeoutError(f"other threads kept all connections for {seconds}")
            yield
        finally:
            with self._lock:
                if mine in self._waiting:  # its turn has not come
                    self._waiting.remove(mine)
                elif self._waiting:
                    self._waiting.popleft().release()
                else:
                    self._free += 1


class Database:
    """An open database. ``write`` and ``read`` run a function in a transaction.

    Args:
        url: a SQLAlchemy URL, ``sqlite:///path`` or ``postgresql://…``.
        connections: the most connections to Postgres, opened when they are needed.

    Raises:
        UsageError: the URL is malformed, or names another kind of database.
    """

    def __init__(self, url: str, connections: int = POSTGRES_CONNECTIONS) -> None:
        self.url = _parsed(url)
        self.dialect = self.url.get_backend_name()
        self._commits: _SharedCommits | None = None
        self._file: os.stat_result | None = None  # of SQLite
        self._lent = _Lent(_READERS_ON_SQLITE if self.dialect == "sqlite" else connections)
        self._full_lock = threading.Lock()
        self._full_said_at: float | None = None  # when a warning of a full server was logged
        if self.dialect == "sqlite":
            _make_folder(self.url)
            self.writer = _taking_turns(sqlite_engine(self.url))
            self.reader = sqlite_engine(self.url, "BEGIN", connections=_READERS_ON_SQLITE)
            self._single = self.reader
            self._commits = _SharedCommits(self.writer)
        else:
            self._single = _postgres_engine(
                self.url, connections
            )  # the three engines share its pool
            self.writer = _postgres_begin_with(b"BEGIN", self._single.execution_options())
            begin = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
            self.reader = _postgres_begin_with(begin, self._single.execution_options())

    @property
    def where(self) -> str:
        """Its URL without the password."""
        return self.url.render_as_string(hide_password=True)

    def write(self, work: Callable[[Connection], T], *, alone: bool = False) -> T:
        """Run ``work`` in a writing transaction, again if it fails because of others; rolled back
        if it raises. Raises ``UnreachableError`` if the database is away or locked; it may have
        committed then.

        Args:
            alone: ``work`` is one statement on Postgres, which commits by itself.
        """
        with reachable(self):
            if self._commits is not None:
                return self._commits.run(work)
            return self._write_on_postgres(work, self._single if alone else self.writer)

    def _write_on_postgres(
        self, work: Callable[[Connection], T], engine: Engine, tries: int = 3
    ) -> T:
        try:
            with self._connect(engine) as connection:
                if engine is self._single:
                    return work(connection)
                with connection.begin():
                    return work(connection)
        except DBAPIError as error:
            if tries == 1 or getattr(error.orig, "sqlstate", None) not in _COLLISIONS:
                raise
        time.sleep(_COLLISION_PAUSE_SECONDS)
        return self._write_on_postgres(work, engine, tries - 1)

    def read(self, work: Callable[[Connection], T], *, snapshot: bool = True) -> T:
        """Run ``work`` in a reading transaction, which sees one state of the data; without
        ``snapshot`` each statement may see another. Raises ``UnreachableError``."""
        if not snapshot:
            with reachable(self), self._connect(self._single) as connection:
                return work(connection)
        with self.reading() as connection:
            return work(connection)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A reading transaction, as for ``read``."""
        with reachable(self), self._connect(self.reader) as connection, connection.begin():
            yield connection

    def rows(self, query: Select[Any]) -> Sequence[Row]:
        """Return the rows of one query. Raises ``UnreachableError``."""
        with reachable(self), self._connect(self._single) as connection:
            return connection.execute(query).all()

    def dicts(self, query: Select[Any]) -> list[dict[str, Any]]:
        """Return the rows of one query as dicts by column name. Raises ``UnreachableError``."""
        return [dict(row._mapping) for row in self.rows(query)]

    def rows_in(
        self, query: Select[Any], column: ColumnElement[Any], values: Collection[Any]
    ) -> list[Row]:
        """Return the rows of a query whose ``column`` has one of these values, however many they are.
        Raises ``UnreachableError``."""
        lots = in_lots(sorted(set(values)))
        return [row for lot in lots for row in self.rows(query.where(column.in_(lot)))]

    def execute(self, statement: Executable) -> None:
        """Execute one statement in a writing transaction, as for ``write``."""
        self.write(lambda connection: connection.execute(statement), alone=True)

    def find(self, query: Select[Any], values: Mapping[str, Any]) -> list[Row]:
        """Return the rows of one query, run outside a transaction. Raises
        ``UnreachableError``."""
        with reachable(self), self._connect(self._single) as connection:
            return execute(connection, query, values)

    def require_in_place(self) -> None:
        """Raise ``UsageError`` if the file of SQLite is another one than at the first call: the open
        connections would go on in a file that nobody else sees."""
        if self.dialect != "sqlite":
            return
        path = Path(self.url.database or "")
        try:
            found = path.stat()
        except OSError:  # it may come back
            return
        if self._file is not None and not os.path.samestat(self._file, found):
            raise UsageError(
                f"the database {path} was replaced while it was open: stop what has it open, put the right "
                "file there, and start again"
            )
        self._file = found

    @contextmanager
    def _connect(self, engine: Engine) -> Iterator[Connection]:
        """Lend a connection: to the threads of this process in the order in which they ask. If the
        server has none to give, wait until it has one or another thread is done with its own."""
        with self._lent.turn(), self._opened(engine) as connection:
            yield connection

    def _opened(self, engine: Engine) -> Connection:
        deadline = time.monotonic() + BUSY_TIMEOUT_SECONDS
        while True:
            try:
                return engine.connect()
            except OperationalError as error:
                if not _FULL.search(str(error)) or time.monotonic() > deadline:
                    raise
                self._say_full()
                time.sleep(_FULL_PAUSE_SECONDS)

    def _say_full(self) -> None:
        with self._full_lock:
            now, said_at = time.monotonic(), self._full_said_at
            if said_at is None or now - said_at > _FULL_SILENCE_SECONDS:
                self._full_said_at = now
                logger.warning(
                    "the database %s has no free connection: waiting for one", self.where
                )

    def close(self) -> None:
        if self._commits is not None:
            self._commits.close()
        self.writer.dispose()
        self.reader.dispose()


def writes(work: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[Database, P], T]:
    """Turn a function of a connection into one of a database, which runs it in a writing transaction (see
    ``Database.write``)."""

    @wraps(work)
    def run(database: Database, /, *args: P.args, **options: P.kwargs) -> T:
        return database.write(lambda connection: work(connection, *args, **options))

    return run


def reads(work: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[Database, P], T]:
    """Turn a function of a connection into one of a database, which runs it in a reading transaction (see
    ``Database.read``)."""

    @wraps(work)
    def run(database: Database, /, *args: P.args, **options: P.kwargs) -> T:
        return database.read(lambda connection: work(connection, *args, **options))

    return run


@contextmanager
def reachable(database: Database) -> Iterator[None]:
    """Raise errors that mean that the database cannot be used as ``UnreachableError``."""
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeoutError) as error:
        raise _unreachable(database, error) from error
    except DBAPIError as error:
        is_no_database = type(error.orig) is sqlite3.DatabaseError
        state = str(getattr(error.orig, "sqlstate", None))
        is_known = state[:2] in _OUTAGE_CLASSES or state in {*_UNDEFINED, _NO_RIGHTS}
        if error.connection_invalidated or is_no_database or is_known:
            raise _unreachable(database, error) from error
        raise


def _unreachable(database: Database, error: Exception) -> RunnerError:
    reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
    where = database.where
    is_undefined = getattr(getattr(error, "orig", None), "sqlstate", None) in _UNDEFINED
    if is_undefined or any(words in reason for words in _UNDEFINED_ON_SQLITE):
        return UsageError(f"the database {where} has another schema: see `runner db check`")
    if reason in _UNWRITABLE_ON_SQLITE:
        return UnreachableError(
            f"the database {where} cannot be written ({reason}): its folder must exist, and this user "
            "must be allowed to write to it"
        )
    if _FULL.search(str(error)):
        return UnreachableError(
            f"the database {where} has no free connection after {BUSY_TIMEOUT_SECONDS:.0f} s: raise "
            "max_connections of the server, or run fewer workers"
        )
    return UnreachableError(f"the database {where} does not answer ({reason})")


def _parsed(url: str) -> URL:
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
    return parsed


def _make_folder(url: URL) -> None:
    if not url.database or url.database == ":memory:":
        raise UsageError("a SQLite database needs a file: sqlite:///path/to/runner.db")
    folder = Path(url.database).parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the folder {folder} cannot be made ({error.strerror}): choose another RUNNER_HOME"
        ) from error


def sqlite_engine(
    url: URL, begin: str | None = None, *, connections: int = 1, foreign_keys: bool = True
) -> Engine:
    """An engine for SQLite whose transactions ``begin`` so; None: the caller says how. Migrations
    need it without ``foreign_keys``: SQLite recreates a table that it alters, which would delete
    the rows that refer to it (https://sqlite.org/lang_altertable.html#otheralter)."""
    engine = create_engine(
        url,
        **_POOL,
        pool_size=connections,
        connect_args={"timeout": BUSY_TIMEOUT_SECONDS, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # transactions begin only by ``_begin_with``
        check = "ON" if foreign_keys else "OFF"
        for pragma in ("journal_mode=WAL", "synchronous=FULL", f"foreign_keys={check}"):
            connection.execute(f"PRAGMA {pragma}")
        record.info["cursor"] = connection.cursor()

    return engine if begin is None else _begin_with(begin, engine)


def _taking_turns(engine: Engine) -> Engine:
    """Have the transactions of an engine for SQLite write in turns with those of other processes: who is
    next holds a lock of the folder until it writes (docs/decisions/0005). Returns the engine."""
    folder = Path(engine.url.database or "").parent

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA busy_timeout = 0")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        with _turn(folder), driver_errors(connection):
            begin = partial(connection.info["cursor"].execute, "BEGIN IMMEDIATE")
            _take(begin, BUSY_TIMEOUT_SECONDS)

    return engine


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Be the next process to write, or one of several: if the next one is frozen, nobody waits long for
    it, and a file system may have no such locks."""
    with ExitStack() as opened:
        with suppress(OSError, sqlite3.OperationalError):
            turn = os.open(folder, os.O_RDONLY)
            opened.callback(os.close, turn)
            _take(partial(fcntl.flock, turn, fcntl.LOCK_EX | fcntl.LOCK_NB), _LONGEST_TURN_SECONDS)
        yield


def _take(lock: Callable[[], Any], patience: float) -> None:
    """Take a lock as soon as it is free. Raises ``sqlite3.OperationalError`` if it is not for long."""
    deadline = time.monotonic() + patience
    while True:
        try:
            lock()
            return
        except (BlockingIOError, sqlite3.OperationalError) as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_BUSY)
            if code & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            if time.monotonic() > deadline:
                raise sqlite3.OperationalError("database is locked") from error
        time.sleep(_LOCK_PAUSE_SECONDS)


def _postgres_engine(url: URL, connections: int) -> Engine:
    import psycopg  # late: commands on SQLite start without it
    from psycopg.types.numeric import Int8Dumper

    engine = create_engine(
        url,
        **_POOL,
        paramstyle="numeric_dollar",  # $1, as Postgres itself has it: psycopg has nothing to replace
        pool_size=connections,
        connect_args={
            **_NETWORK_TIMEOUTS,
            "client_encoding": "utf8",
            "cursor_factory": psycopg.RawCursor,
        },
    )
    # A worker stopped inside a transaction would keep its run's row locked.
    idle_timeout = f"{BUSY_TIMEOUT_SECONDS / 2:.0f}s"

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: Any) -> None:
        connection.autocommit = True  # transactions begin only by ``_begin_with``
        connection.execute(f"SET idle_in_transaction_session_timeout = '{idle_timeout}'")
        record.info["cursor"] = cursor = connection.cursor()
        # One type for integers of any size: a statement is prepared for the types of its values.
        cursor.adapters.register_dumper(int, Int8Dumper)

    return engine


def _begin_with(command: str, engine: Engine) -> Engine:
    """Have the transactions of an engine begin with a command. Returns the engine."""

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        with driver_errors(connection):
            connection.info["cursor"].execute(command)

    return engine


def _postgres_begin_with(command: bytes, engine: Engine) -> Engine:
    """As ``_begin_with``, without psycopg's cursor: it gives the interpreter's lock up several times
    for a command, and a crowd of runs waits for that lock each time (docs/decisions/0007)."""

    from psycopg import OperationalError, errors, pq

    def run(connection: Connection, command: bytes = command) -> None:
        pgconn: Any = connection.connection.driver_connection.pgconn  # type: ignore[union-attr]
        with driver_errors(connection):
            result = pgconn.exec_(command)
            if pgconn.status == pq.ConnStatus.BAD:
                raise OperationalError(pgconn.error_message.decode("utf-8", "replace").strip())
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise errors.error_from_result(result)

    event.listen(engine, "begin", run)
    # SQLAlchemy then asks psycopg to commit, which finds no transaction.
    event.listen(engine, "commit", lambda connection: run(connection, b"COMMIT"))
    return engine


@dataclass(eq=False)
class _Write:
    """A waiting write, and later its result."""

    work: Callable[[Connection], Any]
    woken: threading.Lock = field(default_factory=threading.Lock)  # its caller waits for it
    leads: bool = False  # its caller commits what waits
    is_done: bool = False
    value: Any = None
    error: BaseException | None = None

    def done(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value, self.error, self.is_done = value, error, True
        if not self.leads:
            self.woken.release()


class _SharedCommits:
    """Writes on SQLite: the first waiting caller commits for all who wait, then the next one
    leads. A caller is woken once: when its write is done, or when it is the one that leads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None
        self._waiting: deque[_Write] = deque()
        self._lock = threading.Lock()
        self._is_led = False

    def run(self, work: Callable[[Connection], T]) -> T:
        mine = _Write(work)
        try:
            with self._lock:
                if self._is_led:
                    mine.woken.acquire()
                else:
                    mine.leads = self._is_led = True
                self._waiting.append(mine)
            mine.woken.acquire()
            if mine.leads:
                self._commit()
        finally:
            with self._lock:
                if not mine.is_done:  # interrupted
                    with suppress(ValueError):
                        self._waiting.remove(mine)
                if mine.leads:
                    self._let_next_lead()
        if mine.error is not None:
            raise mine.error
        return cast(T, mine.value)

    def _let_next_lead(self) -> None:
        self._is_led = bool(self._waiting)
        if self._waiting:
            self._waiting[0].leads = True
            self._waiting[0].woken.release()

    def _take(self, most: int) -> list[_Write]:
        with self._lock:  # an interrupted caller takes its own write away
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), most))]

    def _commit(self, most: int = _WRITES_PER_COMMIT) -> None:
        """Commit the waiting writes in one transaction, or each one alone if one of them fails."""
        batch: list[_Write] = []
        try:
            if self._connection is None:
                self._connection = self._engine.connect()
            with self._connection.begin():  # who comes while it waits for another process shares it
                batch = self._take(most)
                values = [write.work(self._connection) for write in batch]
        except BaseException as error:
            if isinstance(error, DBAPIError) and self._connection is not None:
                self._connection.invalidate()
                self._connection.close()
                self._connection = None
            if not batch:  # the transaction has not begun
                batch = self._take(most)
            is_of_all = len(batch) == 1 or isinstance(error, OperationalError)
            if isinstance(error, Exception) and not is_of_all:
                self._waiting.extendleft(reversed(batch))
                for _ in batch:
                    self._commit(most=1)
                return
            for write in batch:
                write.done(error=error)
            if not isinstance(error, Exception):
                raise
        else:
            for write, value in zip(batch, values, strict=True):
                write.done(value)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


class DatabaseClock:
    """The database's clock, as last measured (``runner.ports.Clock``): nobody who sets the clock of this
    host moves it.

    SQLite's clock is the process's own.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._offset: float | None = None  # from the monotonic clock; None: not measured

    def now(self) -> float:
        return time.time() if self._offset is None else self.monotonic() + self._offset

    def monotonic(self) -> float:
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()

    def measure(self) -> None:
        """Ask the database for its time. Raises ``UnreachableError``."""
        if self._database.dialect == "sqlite":
            return
        query = text("SELECT extract(epoch FROM clock_timestamp())")
        before = self.monotonic()
        theirs = self._database.read(lambda c: float(c.execute(query).scalar_one()))
        self._offset = theirs - (before + self.monotonic()) / 2

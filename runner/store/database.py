"""Connections and transactions, for SQLite and Postgres alike.

SQLite has one writer a process: what has queued up while the last transaction was written goes into
the next one, so that many runs share one flush to disk.

What every driver is given and what comes of it: JSON as text, and errors as SQLAlchemy's own.

Postgres: its connections, and statements that run on the client library itself.

psycopg runs a statement step by step in Python, and gives up the interpreter's lock at each step. With
many threads each of these is a switch to another thread, which costs more than all else. The client
library's own call does the same in one step (https://www.postgresql.org/docs/current/libpq-exec.html).

The statements of every turn, run on the driver itself.

What SQLAlchemy does around each execution costs several times what the driver and the database do.
Here SQLAlchemy says, once for each kind of database, what the SQL is and how values are bound.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import JSON, Boolean, Float, Integer, LargeBinary, String, TypeEngine

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult
import sqlite3
import threading
from collections import deque, namedtuple
from functools import lru_cache
from itertools import chain, groupby
from pathlib import Path
from typing import Generic, TypeVar

from sqlalchemy import (
    BindParameter,
    Dialect,
    Insert,
    Select,
    Table,
    Update,
    bindparam,
    insert,
    make_url,
    update,
)
from sqlalchemy.exc import ArgumentError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import QueuePool

from runner.errors import RunnerError, UnreachableError, UsageError

_COMPACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def to_json(value: Any) -> str:
    """JSON text, compact and in order. Text that UTF-8 cannot carry (lone surrogates) is escaped."""
    text = _COMPACT.encode(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text


@contextmanager
def raising_as_sqlalchemy_does(connection: Connection) -> Iterator[None]:
    """In the block, what the driver raises becomes a ``DBAPIError``, and a lost connection is left."""
    dialect = connection.dialect
    try:
        yield
    except dialect.loaded_dbapi.Error as error:
        lost = dialect.is_disconnect(error, connection.connection.driver_connection, None)
        if lost:
            connection.invalidate(error)
        raise DBAPIError.instance(
            None,
            None,
            error,
            dialect.loaded_dbapi.Error,
            connection_invalidated=lost,
            dialect=dialect,
        ) from error


# A host that is gone without a word is noticed in seconds, not hours
# (https://www.postgresql.org/docs/current/libpq-connect.html).
_PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}

_BEGIN_WRITING = b"BEGIN"
_BEGIN_READING = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

# What is rarely used is not worth a plan that every connection keeps, as many as it may be.
_USES_BEFORE_PREPARED = 5
_MOST_PREPARED = 128


class Engines(NamedTuple):
    """Engines that share one pool. ``single`` runs each statement in a transaction of its own."""

    single: Engine
    writer: Engine
    reader: Engine


def engines(url: URL, *, connections: int, patience: float) -> Engines:
    """The engines of a database.

    Args:
        connections: how many there are at most.
        patience: how many seconds to wait for a free connection. A worker that is stopped in the
            middle of a transaction loses its connection after half of that.
    """
    import psycopg  # late: commands on SQLite start without it

    single = create_engine(
        url,
        json_serializer=to_json,
        paramstyle="numeric_dollar",
        pool_size=connections,
        max_overflow=0,
        pool_timeout=patience,
        # $1 and $2, as Postgres has them: psycopg need not look for %s in the text each time.
        connect_args={
            **_PATIENCE,
            "client_encoding": "utf8",
            "cursor_factory": psycopg.RawCursor,
            # psycopg forgets what it has prepared by DEALLOCATE ALL, which takes ours with it.
            "prepare_threshold": None,
        },
    )

    @event.listens_for(single, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        # It would keep its run's row locked, and nobody could take the run.
        milliseconds = int(patience / 2 * 1000)
        connection.execute(f"SET idle_in_transaction_session_timeout = {milliseconds}")
        connection.commit()

    writer, reader = single.execution_options(), single.execution_options()
    for engine, begin in ((writer, _BEGIN_WRITING), (reader, _BEGIN_READING)):
        event.listen(engine, "begin", lambda connection, begin=begin: _command(connection, begin))
        # psycopg, asked to commit after it, finds that there is nothing left to do.
        event.listen(engine, "commit", lambda connection: _command(connection, b"COMMIT"))
    return Engines(single, writer, reader)


def _command(connection: Connection, command: bytes) -> None:
    with raising_as_sqlalchemy_does(connection):
        pooled: Any = connection.connection
        pgconn: PGconn = pooled.driver_connection.pgconn
        _check(pgconn, pgconn.exec_(command))


class Prepared:
    """A statement that each connection prepares once it is often used.

    Args:
        text: the SQL, its parameters as $1, $2 …
        parameters: their types, in order.
    """

    _numbers = count()

    def __init__(self, text: str, parameters: Sequence[TypeEngine[Any]]) -> None:
        self._text = text.encode()
        self._name = b"runner_%d" % next(self._numbers)
        wires = [_wire(parameter) for parameter in parameters]
        self._dumps = [
            (wire.dump, _none_is_null(parameter))
            for wire, parameter in zip(wires, parameters, strict=True)
        ]
        self._types = [wire.oid for wire in wires]
        self._formats = [_BINARY] * len(wires)
        self._uses = 0

    def execute(self, connection: Connection, values: Sequence[Any]) -> PGresult:
        """Run it with values for its parameters. Raises as psycopg does."""
        pooled: Any = connection.connection
        pgconn: PGconn = pooled.driver_connection.pgconn
        bound: list[Any] = [
            None if value is None and none_is_null else dump(value)
            for (dump, none_is_null), value in zip(self._dumps, values, strict=True)
        ]
        if self._is_ready(pgconn, pooled.info):
            result = pgconn.exec_prepared(self._name, bound, self._formats)
        else:
            result = pgconn.exec_params(self._text, bound, self._types, self._formats)
        return _check(pgconn, result)

    def _is_ready(self, pgconn: PGconn, info: dict[Any, Any]) -> bool:
        """Whether it is prepared on a connection; the one that was not used for longest makes room."""
        prepared: dict[bytes, None] = info.setdefault("runner_prepared", {})
        if self._name in prepared:
            del prepared[self._name]
        elif self._uses < _USES_BEFORE_PREPARED:
            self._uses += 1
            return False
        else:
            if len(prepared) >= _MOST_PREPARED:
                oldest = next(iter(prepared))
                _check(pgconn, pgconn.exec_(b"DEALLOCATE " + oldest))
                del prepared[oldest]
            _check(pgconn, pgconn.prepare(self._name, self._text, self._types))
        prepared[self._name] = None
        return True


def read_rows(result: PGresult, loads: Sequence[Callable[[bytes], Any]]) -> Iterator[list[Any]]:
    """The rows of a result, each value read by the function for its column."""
    columns = list(enumerate(loads))
    value = result.get_value
    for row in range(result.ntuples):
        yield [
            None if (raw := value(row, column)) is None else load(raw) for column, load in columns
        ]


def loader(column: TypeEngine[Any]) -> Callable[[bytes], Any]:
    """What reads the values of a column, which come as text."""
    return _wire(column).load


class _Wire(NamedTuple):
    """A type as it goes over the wire: its number in Postgres' ``pg_type``, the bytes of a value that
    is sent, and the value of a text that came."""

    oid: int
    dump: Callable[[Any], bytes]
    load: Callable[[bytes], Any]


_DONE = (1, 2)  # PGRES_COMMAND_OK, PGRES_TUPLES_OK
_BINARY = 1  # text in this format is its bytes, and a NUL in it is an error and not the end of it
_TEXT = _Wire(25, str.encode, bytes.decode)
_WIRES: Mapping[type[TypeEngine[Any]], _Wire] = {
    String: _TEXT,
    JSON.JSONStrIndexType: _TEXT,
    # One type for every whole number: the statement is planned for it, whatever its size.
    Integer: _Wire(20, struct.Struct(">q").pack, int),
    Float: _Wire(701, struct.Struct(">d").pack, float),
    Boolean: _Wire(16, struct.Struct(">?").pack, lambda raw: raw == b"t"),
    LargeBinary: _Wire(17, bytes, lambda raw: bytes.fromhex(raw[2:].decode())),
    JSON: _Wire(114, lambda value: to_json(value).encode(), json.loads),
}


def _wire(kind: TypeEngine[Any]) -> _Wire:
    for known, wire in _WIRES.items():
        if isinstance(kind, known):
            return wire
    raise TypeError(f"{kind!r} is no type of these statements: add how it goes over the wire")


def _none_is_null(kind: TypeEngine[Any]) -> bool:
    return not isinstance(kind, JSON) or kind.none_as_null


def _check(pgconn: PGconn, result: PGresult) -> PGresult:
    if result.status not in _DONE:
        raise _error(pgconn, result)
    return result


def _error(pgconn: PGconn, result: PGresult) -> Exception:
    from psycopg import OperationalError
    from psycopg.errors import error_from_result
    from psycopg.pq import ConnStatus

    if pgconn.status == ConnStatus.BAD:
        return OperationalError(pgconn.error_message.decode("utf-8", "replace").strip())
    return error_from_result(result)


# So that the parameters of a statement are in the thousands at most: Postgres takes 65,535.
_MOST_ROWS_TOGETHER = 16
_MOST_WRITES_TOGETHER = 16

_Definition = Select[Any] | Insert | Update


class Statement:
    """A statement that is compiled once for each kind of database.

    Args:
        definition: what it does; its values come by the names of its parameters.
    """

    def __init__(self, definition: _Definition) -> None:
        self._definition = definition
        self._compiled: dict[str, _OnPostgres | _OnSqlite] = {}

    def run(self, connection: Connection, values: Mapping[str, Any]) -> None:
        """Run it for what it does. Raises ``DBAPIError``."""
        with raising_as_sqlalchemy_does(connection):
            self._on(connection).run(connection, values)

    def rows(self, connection: Connection, values: Mapping[str, Any]) -> list[Any]:
        """The rows that it finds or returns, their columns by name. Raises ``DBAPIError``."""
        with raising_as_sqlalchemy_does(connection):
            return self._on(connection).rows(connection, values)

    def _on(self, connection: Connection) -> _OnPostgres | _OnSqlite:
        dialect = connection.dialect
        found = self._compiled.get(dialect.name)
        if found is None:
            kind = _OnSqlite if dialect.name == "sqlite" else _OnPostgres
            found = self._compiled[dialect.name] = kind(self._definition, dialect)
        return found


def find(connection: Connection, query: Select[Any], values: Mapping[str, Any]) -> list[Any]:
    """The rows of a query that is the same object each time. Raises ``DBAPIError``."""
    return _finding(query).rows(connection, values)


@lru_cache(maxsize=64)
def _finding(query: Select[Any]) -> Statement:
    return Statement(query)


class _Compiled:
    def __init__(self, definition: _Definition, dialect: Dialect) -> None:
        compiled: Any = definition.compile(dialect=dialect)
        self._text = str(compiled)
        self._given = {
            name: value
            for name, value in compiled.params.items()
            if not compiled.binds[name].required
        }
        self._names = list(compiled.positiontup)
        self._types = [compiled.binds[name].type.dialect_impl(dialect) for name in self._names]
        columns = definition.exported_columns
        self._read_types = [column.type.dialect_impl(dialect) for column in columns]
        self._row: Any = namedtuple("Row", map(str, columns.keys()))  # type: ignore[misc]

    def _values(self, values: Mapping[str, Any]) -> list[Any]:
        values = {**self._given, **values}
        return [values[name] for name in self._names]


class _OnPostgres(_Compiled):
    def __init__(self, definition: _Definition, dialect: Dialect) -> None:
        super().__init__(definition, dialect)
        self._prepared = Prepared(self._text, self._types)
        self._loaders = [loader(kind) for kind in self._read_types]

    def run(self, connection: Connection, values: Mapping[str, Any]) -> None:
        self._prepared.execute(connection, self._values(values))

    def rows(self, connection: Connection, values: Mapping[str, Any]) -> list[Any]:
        result = self._prepared.execute(connection, self._values(values))
        return [self._row._make(row) for row in read_rows(result, self._loaders)]


class _OnSqlite(_Compiled):
    def __init__(self, definition: _Definition, dialect: Dialect) -> None:
        super().__init__(definition, dialect)
        self._binding = [kind.bind_processor(dialect) for kind in self._types]
        self._reading = [kind.result_processor(dialect, None) for kind in self._read_types]

    def run(self, connection: Connection, values: Mapping[str, Any]) -> None:
        self._execute(connection, values)

    def rows(self, connection: Connection, values: Mapping[str, Any]) -> list[Any]:
        found = self._execute(connection, values).fetchall()
        return [self._row._make(_processed(self._reading, row)) for row in found]

    def _execute(self, connection: Connection, values: Mapping[str, Any]) -> Any:
        driver: Any = connection.connection.driver_connection
        return driver.execute(self._text, _processed(self._binding, self._values(values)))


def _processed(
    processors: Sequence[Callable[[Any], Any] | None], values: Sequence[Any]
) -> list[Any]:
    return [
        process(value) if process else value
        for process, value in zip(processors, values, strict=True)
    ]


class Writes:
    """Rows to insert and to change that are written together: none of them sees the others."""

    def __init__(self) -> None:
        self._shapes: list[_Shape] = []
        self._values: list[list[Any]] = []

    def insert(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows. Neighbours that name the same columns go together."""
        for columns, alike in groupby(rows, tuple):
            left = list(alike)
            while left:
                batch, left = left[:_MOST_ROWS_TOGETHER], left[_MOST_ROWS_TOGETHER:]
                self._shapes.append(_Rows(table, columns, len(batch)))
                self._values.append([value for row in batch for value in row.values()])

    def change(self, table: Table, changes: Mapping[str, Any], **key: Any) -> None:
        """Change the row that ``key`` names."""
        self._shapes.append(_Changes(table, tuple(key), tuple(changes)))
        self._values.append([*key.values(), *changes.values()])

    def run(self, connection: Connection) -> None:
        """Write it all. Raises ``DBAPIError``."""
        # What Postgres is given as one statement costs one round trip; SQLite has no WITH … INSERT.
        together = 1 if connection.dialect.name == "sqlite" else _MOST_WRITES_TOGETHER
        for start in range(0, len(self._shapes), together):
            part = slice(start, start + together)
            values = chain.from_iterable(self._values[part])
            numbered = {_name(number): value for number, value in enumerate(values)}
            _writing(tuple(self._shapes[part])).run(connection, numbered)


class _Rows(NamedTuple):
    table: Table
    columns: tuple[str, ...]
    rows: int

    def definition(self, numbers: Iterator[int]) -> Insert:
        return insert(self.table).values(
            [
                {name: _parameter(self.table, name, numbers) for name in self.columns}
                for _ in range(self.rows)
            ]
        )


class _Changes(NamedTuple):
    table: Table
    key: tuple[str, ...]
    columns: tuple[str, ...]

    def definition(self, numbers: Iterator[int]) -> Update:
        same = [self.table.c[name] == _parameter(self.table, name, numbers) for name in self.key]
        new = {name: _parameter(self.table, name, numbers) for name in self.columns}
        return update(self.table).where(*same).values(new)


_Shape = _Rows | _Changes


def _parameter(table: Table, column: str, numbers: Iterator[int]) -> BindParameter[Any]:
    return bindparam(_name(next(numbers)), type_=table.c[column].type)


def _name(number: int) -> str:
    return f"value_{number}"


@lru_cache(maxsize=256)
def _writing(shapes: tuple[_Shape, ...]) -> Statement:
    """One statement for all, its parameters numbered in the order of the values
    (https://www.postgresql.org/docs/current/queries-with.html#QUERIES-WITH-MODIFYING)."""
    numbers = count()
    *others, last = (shape.definition(numbers) for shape in shapes)
    return Statement(
        last.add_cte(*(one.cte(f"write_{number}") for number, one in enumerate(others)))
    )


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
        opened = engines(self.url, connections=POSTGRES_CONNECTIONS, patience=BUSY_TIMEOUT_SECONDS)
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

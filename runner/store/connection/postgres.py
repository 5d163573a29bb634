"""Postgres: its connections, and statements that run on the client library itself.

psycopg runs a statement step by step in Python, and gives up the interpreter's lock at each step. With
many threads each of these is a switch to another thread, which costs more than all else. The client
library's own call does the same in one step (https://www.postgresql.org/docs/current/libpq-exec.html).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.types import JSON, Boolean, Float, Integer, LargeBinary, String, TypeEngine

from runner.store.connection.driver import raising_as_sqlalchemy_does, to_json

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

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

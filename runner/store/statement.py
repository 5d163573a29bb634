"""The statements of every turn, run on the driver itself.

What SQLAlchemy does around each execution costs several times what the driver and the database do.
Here SQLAlchemy says, once for each kind of database, what the SQL is and how values are bound.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain, count, groupby
from typing import Any, NamedTuple

from sqlalchemy import (
    BindParameter,
    Connection,
    Dialect,
    Insert,
    Select,
    Table,
    Update,
    bindparam,
    insert,
    update,
)
from sqlalchemy.exc import DBAPIError

# So that the parameters of a statement are in the thousands at most: Postgres takes 65,535.
_MOST_ROWS_TOGETHER = 16
_MOST_WRITES_TOGETHER = 16


class Statement:
    """A statement that is compiled once for each kind of database.

    Args:
        definition: what it does; its values come by the names of its parameters.
    """

    def __init__(self, definition: Select[Any] | Insert | Update) -> None:
        self._definition = definition
        self._compiled: dict[str, _Compiled] = {}

    def run(self, connection: Connection, values: Mapping[str, Any]) -> None:
        """Run it for what it does. Raises ``DBAPIError``."""
        with _raising_as_sqlalchemy_does(connection):
            self._on(connection).execute(connection, values)

    def rows(self, connection: Connection, values: Mapping[str, Any]) -> list[Any]:
        """The rows that it finds, their columns by name. Raises ``DBAPIError``."""
        compiled = self._on(connection)
        with _raising_as_sqlalchemy_does(connection):
            cursor = compiled.execute(connection, values)
            return compiled.rows(cursor.fetchall(), cursor.description)

    def _on(self, connection: Connection) -> _Compiled:
        kind = connection.dialect.name
        if kind not in self._compiled:
            self._compiled[kind] = _Compiled(self._definition, connection.dialect)
        return self._compiled[kind]


def find(connection: Connection, query: Select[Any], values: Mapping[str, Any]) -> list[Any]:
    """The rows of a query that is the same object each time. Raises ``DBAPIError``."""
    return _finding(query).rows(connection, values)


@lru_cache(maxsize=64)
def _finding(query: Select[Any]) -> Statement:
    return Statement(query)


class _Compiled:
    def __init__(self, definition: Select[Any] | Insert | Update, dialect: Dialect) -> None:
        compiled: Any = definition.compile(dialect=dialect)
        self._text = str(compiled)
        self._given = {name: value for name, value in compiled.params.items() if value is not None}
        self._parameters = [
            (name, compiled.binds[name].type.dialect_impl(dialect).bind_processor(dialect))
            for name in compiled.positiontup
        ]
        self._dialect = dialect
        if isinstance(definition, Select):
            self._columns = definition.selected_columns
            self._row: Any = namedtuple("Row", self._columns.keys())  # type: ignore[misc]
            self._reading: list[Callable[[Any], Any] | None] = []

    def execute(self, connection: Connection, values: Mapping[str, Any]) -> Any:
        values = {**self._given, **values}
        bound = [
            process(values[name]) if process else values[name] for name, process in self._parameters
        ]
        driver: Any = connection.connection.driver_connection
        return driver.execute(self._text, bound)

    def rows(self, found: Sequence[Sequence[Any]], description: Sequence[Any]) -> list[Any]:
        if not self._reading:
            self._reading = [
                column.type.dialect_impl(self._dialect).result_processor(self._dialect, told[1])
                for column, told in zip(self._columns, description, strict=True)
            ]
        return [
            self._row._make(
                process(value) if process else value
                for process, value in zip(self._reading, row, strict=True)
            )
            for row in found
        ]


@contextmanager
def _raising_as_sqlalchemy_does(connection: Connection) -> Iterator[None]:
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

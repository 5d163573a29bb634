"""The statements of every turn, run on the driver itself.

What SQLAlchemy does around each execution costs several times what the driver and the database do.
Here SQLAlchemy says, once for each kind of database, what the SQL is and how values are bound.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from runner.store.connection.driver import raising_as_sqlalchemy_does
from runner.store.connection.postgres import Prepared, loader, read_rows

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

"""The statements of every turn, compiled once and run on the driver's own cursor.

SQLAlchemy's own execution takes several times as long as the driver and the database
(docs/decisions/0007). Here SQLAlchemy compiles the SQL, converts the values and classifies the
errors. Each connection keeps one cursor for them (``Connection.info["cursor"]``): to make one costs
as much as to use it.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain, count, groupby
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Dialect,
    Insert,
    Integer,
    Select,
    Table,
    Update,
    bindparam,
    cast,
    exists,
    insert,
    literal_column,
    select,
    union_all,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.util import LRUCache

Row: TypeAlias = Any  # a named tuple of the columns that a statement returns
_Definition = Select[Any] | Insert | Update
_Convert = Callable[[Any], Any]
_Converters: TypeAlias = Sequence[tuple[int, _Convert]]

# They keep the parameters of one statement in the thousands: Postgres takes 65,535 at most.
_ROWS_PER_INSERT = 16
_WRITES_PER_STATEMENT = 16


def execute(connection: Connection, statement: _Definition, values: Mapping[str, Any]) -> list[Row]:
    """Execute a statement, and return the rows that it returns.

    Args:
        statement: kept by the caller: the same object is compiled only once for each dialect.
        values: the values of its parameters, by name.

    Raises:
        DBAPIError: as SQLAlchemy raises it.
    """
    return _compile(statement, connection.dialect).execute(connection, values)


def _compile(statement: _Definition, dialect: Dialect) -> _Compiled:
    key = statement, dialect.name
    compiled = _compiled.get(key)
    if compiled is None:
        compiled = _compiled[key] = _Compiled(statement, dialect)
    return compiled


@contextmanager
def driver_errors(connection: Connection) -> Iterator[None]:
    """Raise errors of the driver as SQLAlchemy does, and give a lost connection up."""
    dialect = connection.dialect
    try:
        yield
    except dialect.loaded_dbapi.Error as error:
        is_lost = dialect.is_disconnect(error, connection.connection.driver_connection, None)
        if is_lost:
            connection.invalidate(error)
        raise DBAPIError.instance(
            None,
            None,
            error,
            dialect.loaded_dbapi.Error,
            connection_invalidated=is_lost,
            dialect=dialect,
        ) from error


class _Compiled:
    """A statement in the SQL of one dialect, and what converts its values."""

    def __init__(self, definition: _Definition, dialect: Dialect) -> None:
        compiled: Any = definition.compile(dialect=dialect)
        self.text = str(compiled)
        self._names = list(compiled.positiontup)
        self._fixed = {
            name: value
            for name, value in compiled.params.items()
            if not compiled.binds[name].required
        }
        types = [compiled.binds[name].type.dialect_impl(dialect) for name in self._names]
        self.binders = _places(kind.bind_processor(dialect) for kind in types)
        columns = definition.exported_columns
        self._types = [column.type.dialect_impl(dialect) for column in columns]
        self._row: Any = namedtuple("Row", map(str, columns.keys()))  # type: ignore[misc]
        self._readers: _Converters | None = None  # known after the first result

    def execute(self, connection: Connection, values: Mapping[str, Any]) -> list[Row]:
        values = {**self._fixed, **values}
        bound = _converted(self.binders, [values[name] for name in self._names])
        with driver_errors(connection):
            cursor = connection.info["cursor"]
            cursor.execute(self.text, bound)
            rows = cursor.fetchall() if self._types else []
        if rows and self._readers is None:
            self._readers = _places(
                kind.result_processor(connection.dialect, column[1])
                for kind, column in zip(self._types, cursor.description, strict=True)
            )
        return [self._row._make(_converted(self._readers or (), [*row])) for row in rows]


_compiled: LRUCache[tuple[_Definition, str], _Compiled] = LRUCache(512)


def _places(converters: Iterable[_Convert | None]) -> _Converters:
    """Return the positions in a row that need a conversion, with their converters."""
    return [(place, convert) for place, convert in enumerate(converters) if convert]


def _converted(converters: _Converters, values: list[Any]) -> list[Any]:
    """Convert the values of a row in place, and return them."""
    for place, convert in converters:
        values[place] = convert(values[place])
    return values


def insert_many(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows with the same columns; on Postgres by COPY, in a third of the time of INSERTs.
    Raises ``DBAPIError``."""
    if not rows:
        return
    columns = tuple(column.name for column in table.c if column.name in rows[0])
    dialect = connection.dialect
    compiled = _compile(_write_statement((_Shape(table, columns),)), dialect)
    converted = [_converted(compiled.binders, [row[name] for name in columns]) for row in rows]
    with driver_errors(connection):
        cursor = connection.info["cursor"]
        if dialect.name == "sqlite":
            cursor.executemany(compiled.text, converted)
            return
        into, *names = map(dialect.identifier_preparer.quote, (table.name, *columns))
        with cursor.copy(f"COPY {into} ({', '.join(names)}) FROM STDIN") as copy:
            for row in converted:
                copy.write_row(row)


class Writes:
    """Rows to insert and rows to change, written together: none sees the effect of another."""

    def __init__(self) -> None:
        self._shapes: list[_Shape] = []
        self._values: list[list[Any]] = []

    def insert(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows. Neighbours with the same columns go into one INSERT."""
        for columns, alike in groupby(rows, tuple):
            left = list(alike)
            while left:
                batch, left = left[:_ROWS_PER_INSERT], left[_ROWS_PER_INSERT:]
                self._shapes.append(_Shape(table, columns, rows=len(batch)))
                self._values.append([value for row in batch for value in row.values()])

    def change(self, table: Table, changes: Mapping[str, Any], **key: Any) -> None:
        self._shapes.append(_Shape(table, tuple(changes), key=tuple(key)))
        self._values.append([*key.values(), *changes.values()])

    def run(self, connection: Connection) -> None:
        """Write them. Raises ``DBAPIError``."""
        # One statement costs Postgres one round trip. SQLite has no WITH … INSERT.
        together = 1 if connection.dialect.name == "sqlite" else _WRITES_PER_STATEMENT
        for start in range(0, len(self._shapes), together):
            part = slice(start, start + together)
            values = chain.from_iterable(self._values[part])
            execute(connection, _write_statement(tuple(self._shapes[part])), _numbered(values))

    def run_if(
        self,
        connection: Connection,
        table: Table,
        changes: Mapping[str, Any],
        same: Mapping[str, Any],
        condition: ColumnElement[bool],
        values: Mapping[str, Any],
    ) -> bool:
        """Change the row that has the values of ``same`` and meets the condition, and run the collected
        writes only then, in one statement on Postgres. Returns False, with nothing written, if no such
        row is left. Raises ``DBAPIError``.

        Args:
            condition: always the same object for one caller, because statements are cached by it.
            values: the parameters of the condition.
        """
        if len(self._shapes) >= _WRITES_PER_STATEMENT:
            return False
        row = _Shape(table, tuple(changes), key=tuple(same))
        numbered = _numbered(chain(same.values(), changes.values(), *self._values))
        statement = _guarded(row, condition, tuple(self._shapes))
        return bool(execute(connection, statement, {**numbered, **values}))


def _numbered(values: Iterable[Any]) -> dict[str, Any]:
    return {f"value_{number}": value for number, value in enumerate(values)}


class _Shape(NamedTuple):
    """One of the writes, without its values."""

    table: Table
    columns: tuple[str, ...]
    key: tuple[str, ...] = ()  # the columns that name the row to change; none to insert
    rows: int = 1  # how many are inserted

    def definition(
        self, numbers: Iterator[int], only_if: ColumnElement[bool] | None = None
    ) -> Insert | Update:
        column = self.table.c

        def bind(name: str) -> BindParameter[Any]:
            return bindparam(f"value_{next(numbers)}", type_=column[name].type)

        if self.key:
            same = [column[name] == bind(name) for name in self.key]
            new = {name: bind(name) for name in self.columns}
            changed = update(self.table).where(*same).values(new)
            return changed if only_if is None else changed.where(only_if)
        if only_if is None:
            rows = [{name: bind(name) for name in self.columns} for _ in range(self.rows)]
            return insert(self.table).values(rows)
        typed = ([cast(bind(n), column[n].type) for n in self.columns] for _ in range(self.rows))
        found = union_all(*(select(*row).where(only_if) for row in typed))
        return insert(self.table).from_select(self.columns, found)


@lru_cache(maxsize=256)
def _write_statement(shapes: tuple[_Shape, ...]) -> Insert | Update:
    """One statement for all shapes, with parameters numbered in the order of the values
    (https://www.postgresql.org/docs/current/queries-with.html#QUERIES-WITH-MODIFYING)."""
    numbers = count()
    *others, last = (shape.definition(numbers) for shape in shapes)
    return last.add_cte(*(one.cte(f"write_{number}") for number, one in enumerate(others)))


@lru_cache(maxsize=256)
def _guarded(
    row: _Shape, condition: ColumnElement[bool], shapes: tuple[_Shape, ...]
) -> Select[Any]:
    """One statement that changes a row under a condition and, if it did, runs the other writes. These read
    the rows that the change returns, so the row is locked before any of them."""
    numbers = count()
    there = literal_column("1", Integer).label("there")
    changed = row.definition(numbers, condition).returning(there).cte("changed")
    is_changed = exists(select(changed.c.there))
    writes = (shape.definition(numbers, is_changed) for shape in shapes)
    named = (one.cte(f"write_{number}") for number, one in enumerate(writes))
    return select(changed.c.there).add_cte(*named)


def insert_or(connection: Connection, table: Table) -> Any:
    """Return an INSERT that can be told what to do on a conflict."""
    # Late, as they import every driver: most commands on SQLite start without them.
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as insert_into
    else:
        from sqlalchemy.dialects.postgresql import insert as insert_into  # type: ignore[assignment]
    return insert_into(table)

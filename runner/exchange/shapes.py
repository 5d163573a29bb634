"""What a row of a table looks like in a file: which columns it has, and what each may hold."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["text", "integer", "long", "real", "boolean", "json", "bytes"]

NO_DEFAULT = object()
_MOST_REAL = 1e11  # a time in the year 5138; what is larger is no time, duration or amount
# SQLite keeps a JSON number that stands alone as a number, and so a whole one without its ".0".
_WHOLE_BELOW = 2**53
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Column:
    """A column. ``integer`` has 32 bits and ``long`` 64, ``bytes`` is base64 in a file. ``default`` is
    what a row has that does not name the column, ``least`` and ``most`` are of the whole numbers that it
    may hold."""

    name: str
    kind: Kind
    nullable: bool = False
    default: Any = NO_DEFAULT
    least: int = 0
    most: int = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Shape:
    """A table's columns in order. ``key`` names those that its rows are sorted by; empty: they keep
    the order that they have in the file."""

    table: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def to_file(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of the database as it stands in a file."""
        return {column.name: _to_file(column, row[column.name]) for column in self.columns}

    def from_file(self, row: Any) -> dict[str, Any]:
        """A row as the database takes it.

        Raises:
            ValueError: what is wrong with which column.
        """
        if not isinstance(row, dict):
            raise ValueError(f"a row of {self.table} is an object")
        unknown = row.keys() - {column.name for column in self.columns}
        if unknown:
            raise ValueError(
                f"{self.table} has no column {min(unknown)[:_LONGEST_NAME]!a}: the file may be of a "
                "newer Runner"
            )
        return {column.name: self._value(column, row) for column in self.columns}

    def _value(self, column: Column, row: Mapping[str, Any]) -> Any:
        if column.name not in row:
            if column.default is not NO_DEFAULT:
                return column.default
            raise ValueError(f"{self.table}.{column.name} is missing")
        value = row[column.name]
        if column.kind == "json":
            return value
        if value is None:
            if column.nullable:
                return None
            raise ValueError(f"{self.table}.{column.name} is null")
        try:
            return _from_file(column, value)
        except ValueError as error:
            raise ValueError(f"{self.table}.{column.name} {error}") from error


def _to_file(column: Column, value: Any) -> Any:
    if column.kind == "bytes" and value is not None:
        return base64.b64encode(value).decode("ascii")
    if column.kind == "json" and isinstance(value, float) and abs(value) < _WHOLE_BELOW:
        return int(value) if value.is_integer() else value
    return value


def _from_file(column: Column, value: Any) -> Any:
    match column.kind:
        case "text":
            return _text(value)
        case "integer" | "long":
            if type(value) is not int or not column.least <= value <= column.most:
                raise ValueError(f"is no whole number from {column.least} to {column.most}")
            return value
        case "real":
            if type(value) not in (int, float) or not 0 <= value <= _MOST_REAL:
                raise ValueError(f"is no number from 0 to {_MOST_REAL:g}")
            return float(value)
        case "boolean":
            if type(value) is not bool:
                raise ValueError("is neither true nor false")
            return value
        case _:
            return _bytes(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("is no text")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise ValueError("has a character that no database can hold") from error
    if "\0" in value:
        raise ValueError("has a character that no database can hold")
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, str):
        raise ValueError("is no base64")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("is no base64") from error

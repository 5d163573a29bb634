"""Rows that answer a question: what queries return, as tables, records or data frames."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from runner.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


# ``time`` is seconds since the epoch, ``seconds`` a duration, ``usd`` an amount of money.
Kind = Literal["text", "integer", "real", "boolean", "time", "seconds", "usd", "json"]


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: Kind = "text"


def columns(text: str) -> tuple[Column, ...]:
    """Columns from their names and kinds: ``"run_id at:time"``. A name without a kind is text."""
    return tuple(Column(*each.split(":")) for each in text.split())  # type: ignore[arg-type]


# The types of pandas and polars; the other kinds are numbers with a fraction.
_TYPES: dict[Kind, tuple[str, str]] = {
    "text": ("object", "String"),
    "json": ("object", "String"),
    "integer": ("Int64", "Int64"),
    "boolean": ("boolean", "Boolean"),
    "time": ("datetime64[us, UTC]", "Int64"),
}
_REAL = ("float64", "Float64")
# The years 1 to 9999, which every kind of datetime has.
_FIRST_SECOND, _SECOND_AFTER_LAST = -62_135_596_800, 253_402_300_800


class Rows:
    """Rows of one shape, each as long as ``columns``. Iterating gives each as a mapping of column names to
    values, once; ``pandas`` and ``polars`` read them all, too. ``note`` is what the reader must know, such
    as that rows were cut off, or empty."""

    def __init__(
        self, columns: Sequence[Column], rows: Iterable[Sequence[Any]], note: str = ""
    ) -> None:
        self.columns = tuple(columns)
        self.note = note
        self._rows = iter(rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        names = tuple(column.name for column in self.columns)
        for row in self._rows:
            yield dict(zip(names, row, strict=True))

    def pandas(self) -> pd.DataFrame:
        """A ``pandas.DataFrame``: times are UTC timestamps, JSON is text. A column named like a time
        stays numbers if one of them is not a time (SQL can compute any), in ``polars`` too. Raises
        ``UsageError`` if pandas is not installed."""
        library = _library("pandas")
        found = {
            column.name: library.Series(values, dtype=_TYPES.get(column.kind, _REAL)[0])
            for column, values in self._by_column()
        }
        frame: pd.DataFrame = library.DataFrame(found)
        return frame

    def polars(self) -> pl.DataFrame:
        """A ``polars.DataFrame``: times are UTC, JSON is text. Raises ``UsageError``."""
        library = _library("polars")
        found = dict(self._by_column())
        schema = {each.name: getattr(library, _TYPES.get(each.kind, _REAL)[1]) for each in found}
        by_name = {column.name: values for column, values in found.items()}
        frame: pl.DataFrame = library.DataFrame(by_name, schema=schema, strict=False)
        times = [library.col(column.name) for column in found if column.kind == "time"]
        return frame.with_columns(time.cast(library.Datetime("us", "UTC")) for time in times)

    def _by_column(self) -> Iterator[tuple[Column, list[Any]]]:
        """The values of each column; times in microseconds."""
        rows = list(self)
        for column in self.columns:
            convert = _CONVERT.get(column.kind, float)
            given = (row[column.name] for row in rows)
            values = [None if value is None else convert(value) for value in given]
            if column.kind != "time":
                yield column, values
            elif all(v is None or _FIRST_SECOND <= v < _SECOND_AFTER_LAST for v in values):
                yield column, [None if v is None else round(v * 1_000_000) for v in values]
            else:
                yield Column(column.name, "real"), values


def _storable(text: str) -> str:
    """Text that UTF-8 can encode: half of a surrogate pair becomes ``\\ud83d``."""
    return text.encode("utf-8", "backslashreplace").decode()


# A text column may hold numbers, because SQLite's may.
_CONVERT: dict[Kind, Callable[[Any], Any]] = {
    "text": lambda value: _storable(str(value)),
    "json": lambda value: _storable(json.dumps(value, ensure_ascii=False)),
    "boolean": bool,
    "integer": int,
}


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        how = f"`pip install {name}`, or iterate over the rows"
        raise UsageError(f"{name} is not installed: {how}") from error

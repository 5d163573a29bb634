"""Rows that answer a question: what queries return, as tables, records or data frames."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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


_PANDAS_TYPES = {
    "text": "object",
    "integer": "Int64",
    "real": "float64",
    "boolean": "boolean",
    "time": "datetime64[us, UTC]",
    "seconds": "float64",
    "usd": "float64",
    "json": "object",
}
# The years 1 to 9999, which every kind of datetime has.
_FIRST_SECOND, _SECOND_AFTER_LAST = -62_135_596_800, 253_402_300_800


class Rows:
    """Rows of one shape. Iterating gives each as a mapping of column names to values, once; ``pandas``
    and ``polars`` read them all, too.

    Args:
        columns: what each row holds, in order.
        rows: the values, each row as long as ``columns``.
        note: what the reader must know, such as that rows were cut off; empty for nothing.
    """

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
        stays numbers if one of them is not a time (SQL can compute any), in ``polars`` too.

        Raises:
            UsageError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise _missing("pandas") from error
        return pd.DataFrame(
            {
                column.name: pd.Series(values, dtype=_PANDAS_TYPES[column.kind])
                for column, values in self._by_column()
            }
        )

    def polars(self) -> pl.DataFrame:
        """A ``polars.DataFrame``: times are UTC, JSON is text.

        Raises:
            UsageError: polars is not installed.
        """
        try:
            import polars as pl
        except ImportError as error:
            raise _missing("polars") from error
        types: dict[str, Any] = {
            "text": pl.String,
            "integer": pl.Int64,
            "boolean": pl.Boolean,
            "json": pl.String,
            "time": pl.Int64,
        }
        columns = list(self._by_column())
        schema = {column.name: types.get(column.kind, pl.Float64) for column, _ in columns}
        values = {column.name: values for column, values in columns}
        frame = pl.DataFrame(values, schema=schema, strict=False)
        times = [column.name for column, _ in columns if column.kind == "time"]
        return frame.with_columns(pl.col(name).cast(pl.Datetime("us", "UTC")) for name in times)

    def _by_column(self) -> Iterator[tuple[Column, list[Any]]]:
        """The values of each column; times in microseconds."""
        rows = list(self)
        for column in self.columns:
            values = [_plain(column, row[column.name]) for row in rows]
            if column.kind != "time":
                yield column, values
            elif all(v is None or _FIRST_SECOND <= v < _SECOND_AFTER_LAST for v in values):
                yield column, [None if v is None else round(v * 1_000_000) for v in values]
            else:
                yield Column(column.name, "real"), values


def _plain(column: Column, value: Any) -> Any:
    """The value in its column's type. A text column may hold numbers, because SQLite's may."""
    if value is None:
        return None
    match column.kind:
        case "json":
            return _storable(json.dumps(value, ensure_ascii=False))
        case "text":
            return _storable(str(value))
        case "boolean":
            return bool(value)
        case "integer":
            return int(value)
        case _:
            return float(value)


def _storable(text: str) -> str:
    """Text that UTF-8 can encode: half of a surrogate pair becomes ``\\ud83d``."""
    return text.encode("utf-8", "backslashreplace").decode()


def _missing(library: str) -> UsageError:
    return UsageError(
        f"{library} is not installed: `pip install {library}`, or iterate over the rows"
    )

"""Rows that answer a question: what queries return, as tables, records or data frames."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from runner.errors import UsageError
from runner.queries.find import Call, call_labels
from runner.store import ids
from runner.store.database import Database

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


# ``time`` is seconds since the epoch, ``seconds`` a duration, ``usd`` an amount of money.
Kind = Literal["text", "integer", "real", "boolean", "time", "seconds", "usd", "json"]


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: Kind = "text"


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
        note: what the reader must know of the whole, as that it was cut; empty for nothing.
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
        """A ``pandas.DataFrame``: times are UTC timestamps, JSON is text. A column that is named like a
        time and has a number that is none (SQL can compute any) stays numbers, in ``polars`` too.

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
        """The values of each column, those of times as microseconds."""
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
    """A value as one of its column's type: a column of texts may hold numbers, as SQLite's may."""
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
    """A text that UTF-8 can carry: half of a surrogate pair is written as ``\\ud83d``."""
    return text.encode("utf-8", "backslashreplace").decode()


def _missing(library: str) -> UsageError:
    return UsageError(
        f"{library} is not installed: `pip install {library}`, or iterate over the rows"
    )


def at_most(limit: int | None) -> int | None:
    """How many rows to look for, to know whether there are more than ``limit``."""
    return None if limit is None else limit + 1


def cut(
    columns: Sequence[Column], found: Sequence[Sequence[Any]], limit: int | None, which: str
) -> Rows:
    """The first ``limit`` of the rows that were found, and a note where there are more.

    Args:
        which: the ones that are given: "the newest".
    """
    if limit is None or len(found) <= limit:
        return Rows(columns, found)
    note = f"only {which} {limit:,}: there are more (--limit 0 gives all)"
    return Rows(columns, found[:limit], note)


def labelled(database: Database, answer: Rows) -> Rows:
    """The same rows of calls, with what each call is called in its tree (``label``) after its id."""
    names = [column.name for column in answer.columns]
    at = names.index("call_id")
    rows = [tuple(row.values()) for row in answer]
    calls = [_call_key(row[at]) for row in rows]
    run_ids = {call[0] for call in calls if call is not None}
    labels = database.read(lambda connection: call_labels(connection, run_ids))
    return Rows(
        (*answer.columns[: at + 1], Column("label"), *answer.columns[at + 1 :]),
        [
            (*row[: at + 1], None if call is None else labels.get(call), *row[at + 1 :])
            for row, call in zip(rows, calls, strict=True)
        ],
        answer.note,
    )


def _call_key(call_id: str | None) -> Call | None:
    return None if call_id is None else ids.parse_call_id(call_id)

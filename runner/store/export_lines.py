"""Runner's own export format: a file of lines, each a JSON object.

    {"runner_export": 2, "job": "job_…", "run": null}     the header: a whole job, or one run of it
    {"table": "jobs", "row": {…}}                         the rows of the job, then of each run
    {"end": {"rows": 2731, "sha256": "…"}}                the digest of all bytes before this line

The same rows give the same bytes. A file without its last line was cut off.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import IO, Any, NamedTuple

from sqlalchemy import JSON, BigInteger, Column, Table

from runner.core.text import LONGEST_LINE, is_storable, json_line, read_json_line
from runner.core.times import MOST_REAL

VERSION = 2
_BEFORE_0_1_0 = 1


def file_lines(job_id: str, run_id: str | None, rows: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file with these rows from ``TableFormat.line``: an export of a run with
    its source runs, or (None) of the whole job."""
    digest, count = hashlib.sha256(), 0
    header = json_line({"runner_export": VERSION, "job": job_id, "run": run_id})
    for count, line in enumerate(chain((header,), rows)):  # noqa: B007 - used after the loop
        digest.update(line)
        yield line
    yield json_line({"end": {"rows": count, "sha256": digest.hexdigest()}})


class Reader:
    """Reads a file: the header at once, then its rows. ``number`` is the last line read; raises
    ``ValueError`` with its problem."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._next = self.number = 0
        header = self._value()
        if not (isinstance(header, dict) and "runner_export" in header):
            raise ValueError("it is not the first line of an export of Runner's")
        version = header["runner_export"]
        if version == _BEFORE_0_1_0:
            raise ValueError(
                "an export of Runner before 0.1.0: read it with the Runner that wrote it, or submit "
                "its job again here"
            )
        if version != VERSION:
            raise ValueError(
                f"it is of an export of version {str(version)[:20]!a}, this Runner knows {VERSION}: "
                "install a newer one"
            )
        job_id, self.run_id = header.get("job"), header.get("run")
        if not isinstance(job_id, str) or not isinstance(self.run_id, str | None):
            raise ValueError("it does not say what it is an export of")
        self.job_id = job_id

    def rows(self) -> Iterator[tuple[int, str, Any]]:
        """Yield unchecked rows in order, with offset and table; then check the last line."""
        count = 0
        while True:
            digest, start = self._digest.hexdigest(), self._next
            value = self._value()
            if not (isinstance(value, dict) and value.keys() == {"table", "row"}):
                break
            if not isinstance(value["table"], str):
                raise ValueError("names no table")
            count += 1
            yield start, value["table"], value["row"]
        if not (isinstance(value, dict) and value.keys() == {"end"}):
            raise ValueError("it is neither a row nor the end of an export")
        if value["end"] != {"rows": count, "sha256": digest}:
            raise ValueError(
                "it does not fit what is before it: the file was changed or damaged (export it anew)"
            )
        if self._file.read(1):
            self.number += 1
            raise ValueError("it comes after the end of the export")

    def _value(self) -> Any:
        self.number += 1
        line = self._file.readline(LONGEST_LINE + 1)
        if len(line) <= LONGEST_LINE and not line.endswith(b"\n"):
            raise ValueError("it is missing or cut off: the export is not whole")
        self._digest.update(line)
        self._next += len(line)
        return read_json_line(line)


_MISSING = object()
_LONGEST_NAME = 60
# Sums over many rows must stay within 64 bits: tokens and sizes, and the billionths of a USD of a job.
_MOST_TOKENS = 2**50
_MOST = {"purses": 2**60}
# Other numbers are not negative. An exit code is, for a signal.
_LEAST = {"hook_runs.exit_code": -(2**31)}


class _Column(NamedTuple):
    name: str
    kind: type  # of a value in Python; ``dict`` is any JSON, ``bytes`` is base64 in the file
    nullable: bool
    default: Any  # in rows of an older Runner, which do not have the column
    least: int  # of whole numbers
    most: int

    @classmethod
    def of(cls, column: Column[Any]) -> _Column:
        kind = dict if isinstance(column.type, JSON) else column.type.python_type
        default: Any = None if column.nullable else _MISSING
        if column.server_default is not None:
            text = str(column.server_default.arg)  # type: ignore[attr-defined]  # a plain value
            default = kind(int(text)) if kind in (int, bool) else text
        is_long = isinstance(column.type, BigInteger)
        most = _MOST.get(column.table.name, _MOST_TOKENS) if is_long else 2**31 - 1
        least = _LEAST.get(str(column), 0)
        return cls(column.name, kind, bool(column.nullable), default, least, most)

    def to_file(self, value: Any) -> Any:
        if self.kind is bytes and value is not None:
            return base64.b64encode(value).decode("ascii")
        if self.kind is dict and type(value) in (int, float):
            return _as_sqlite_has_it(value)
        return value

    def from_file(self, value: Any) -> Any:
        """Return a value as the database takes it. Raises ``ValueError``."""
        kind = self.kind
        if value is _MISSING:
            raise ValueError("is missing")
        if kind is dict and isinstance(value, int) and abs(value) > sys.float_info.max:
            raise ValueError("is a number that is too large for a database")
        if kind is dict or (value is None and self.nullable):
            return value
        if value is None:
            raise ValueError("is null")
        if kind is int and (type(value) is not int or not self.least <= value <= self.most):
            raise ValueError(f"is no whole number from {self.least} to {self.most}")
        if kind is bool and type(value) is not bool:
            raise ValueError("is neither true nor false")
        if kind is float:
            if type(value) not in (int, float) or not 0 <= value <= MOST_REAL:
                raise ValueError(f"is no number from 0 to {MOST_REAL:g}")
            return float(value)
        if kind in (str, bytes) and not isinstance(value, str):
            raise ValueError("is no text" if kind is str else "is no base64")
        if kind is str and not is_storable(value):
            raise ValueError("has a character that no database can hold")
        if kind is bytes:
            try:
                return base64.b64decode(value, validate=True)
            except ValueError as error:  # characters beyond ASCII, or binascii.Error
                raise ValueError("is no base64") from error
        return value


def _as_sqlite_has_it(number: float) -> float:
    """Return a JSON number that stands alone as SQLite has it, which makes it a 64-bit integer if it
    can, else a double. So another database exports the same bytes."""
    if isinstance(number, int):
        is_long = -(2**63) <= number < 2**63 or abs(number) > sys.float_info.max
        return number if is_long else int(float(number))
    return int(number) if number.is_integer() else number


class TableFormat:
    """Writes the rows of a table to a file and reads them, by the types of its columns."""

    def __init__(self, table: Table) -> None:
        # A database numbers some rows itself; those keep the order that they have in the file.
        numbered = {column for column in table.c if column.autoincrement is True}
        self.table = table
        self.name = table.name
        # The columns that order the rows; empty for rows that the database numbers.
        self.key = () if numbered else tuple(column.name for column in table.primary_key)
        self._columns = tuple(_Column.of(each) for each in table.c if each not in numbered)

    def line(self, row: Mapping[str, Any]) -> bytes:
        """Return a row of the database as a line."""
        values = {column.name: column.to_file(row[column.name]) for column in self._columns}
        return json_line({"table": self.name, "row": values})

    def row(self, values: Any) -> dict[str, Any]:
        """Return a file's row for the database. Raises ``ValueError`` with column and problem."""
        if not isinstance(values, dict):
            raise ValueError(f"a row of {self.name} is an object")
        if unknown := values.keys() - {column.name for column in self._columns}:
            raise ValueError(
                f"{self.name} has no column {min(unknown)[:_LONGEST_NAME]!a}: the file may be of a "
                "newer Runner"
            )
        row = {}
        for column in self._columns:
            try:
                row[column.name] = column.from_file(values.get(column.name, column.default))
            except ValueError as error:
                raise ValueError(f"{self.name}.{column.name} {error}") from error
        return row

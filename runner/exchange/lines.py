"""Runner's own export: a file of lines, each a JSON object.

    {"runner_export": 1, "job": "job_…", "run": null}     what it is of: a job, or one run of it
    {"table": "jobs", "row": {…}}                         a section for the job, then one for each run
    {"end": {"rows": 2731, "sha256": "…"}}                the digest of all bytes before this line

The same rows give the same bytes. A file without its end was cut off.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from runner.core.text import DEEPEST, read_json

VERSION = 1
LONGEST_LINE = 256 * 1024 * 1024  # bytes; a tool's whole output is at most 10 MB
# What a line holds may have come as JSON that was as deep as can be, and lies in other objects here.
_DEEPEST_LINE = DEEPEST + 20
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Header:
    """What a file is of: a job, or of that job one run and those that it came from."""

    job_id: str
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a table, as the file has it. ``start`` is where its line begins, in bytes."""

    number: int
    start: int
    table: str
    row: Any


def encoded(value: Any) -> bytes:
    """A value as one line of JSON. ASCII only: no terminal obeys what is in it, and half a surrogate
    pair is no obstacle."""
    return _ENCODER.encode(value).encode("ascii") + b"\n"


def encoded_row(table: str, row: Mapping[str, Any]) -> bytes:
    """A row, as its shape gives it for a file, as a line."""
    return encoded({"table": table, "row": row})


class Writing:
    """Writes the lines of a file.

    Args:
        write: takes bytes, in order.
    """

    def __init__(self, write: Callable[[bytes], object], header: Header) -> None:
        self._write = write
        self._digest = hashlib.sha256()
        self.rows = 0
        self._put(
            encoded({"runner_export": VERSION, "job": header.job_id, "run": header.run_id}),
        )

    def row(self, table: str, row: Mapping[str, Any]) -> None:
        """Add a row."""
        self.rows += 1
        self._put(encoded_row(table, row))

    def end(self) -> None:
        """Add the last line."""
        self._write(encoded({"end": {"rows": self.rows, "sha256": self._digest.hexdigest()}}))

    def _put(self, line: bytes) -> None:
        self._digest.update(line)
        self._write(line)


def is_export(first_line: bytes) -> bool:
    """Whether a file that begins so is one of these."""
    try:
        value = read_json(first_line.decode("utf-8"))
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "runner_export" in value


class Reading:
    """Reads a file: its header at once, then its rows, then that its end is right.

    Raises:
        ValueError: what is wrong; ``number`` is the line.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._next = 0
        self.number = 0
        self.header = _header(self._value(self._line()))

    def rows(self) -> Iterator[Line]:
        """The rows in order."""
        count = 0
        while True:
            digest, start = self._digest.hexdigest(), self._next
            value = self._value(self._line())
            if isinstance(value, dict) and value.keys() == {"table", "row"}:
                count += 1
                yield Line(self.number, start, _name(value["table"]), value["row"])
                continue
            if not (isinstance(value, dict) and value.keys() == {"end"}):
                raise ValueError("it is neither a row nor the end of an export")
            if value["end"] != {"rows": count, "sha256": digest}:
                raise ValueError(
                    "it does not fit what is before it: the file was changed or damaged (export it anew)"
                )
            break
        if self._file.read(1):
            self.number += 1
            raise ValueError("it comes after the end of the export")

    def _line(self) -> bytes:
        self.number += 1
        line = self._file.readline(LONGEST_LINE + 1)
        if len(line) > LONGEST_LINE:
            raise ValueError(f"it is longer than {LONGEST_LINE:,} bytes")
        if not line.endswith(b"\n"):
            raise ValueError("it is missing or cut off: the export is not whole")
        self._digest.update(line)
        self._next += len(line)
        return line

    def _value(self, line: bytes) -> Any:
        return parsed(line)


def parsed(line: bytes) -> Any:
    """The value of a line of JSON. Raises ``ValueError``."""
    try:
        return read_json(line.decode("utf-8"), _DEEPEST_LINE)
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error})") from error


def _header(value: Any) -> Header:
    if not (isinstance(value, dict) and "runner_export" in value):
        raise ValueError("it is not the first line of an export of Runner's")
    if value["runner_export"] != VERSION:
        raise ValueError(
            f"it is of an export of version {str(value['runner_export'])[:20]!a}, this Runner knows "
            f"{VERSION}: install a newer one"
        )
    job_id, run_id = value.get("job"), value.get("run")
    if not isinstance(job_id, str) or not (run_id is None or isinstance(run_id, str)):
        raise ValueError("it does not say what it is an export of")
    return Header(job_id, run_id)


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("names no table")
    return value

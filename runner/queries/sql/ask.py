"""Asks a question in SQL, in a process of its own that is limited in what it can do.

A question changes nothing because of where it runs, not because of how its text looks: see ``child``,
``sqlite``, ``postgres`` and ``login``. A question that takes too long or too much memory is killed with
its process, wherever in the database's code it is.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from sqlalchemy import Connection, delete, insert, select, text

from runner.core.prices import Price, PriceList
from runner.core.text import visible
from runner.errors import RunnerError, UsageError
from runner.queries.rows import Column, Kind, Rows
from runner.queries.sql.views import VIEWS
from runner.store.database import Database
from runner.store.tables import prices as price_table

_CODE_ROOT = str(Path(__file__).parents[3])
_CHILD = "runner.queries.sql.child"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a question may take."""

    seconds: float = 30.0
    rows: int | None = None  # None: all; a note says when rows are left out
    answer_bytes: int = 256 << 20  # roughly
    memory_bytes: int = 1 << 30  # of its process; enforced on Linux


def ask(database: Database, sql: str, bounds: Bounds, role: str | None = None) -> Rows:
    """Ask one question, a SELECT over the views of docs/audit.md or any other table.

    Args:
        role: on Postgres, the role whose rights the question has. None: ``pg_read_all_data`` where the
            user may create a login with it, else the user's own rights.

    Returns:
        The whole answer. Values are numbers, text or None: booleans are 1 or 0, and bytes are text in
        base 16, on both databases.

    Raises:
        UsageError: it is no question, or the database cannot answer it; what is wrong, in one line.
        RunnerError: it took too long, or too much memory.
    """
    request = {"sql": sql, "role": role, **asdict(bounds)}
    if database.dialect == "sqlite":
        if role is not None:
            raise UsageError("SQLite has no roles: leave --role out")
        path = str(Path(str(database.url.database)).absolute())
        return _ask({**request, "sqlite": path}, bounds)
    from runner.queries.sql.login import login_for_question

    _, given = database.reader.dialect.create_connect_args(database.url)
    arguments = {name: value for name, value in given.items() if isinstance(value, str | int)}
    with login_for_question(arguments, role, bounds.seconds) as (login, rights):
        named = {"role": rights, "any_function": role is not None}
        return _ask({**request, "postgres": login, **named}, bounds)


def _ask(request: dict[str, Any], bounds: Bounds) -> Rows:
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-c"),
            f"import sys; sys.path.append(sys.argv.pop(1)); from {_CHILD} import main; main()",
            _CODE_ROOT,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        _tell(process.stdin, request)
        answer = _Answer(process.stdout)
    finally:
        process.kill()  # it has answered, or nobody listens any more
        process.stdout.close()
        process.wait()
    if answer.error is not None:
        kind = UsageError if answer.is_usage else RunnerError
        raise kind(answer.error)
    if not answer.is_whole:
        raise RunnerError(_why_it_ended(process.returncode, bounds))
    return answer.rows(bounds)


def _tell(stream: IO[bytes], request: dict[str, Any]) -> None:
    """Send the request on stdin: it may hold a password, and every user can see arguments."""
    try:
        with stream:
            stream.write(json.dumps(request).encode())
    except BrokenPipeError:
        return  # it has ended, and its answer or exit code tells why


class _Answer:
    """The answer of the process: a line with the columns' names, one for each row, and one at the end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.error: str | None = None
        self.is_usage = False
        self.is_whole = False
        self._names: list[str] = []
        self._is_cut = False
        self._rows: list[list[Any]] = list(self._read(stream))

    def _read(self, stream: IO[bytes]) -> Iterator[list[Any]]:
        for line in stream:
            said = json.loads(line) if line.endswith(b"\n") else {}
            if isinstance(said, list):
                yield said
                continue
            self._names = said.get("columns", self._names)
            if "error" in said:
                self.error, self.is_usage = said["error"], said["usage"]
            if "cut" in said:
                self.is_whole, self._is_cut = True, said["cut"]

    def rows(self, bounds: Bounds) -> Rows:
        names = _distinct(self._names)
        columns = [
            Column(name, kind)
            for name, kind in zip(names, kinds_of(self._names, self._rows), strict=True)
        ]
        note = f"only the first {bounds.rows:,} rows: there are more" if self._is_cut else ""
        return Rows(columns, self._rows, note)


def _distinct(names: list[str]) -> list[str]:
    """Unique names without control characters: a second ``id`` becomes ``id_2``."""
    found: list[str] = []
    for name in map(visible, names):
        number, new = 1, name
        while new in found:
            number += 1
            new = f"{name}_{number}"
        found.append(new)
    return found


def _why_it_ended(code: int, bounds: Bounds) -> str:
    if code == -signal.SIGALRM:
        return (
            f"the question took longer than {bounds.seconds:g} s and was stopped: narrow it (by run_id, "
            "job_id or time), or give it more with --timeout"
        )
    return (
        f"the question was stopped (exit {code}): it may have needed more memory than the "
        f"{bounds.memory_bytes >> 20} MiB that it may have; narrow it"
    )


_NUMBERS: tuple[Kind, ...] = ("time", "seconds", "usd")
# Columns of views, by name: a name is of one kind wherever it is.
_KNOWN: dict[str, Kind] = {
    column.name: column.kind for view in VIEWS for column in view.columns if column.kind in _NUMBERS
}


def kinds_of(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[Kind]:
    """The kinds of the columns: of times, durations and costs by the names in the views, of others by
    their values."""
    return [_kind(name, (row[at] for row in rows)) for at, name in enumerate(names)]


def _kind(name: str, values: Iterable[Any]) -> Kind:
    types = {type(value) for value in values if value is not None}
    if types - {int, float}:
        return "text"
    if name in _KNOWN:
        return _KNOWN[name]
    if float in types:
        return "real"
    return "integer" if types else "text"


def store_prices(database: Database, prices: PriceList) -> None:
    """Store the price list that ``v_costs`` multiplies with, if it has changed."""
    rows = [
        row for model, price in prices.models.items() for row in _price_rows(prices, model, price)
    ]

    def is_kept(connection: Connection) -> bool:
        found = [dict(row) for row in connection.execute(select(price_table)).mappings()]
        return sorted(found, key=_price_key) == sorted(rows, key=_price_key)

    def write(connection: Connection) -> None:
        if database.dialect == "postgresql":  # wait for another process that is writing
            connection.execute(text("LOCK TABLE prices IN SHARE ROW EXCLUSIVE MODE"))
        connection.execute(delete(price_table))
        if rows:
            connection.execute(insert(price_table), rows)

    if not database.read(is_kept):
        database.write(write)


def _price_key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["model"], row["fast"], row["above"]


def _price_rows(prices: PriceList, model: str, price: Price) -> Iterator[dict[str, Any]]:
    """The same choice as ``PriceList.rates``: fast mode has one price for prompts of any length."""
    long_above = price.long_above if price.long is not None else None
    for rates, fast, above, up_to in (
        (price.standard, 0, -1, long_above),
        (price.long, 0, price.long_above, None),
        (price.fast, 1, -1, None),
    ):
        if rates is not None:
            yield {
                "model": model,
                "fast": fast,
                "above": above,
                "up_to": up_to,
                **{name: float(value) for name, value in asdict(rates).items()},
                "us_inference": float(prices.us_inference),
            }

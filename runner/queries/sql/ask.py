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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from operator import itemgetter
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, insert, or_, select, text

from runner.core.prices import PLATFORM_MARKS, PriceList
from runner.core.text import visible
from runner.errors import RunnerError, UsageError
from runner.queries.rows import Column, Kind, Rows
from runner.queries.sql.views import VIEWS
from runner.store.database import Database
from runner.store.tables import model_calls
from runner.store.tables import prices as price_table

_CODE_ROOT = str(Path(__file__).parents[3])
_CHILD = "runner.queries.sql.child"


@dataclass(frozen=True, slots=True)
class Bounds:
    seconds: float = 30.0
    rows: int | None = None  # None: all; a note says when rows are left out
    answer_bytes: int = 256 << 20  # roughly
    memory_bytes: int = 1 << 30  # of its process; enforced on Linux


def ask(database: Database, sql: str, bounds: Bounds, role: str | None = None) -> Rows:
    """Ask one question, a SELECT over the views of docs/views.md or any other table, and return the
    whole answer. Values are numbers, text or None: booleans are 1 or 0, and bytes are text in base
    16, on both databases. On Postgres the question has the rights of ``role``, else of
    ``pg_read_all_data`` if the user may create a login with it, else the user's own.

    Raises ``UsageError`` if it is no question, or the database cannot answer it, and ``RunnerError`` if it
    took too long, or too much memory."""
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
    main = f"import sys; sys.path.append(sys.argv.pop(1)); from {_CHILD} import main; main()"
    command = [sys.executable, "-P", "-c", main, _CODE_ROOT]
    # Not as an argument: it may hold a password, and every user can see arguments.
    given, nothing = json.dumps(request).encode(), subprocess.DEVNULL
    process = subprocess.run(command, input=given, stdout=subprocess.PIPE, stderr=nothing)
    # The columns' names, and at the end an error, or if rows are left out.
    said: dict[str, Any] = {}
    rows: list[list[Any]] = []
    for line in BytesIO(process.stdout):
        told = json.loads(line) if line.endswith(b"\n") else {}
        if isinstance(told, list):
            rows.append(told)
        else:
            said |= told
    if "error" in said:
        kind = UsageError if said["usage"] else RunnerError
        raise kind(said["error"])
    if "cut" not in said:
        if process.returncode == -signal.SIGALRM:
            raise RunnerError(
                f"the query took longer than {bounds.seconds:g} s and was stopped: narrow it (by "
                "run_id, job_id or time), or raise --timeout"
            )
        raise RunnerError(
            f"the query was stopped (exit {process.returncode}): it may have needed more memory than "
            f"the {bounds.memory_bytes >> 20} MiB that it may have; narrow it"
        )
    note = f"only the first {bounds.rows:,} rows: there are more" if said["cut"] else ""
    return Rows(list(_columns(said["columns"], rows)), rows, note)


_NUMBERS: tuple[Kind, ...] = ("time", "seconds", "usd")
# Columns of views, by name: a name is of one kind wherever it is.
_KNOWN: dict[str, Kind] = {
    column.name: column.kind for view in VIEWS for column in view.columns if column.kind in _NUMBERS
}


def _columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[Column]:
    """The columns: of times, durations and costs by the names in the views, of others by their values.
    Names are unique and without control characters: a second ``id`` becomes ``id_2``."""
    taken: set[str] = set()
    for at, given in enumerate(names):
        name, number = visible(given), 1
        while name in taken:
            number += 1
            name = f"{visible(given)}_{number}"
        taken.add(name)
        types = {type(row[at]) for row in rows if row[at] is not None}
        if types - {int, float}:
            yield Column(name, "text")
        elif given in _KNOWN:
            yield Column(name, _KNOWN[given])
        else:
            yield Column(name, "real" if float in types else "integer" if types else "text")


def store_prices(database: Database, prices: PriceList) -> None:
    """Store the price list that ``v_costs`` multiplies with, if it has changed. The view matches
    only whole ids, so each platform's model id in a call gets a row, too."""
    on_platforms = or_(*(model_calls.c.model.contains(mark) for mark in sorted(PLATFORM_MARKS)))
    called = database.rows(select(model_calls.c.model).where(on_platforms).distinct())
    priced = {model: price for (model,) in called if (price := prices.price(model)) is not None}
    rows = [
        {
            "model": model,
            "fast": fast,
            "above": above,
            "up_to": up_to,
            **{name: float(value) for name, value in asdict(rates).items()},
            "us_inference": float(prices.us_inference),
            "batch": float(prices.batch),
        }
        for model, price in {**priced, **prices.models}.items()
        # The same choice as ``PriceList.rates``: fast mode has one price for prompts of any length.
        for rates, fast, above, up_to in (
            (price.standard, 0, -1, price.long_above if price.long is not None else None),
            (price.long, 0, price.long_above, None),
            (price.fast, 1, -1, None),
        )
        if rates is not None
    ]

    def write(connection: Connection) -> None:
        if database.dialect == "postgresql":  # wait for another process that is writing
            connection.execute(text("LOCK TABLE prices IN SHARE ROW EXCLUSIVE MODE"))
        connection.execute(delete(price_table))
        if rows:
            connection.execute(insert(price_table), rows)

    key = itemgetter("model", "fast", "above")
    kept = database.dicts(select(price_table))
    if sorted(kept, key=key) != sorted(rows, key=key):
        database.write(write)

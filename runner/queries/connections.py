"""Connections that calls, verify commands and hooks made over the proxy of their sandbox."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from sqlalchemy import select

from runner.core.events import CONNECTION
from runner.queries.filters import Filters, answer, at_most
from runner.queries.rows import Rows, columns
from runner.store.database import Database
from runner.store.tables import events, model_calls, runs

_COLUMNS = columns(
    "at:time run_id item turn:integer call_id label made_by tool host port:integer outcome why "
    "connections:integer sent_bytes:integer received_bytes:integer"
)
_NUMBERS = {
    "port": "port",
    "count": "connections",
    "sent": "sent_bytes",
    "received": "received_bytes",
}


def connection_rows(
    database: Database, filters: Filters, pattern: str | None = None, *, limit: int | None = None
) -> Rows:
    """Return the connections that were made or asked for, the newest first.

    ``made_by`` is ``call``, ``verify`` or ``hook``, ``outcome`` is ``allowed``, ``refused`` or
    ``failed``, and ``why`` says why it was not made. Many alike of one call are one row, with their
    number in ``connections``.

    Args:
        pattern: a host, or a host with a port, in which ``*`` stands for anything.
    """
    found = list(islice(_found(database, filters, pattern), at_most(limit)))
    return answer(database, _COLUMNS, found, limit, "the newest")


def _found(database: Database, filters: Filters, pattern: str | None) -> Iterator[dict[str, Any]]:
    """Data of imported events may have any shape: it is read here and not by the database."""
    query = (
        select(events.c.run_id, events.c.at, events.c.data, runs.c.item_key.label("item"))
        .join(runs, runs.c.id == events.c.run_id)
        .where(events.c.type == CONNECTION, *filters.of_runs())
        .order_by(events.c.at.desc(), events.c.run_id.desc(), events.c.number.desc())
    )
    turns = _turns_of(database, filters.model)
    for row in database.rows(query):
        made = _row(row.data if isinstance(row.data, dict) else {}, row.at)
        is_wanted = (
            (filters.since is None or made["at"] >= filters.since)
            and (filters.until is None or made["at"] < filters.until)
            and filters.tool in (None, made["tool"])
            and (turns is None or (row.run_id, made["turn"]) in turns)
            and (pattern is None or _matches(made, pattern.lower()))
        )
        if is_wanted:
            yield {**made, "run_id": row.run_id, "item": row.item}


def _row(data: Mapping[str, Any], stored_at: float) -> dict[str, Any]:
    def number(name: str) -> int | None:
        value = data.get(name)
        return value if type(value) is int else None

    at, turn = data.get("at"), number("turn")
    texts = {name: str(data.get(name) or "") for name in ("host", "outcome", "why")}
    return {
        **texts,
        **{shown: number(name) for name, shown in _NUMBERS.items()},
        "at": at if isinstance(at, float) else stored_at,
        "turn": turn,
        "position": None if turn is None else number("call_index"),
        "tool": data.get("name") if isinstance(data.get("name"), str) else None,
        "made_by": "hook" if "hook_run" in data else "verify" if "verification" in data else "call",
    }


def _matches(made: Mapping[str, Any], pattern: str) -> bool:
    host = made["host"]
    return fnmatchcase(host, pattern) or fnmatchcase(f"{host}:{made['port']}", pattern)


def _turns_of(database: Database, model: str | None) -> set[tuple[str, int]] | None:
    """The turns that a model replied in, by run; None: all turns."""
    if model is None:
        return None
    calls = model_calls.c
    query = select(calls.run_id, calls.turn).where(
        calls.model == model, calls.purpose == "turn", calls.stop_reason.is_not(None)
    )
    return {(row.run_id, row.turn) for row in database.rows(query)}

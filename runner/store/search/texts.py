"""The texts of documents that were found, read again from where they are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, Select, Table, bindparam, select, tuple_

from runner.core.text import visible
from runner.store import ids
from runner.store.database import find
from runner.store.search.documents import Document, Place
from runner.store.search.ran import ran_document, result_of
from runner.store.search.rows import (
    block_document,
    block_place,
    block_rows,
    compaction_document,
    compaction_rows,
    content_of,
    system_document,
    system_rows,
    verification_document,
    verification_rows,
)
from runner.store.search.unread import read_or_leave_out
from runner.store.tables import blocks, compactions, jobs, tool_calls, verifications

_MOST_TOGETHER = 200


class _Keyed:
    """Rows that are read by their keys. SQLite, given many keys, would go through the whole table."""

    def __init__(self, query: Select[Any], table: Table) -> None:
        columns = list(table.primary_key.columns)
        self.query, self.key = query, tuple_(*columns)
        self.names = [column.name for column in columns]
        self.one = query.where(*(column == bindparam(f"key_{column.name}") for column in columns))


_BLOCKS = _Keyed(block_rows(), blocks)
_COMPACTIONS = _Keyed(compaction_rows(), compactions)
_CALLS = select(tool_calls.c.tool_use_id, tool_calls.c.turn, tool_calls.c.position).where(
    tool_calls.c.run_id == bindparam("run"), tool_calls.c.message == bindparam("reply")
)
_VERIFICATIONS = _Keyed(verification_rows(), verifications)


def _rows_at(
    connection: Connection, keyed: _Keyed, keys: Sequence[tuple[Any, ...]]
) -> Iterator[Any]:
    if connection.dialect.name != "sqlite":
        yield from connection.execute(keyed.query.where(keyed.key.in_(keys)))
        return
    for key in keys:
        values = {f"key_{name}": value for name, value in zip(keyed.names, key, strict=True)}
        yield from find(connection, keyed.one, values)


@dataclass(frozen=True, slots=True)
class Found:
    """A document's text, and where in its run it is. ``use_id`` is the API's name of the tool call that
    a block asks for, ``call`` the number of the call that it is about, where that is known."""

    text: str
    role: str | None
    tool: str | None
    item: str | None = None
    turn: int | None = None
    use_id: str | None = None
    call: int | None = None


def read_texts(connection: Connection, places: Sequence[Place]) -> dict[Place, Found]:
    """The texts at some places; what is not there is left out."""
    found: dict[Place, Found] = {}
    for start in range(0, len(places), _MOST_TOGETHER):
        part = places[start : start + _MOST_TOGETHER]
        found |= _system_texts(connection, [p for p in part if p.kind == "system"])
        of_blocks = [p for p in part if p.kind in ("text", "thinking", "input", "output")]
        found |= _block_texts(connection, of_blocks)
        found |= _texts_that_ran(connection, [p for p in part if p.kind == "ran"])
        for kind, keyed, document_of in (
            ("compaction", _COMPACTIONS, compaction_document),
            ("verification", _VERIFICATIONS, verification_document),
        ):
            beside = [p for p in part if p.kind == kind]
            found |= _texts_beside(connection, keyed, document_of, beside)
    return found


def call_ids(connection: Connection, found: Collection[tuple[Place, Found]]) -> dict[Place, str]:
    """Runner's ids of the tool calls that blocks ask for, or give the results of."""
    known = {
        place: ids.call_id(place.run_id, text.turn or 0, text.call)
        for place, text in found
        if text.call is not None
    }
    asked = {
        (place.run_id, place.message, visible(text.use_id)): place
        for place, text in found
        if text.use_id is not None
    }
    for run_id, message in sorted({key[:2] for key in asked}):
        for row in find(connection, _CALLS, {"run": run_id, "reply": message}):
            place = asked.get((run_id, message, row.tool_use_id))
            if place is not None:
                known[place] = ids.call_id(run_id, row.turn, row.position)
    return known


def _block_texts(connection: Connection, places: Sequence[Place]) -> dict[Place, Found]:
    if not places:
        return {}
    keys = sorted({(place.run_id, place.message, place.position) for place in places})
    found: dict[Place, Found] = {}
    for row in _rows_at(connection, _BLOCKS, keys):
        place = block_place(row)
        document = _read(place, partial(block_document, row, None))
        if document is None or document.text is None:
            continue
        found[place] = Found(
            document.text,
            document.role,
            document.tool,
            row.item_key,
            row.turn,
            content_of(row).get("id") if row.type == "tool_use" else None,
            row.position if row.answered_tool is not None else None,
        )
    return found


def _texts_that_ran(connection: Connection, places: Sequence[Place]) -> dict[Place, Found]:
    found: dict[Place, Found] = {}
    for place in places:
        result = result_of(connection, place)
        if result is None:
            continue
        document = _read(place, partial(ran_document, connection, result.row, None))
        if document is not None and document.text is not None:
            found[place] = Found(
                document.text,
                document.role,
                document.tool,
                document.item,
                result.turn,
                call=result.call,
            )
    return found


def _system_texts(connection: Connection, places: Sequence[Place]) -> dict[Place, Found]:
    if not places:
        return {}
    query = system_rows().where(jobs.c.id.in_(sorted({place.job_id for place in places})))
    documents = [
        _read(Place("system", row.id), partial(system_document, row))
        for row in connection.execute(query)
    ]
    return {
        each.place: Found(each.text, None, None)
        for each in documents
        if each is not None and each.text is not None
    }


def _texts_beside(
    connection: Connection, keyed: _Keyed, document_of: Any, places: Sequence[Place]
) -> dict[Place, Found]:
    if not places:
        return {}
    keys = sorted({(place.run_id, place.message) for place in places})
    read = [
        (_read(places[0], partial(document_of, row, None)), row)
        for row in _rows_at(connection, keyed, keys)
    ]
    return {
        each.place: Found(each.text, None, None, row.item_key, row.turn)
        for each, row in read
        if each is not None and each.text is not None
    }


def _read(place: Place, read: Callable[[], Document | None]) -> Document | None:
    """A document; one that can no longer be read has no text."""
    return read_or_leave_out(place, 0.0, read, lambda _line: None)

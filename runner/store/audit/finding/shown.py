"""How the rows of a question are handed over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.core.rows import Column, Rows
from runner.store import ids
from runner.store.connection.database import Database
from runner.store.look.family.places import Call, call_labels


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
    calls = [_call(row[at]) for row in rows]
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


def _call(call_id: str | None) -> Call | None:
    return None if call_id is None else ids.parse_call_id(call_id)

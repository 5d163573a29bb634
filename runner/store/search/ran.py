"""What calls ran with, where a person or a hook had changed what the model asked for.

It is read with the call's result: until that is stored it may still change. Its place is that of the
block that asks for the call.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from sqlalchemy import Connection, Text, bindparam, cast, select

from runner.store.database import find
from runner.store.search.documents import Document, Place, block_text
from runner.store.search.rows import Jobs, block_rows
from runner.store.tables import blocks

# A call has the number among its reply's calls that its block has among those that ask for tools.
_ASKED = (
    select(blocks.c.position, blocks.c.turn, cast(blocks.c.content, Text).label("content"))
    .where(
        blocks.c.run_id == bindparam("run"),
        blocks.c.message == bindparam("reply"),
        blocks.c.type == "tool_use",
    )
    .order_by(blocks.c.position)
)
_RESULT = block_rows().where(
    blocks.c.run_id == bindparam("run"),
    blocks.c.message == bindparam("results"),
    blocks.c.position == bindparam("call"),
    blocks.c.type == "tool_result",
)


class Result(NamedTuple):
    """The result of a call, as ``block_rows`` has it, the call's turn, and its number among those of its
    reply."""

    row: Any
    turn: int
    call: int


def ran_place(row: Any) -> Place:
    """About where that is what the call of a result ran with: the number of the call stands for that of
    its block."""
    return Place("ran", row.job_id, row.run_id, row.message - 1, row.position)


def ran_document(connection: Connection, row: Any, jobs_read: Jobs | None) -> Document | None:
    """What the call of a result ran with, None where that is what the model asked for.

    Args:
        row: the result, as ``block_rows`` has it.
        jobs_read: tells its model. None: nobody asks for it.
    """
    if row.ran_with is None or row.is_inherited:
        return None
    asked = find(connection, _ASKED, {"run": row.run_id, "reply": row.message - 1})[row.position]
    given = json.loads(row.ran_with)
    if json.loads(asked.content).get("input") == given:
        return None
    return Document(
        ran_place(row)._replace(position=asked.position),
        row.created_at,
        block_text({"type": "tool_use", "input": given}),
        role="assistant",
        tool=row.answered_tool,
        model=None if jobs_read is None else jobs_read.model(row),
        item=row.item_key,
    )


def result_of(connection: Connection, place: Place) -> Result | None:
    """The result of the call that the block at ``place`` asks for."""
    asked = find(connection, _ASKED, {"run": place.run_id, "reply": place.message})
    for call, block in enumerate(asked):
        if block.position == place.position:
            key = {"run": place.run_id, "results": place.message + 1, "call": call}
            return next(
                (Result(row, block.turn, call) for row in find(connection, _RESULT, key)), None
            )
    return None

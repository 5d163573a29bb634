"""The whole output of tool calls, where it is longer than what the model was shown."""

from __future__ import annotations

import zlib

from sqlalchemy import and_, select

from runner.store import ids
from runner.store.database import Database
from runner.store.tables import tool_calls, tool_outputs


def tool_output(database: Database, call_id: str) -> bytes | None:
    """The stored output of a call, by its id (``call_…``), or None when all of it was shown."""
    parsed = ids.parse_call_id(call_id)
    if parsed is None:
        return None
    run_id, turn, position = parsed
    query = (
        select(tool_outputs.c.compressed)
        .join(
            tool_calls,
            and_(
                tool_calls.c.run_id == tool_outputs.c.run_id,
                tool_calls.c.message == tool_outputs.c.message,
                tool_calls.c.position == tool_outputs.c.position,
            ),
        )
        .where(
            tool_calls.c.run_id == run_id,
            tool_calls.c.turn == turn,
            tool_calls.c.position == position,
        )
    )
    compressed = database.read(lambda connection: connection.execute(query).scalar_one_or_none())
    return None if compressed is None else zlib.decompress(compressed)

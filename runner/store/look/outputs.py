"""The whole output of tool calls: what the model was shown of one may since have been shortened."""

from __future__ import annotations

import zlib
from typing import Any

from sqlalchemy import Connection, select

from runner.store import ids
from runner.store.database import Database
from runner.store.tables import blocks, tool_calls, tool_outputs


def tool_output(database: Database, run_id: str, name: str) -> bytes | None:
    """All that a call of a run gave, as UTF-8: its stored output where that is longer than what the
    model was shown, else its result as the conversation has it.

    Args:
        name: the call's id (``call_…``), or the one that the model gave it (``toolu_…``).

    Returns:
        None when the run has no such call, or when it has no result yet.
    """

    def work(connection: Connection) -> bytes | None:
        call = connection.execute(_call(run_id, name)).first()
        return None if call is None else _output(connection, run_id, call.message, call.position)

    return database.read(work)


def _call(run_id: str, name: str) -> Any:
    query = select(tool_calls.c.message, tool_calls.c.position).where(tool_calls.c.run_id == run_id)
    parsed = ids.parse_call_id(name)
    if parsed is None or parsed[0] != run_id:
        return query.where(tool_calls.c.tool_use_id == name)
    _, turn, position = parsed
    return query.where(tool_calls.c.turn == turn, tool_calls.c.position == position)


def _output(connection: Connection, run_id: str, message: int, position: int) -> bytes | None:
    stored = select(tool_outputs.c.compressed).where(
        tool_outputs.c.run_id == run_id,
        tool_outputs.c.message == message,
        tool_outputs.c.position == position,
    )
    compressed = connection.execute(stored).scalar_one_or_none()
    if compressed is not None:
        return zlib.decompress(compressed)
    result = select(blocks.c.content).where(
        blocks.c.run_id == run_id,
        blocks.c.message == message + 1,
        blocks.c.position == position,
        blocks.c.type == "tool_result",
    )
    block = connection.execute(result).scalar_one_or_none()
    return None if block is None else str(block["content"]).encode("utf-8", "replace")

"""The whole output of tool calls: what the model was shown of one may since have been shortened."""

from __future__ import annotations

import zlib
from typing import Any

from sqlalchemy import Connection, select

from runner.core.agents.agent import lineage
from runner.core.text.plain import visible
from runner.store import ids
from runner.store.connection.database import Database
from runner.store.tables import blocks, tool_calls, tool_outputs


def tool_output(database: Database, run_id: str, name: str) -> bytes | None:
    """All that a call of a run gave, as UTF-8: its stored output where that is longer than what the
    model was shown, else its result as the conversation has it. A sub-agent with a snapshot has the
    outputs of the calls in it, which are its parent's.

    Args:
        name: the call's id (``call_…``), or the one that the model gave it (``toolu_…``).

    Returns:
        None when the run has no such call, or when it has no result yet.
    """

    def work(connection: Connection) -> bytes | None:
        call = connection.execute(_call(run_id, name)).first()
        if call is not None:
            return _output(connection, run_id, call.message, call.position)
        *above, _ = lineage(run_id)
        shown = _copied(connection, run_id) if above else frozenset()
        for each in reversed(above) if shown else ():
            call = connection.execute(_call(each, name)).first()
            if call is not None and call.tool_use_id in shown:
                return _output(connection, each, call.message, call.position)
        return None

    return database.read(work)


def _copied(connection: Connection, run_id: str) -> frozenset[str]:
    """The ids of the calls in the conversation that a sub-agent began with."""
    query = select(blocks.c.content).where(
        blocks.c.run_id == run_id, blocks.c.turn == 0, blocks.c.type == "tool_use"
    )
    return frozenset(visible(content["id"]) for content in connection.execute(query).scalars())


def _call(run_id: str, name: str) -> Any:
    query = select(tool_calls.c.message, tool_calls.c.position, tool_calls.c.tool_use_id).where(
        tool_calls.c.run_id == run_id
    )
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

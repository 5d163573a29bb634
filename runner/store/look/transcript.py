"""What was said and done in a run: its messages, and its tool calls whole."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import Any, TypedDict, cast

from sqlalchemy import Connection, and_, func, select

from runner.core.context.compaction import CompactionKind
from runner.core.conversation import Block
from runner.errors import NotFoundError
from runner.store import ids
from runner.store.connection.database import Database
from runner.store.look.family.places import call_labels
from runner.store.look.find import call_key
from runner.store.rows.conversation import load_conversation
from runner.store.tables import blocks, tool_calls, tool_outputs
from runner.store.tables import compactions as compaction_table

_BATCH = 64  # messages


class Line(TypedDict):
    """A block with what became of it. ``call`` is a tool call's row, with its ``id`` and ``state``,
    beside the block that asked for it and the one that answers; its ``size`` are the bytes of the
    whole output where that is longer than what the model was shown (None: it is not)."""

    message: int
    position: int
    role: str
    turn: int
    content: Block
    created_at: float
    call: dict[str, Any] | None


class CompactionLine(TypedDict):
    """A change of what the model is sent. It comes before the reply of ``turn``; ``clips`` is how many
    results are sent shorter, and ``text`` stands in for the messages up to ``last_message``."""

    number: int
    kind: CompactionKind
    first_message: int
    last_message: int
    text: str
    clips: int
    tokens_before: int
    tokens_after: int
    turn: int
    made_by_call: int | None
    first_sent_in: int
    created_at: float


def messages(database: Database, run_id: str) -> list[dict[str, Any]]:
    """The conversation exactly as in the Messages API. Results of a reply's tool calls join it when
    they are complete."""
    whole, _ = database.read(
        lambda connection: load_conversation(connection, run_id, lambda snapshot: ())
    )
    return [message.as_api() for message in whole]


def lines(database: Database, run_id: str) -> list[Line]:
    """All blocks of a run in order, those of an incomplete message included."""
    return [line for message in said(database, run_id) for line in message]


def said(
    database: Database, run_id: str, turns: tuple[int, int] | None = None
) -> Iterator[list[Line]]:
    """The messages of a run in order, the blocks of each; few are held at a time. A message that is
    incomplete has the blocks that it has.

    Args:
        turns: only those of the turns from the first number to the last.
    """
    first, last = database.read(partial(_bounds, run_id=run_id, turns=turns))
    for start in range(first, last + 1, _BATCH):
        end = min(start + _BATCH - 1, last)
        found = database.read(partial(_lines, run_id=run_id, first=start, last=end))
        for _, message in groupby(found, key=lambda line: line["message"]):
            yield list(message)


def _bounds(connection: Connection, run_id: str, turns: tuple[int, int] | None) -> tuple[int, int]:
    """The numbers of the first and the last message."""
    query = select(func.min(blocks.c.message), func.max(blocks.c.message))
    query = query.where(blocks.c.run_id == run_id)
    if turns is not None:
        query = query.where(blocks.c.turn.between(*turns))
    first, last = connection.execute(query).one()
    return (0, -1) if first is None else (first, last)


def _lines(connection: Connection, run_id: str, first: int, last: int) -> list[Line]:
    calls = _calls_by_use(connection, run_id, first - 1, last)
    query = (
        select(blocks)
        .where(blocks.c.run_id == run_id, blocks.c.message.between(first, last))
        .order_by(blocks.c.message, blocks.c.position)
    )
    return [
        Line(
            message=row.message,
            position=row.position,
            role=row.role,
            turn=row.turn,
            content=row.content,
            created_at=row.created_at,
            call=calls.get(_use_of(row.message, row.content)),
        )
        for row in connection.execute(query)
    ]


def compactions(database: Database, run_id: str) -> list[CompactionLine]:
    """A run's compactions in order."""
    table = compaction_table.c
    query = select(compaction_table).where(table.run_id == run_id).order_by(table.number)
    names = tuple(CompactionLine.__annotations__)
    rows = database.read(lambda connection: connection.execute(query).mappings().all())
    return [
        cast(
            CompactionLine,
            {name: row[name] for name in names} | {"clips": len(row["clips"])},
        )
        for row in rows
    ]


def show_call(database: Database, call_id: str) -> dict[str, Any]:
    """A tool call: its row, what it is called in its tree (``label``), the whole input, and the whole
    output as far as it was kept.

    Raises:
        NotFoundError: there is no such call.
    """

    def work(connection: Connection) -> dict[str, Any]:
        key = call_key(connection, call_id)
        if key is None:
            raise NotFoundError(f"no tool call is named {call_id}")
        is_it = (
            tool_calls.c.run_id == key.run_id,
            tool_calls.c.message == key.message,
            tool_calls.c.position == key.position,
        )
        call = _with_state(
            dict(connection.execute(select(tool_calls).where(*is_it)).mappings().one())
        )
        exchange = (
            select(blocks.c.content)
            .where(
                blocks.c.run_id == key.run_id,
                blocks.c.message.in_((key.message, key.message + 1)),
                blocks.c.type.in_(("tool_use", "tool_result")),
            )
            .order_by(blocks.c.message, blocks.c.position)
        )
        call |= {"input": None, "result": None}
        for block in connection.execute(exchange).scalars():
            if block.get("id") == call["tool_use_id"]:
                call["input"] = block["input"]
            elif block.get("tool_use_id") == call["tool_use_id"]:
                call["result"] = block["content"]
        kept = _kept_output(connection, key.run_id, key.message, key.position)
        labels = call_labels(connection, [key.run_id])
        call["label"] = labels[key.run_id, call["turn"], key.position]
        return {**call, "output": call["result"] if kept is None else kept}

    return database.read(work)


def _kept_output(connection: Connection, run_id: str, message: int, position: int) -> str | None:
    """The output that was too long to show to the model."""
    query = select(tool_outputs.c.compressed).where(
        tool_outputs.c.run_id == run_id,
        tool_outputs.c.message == message,
        tool_outputs.c.position == position,
    )
    compressed = connection.execute(query).scalar()
    return None if compressed is None else zlib.decompress(compressed).decode(errors="replace")


def _calls_by_use(
    connection: Connection, run_id: str, first: int, last: int
) -> dict[tuple[int, str], dict[str, Any]]:
    """The tool calls of a range of messages, by the number of the message that asked and the API's id,
    which a model may use again in another message."""
    is_its_output = and_(
        tool_outputs.c.run_id == tool_calls.c.run_id,
        tool_outputs.c.message == tool_calls.c.message,
        tool_outputs.c.position == tool_calls.c.position,
    )
    query = (
        select(tool_calls, tool_outputs.c.size)
        .outerjoin(tool_outputs, is_its_output)
        .where(tool_calls.c.run_id == run_id, tool_calls.c.message.between(first, last))
    )
    return {
        (row["message"], row["tool_use_id"]): _with_state(dict(row))
        for row in connection.execute(query).mappings()
    }


def _use_of(message: int, block: Block) -> tuple[int, str]:
    if block["type"] == "tool_result":
        return message - 1, block["tool_use_id"]
    return message, str(block.get("id", ""))


def _with_state(call: dict[str, Any]) -> dict[str, Any]:
    """The row with the call's id and where it stands: its outcome once it has one."""
    if call["outcome"] is not None:
        state = call["outcome"]
    elif call["interrupted"]:
        state = "interrupted"
    else:
        state = "pending" if call["started_at"] is None else "started"
    return {
        "id": ids.call_id(call["run_id"], call["turn"], call["position"]),
        "state": state,
    } | call

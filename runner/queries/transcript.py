"""The conversation of a run: messages, requests as they were sent, and tool output."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import Any, TypedDict, cast

from sqlalchemy import Connection, Row, and_, func, select

from runner.core.agents import lineage
from runner.core.context import CompactionKind, sent_messages
from runner.core.conversation import Block, Message, ModelRequest
from runner.core.spec import JobSpec
from runner.core.text import visible
from runner.errors import NotFoundError
from runner.queries.find import CallKey, call_key, call_labels
from runner.store import ids
from runner.store.database import Database
from runner.store.jobs import JobCache
from runner.store.run_state import load_compacted, load_conversation, with_instructions_of
from runner.store.tables import (
    blocks,
    compactions,
    events,
    model_calls,
    runs,
    tool_calls,
    tool_outputs,
)

_MESSAGES_AT_ONCE = 64
_OUTPUT_OF_CALL = and_(
    tool_outputs.c.run_id == tool_calls.c.run_id,
    tool_outputs.c.message == tool_calls.c.message,
    tool_outputs.c.position == tool_calls.c.position,
)


class StoredBlock(TypedDict):
    """A block of a conversation."""

    message: int
    position: int
    role: str
    turn: int
    content: Block
    created_at: float
    # The row of the tool call that the block asks for or answers, with its ``id`` and ``state``. Its
    # ``size`` is the size of the whole output in bytes, None if the model was shown all of it.
    call: dict[str, Any] | None


class StoredCompaction(TypedDict):
    """A change of what the model is sent, made before the reply of ``turn``."""

    number: int
    kind: CompactionKind
    first_message: int
    last_message: int
    text: str  # replaces the messages up to last_message
    clips: int  # how many results are sent truncated
    tokens_before: int
    tokens_after: int
    turn: int
    made_by_call: int | None
    first_sent_in: int
    created_at: float


def api_messages(database: Database, run_id: str) -> list[dict[str, Any]]:
    """The conversation exactly as in the Messages API, without an incomplete message of tool results."""
    whole, _ = database.read(
        lambda connection: load_conversation(connection, run_id, lambda snapshot: ())
    )
    return [message.as_api() for message in whole]


def blocks_of_run(database: Database, run_id: str) -> list[StoredBlock]:
    """All blocks of a run in order, including those of an incomplete message."""
    return [block for message in messages_of_run(database, run_id) for block in message]


def messages_of_run(
    database: Database, run_id: str, turns: tuple[int, int] | None = None
) -> Iterator[list[StoredBlock]]:
    """The blocks of each message in order, few messages in memory at a time.

    Args:
        turns: only messages of the turns from the first number to the last.
    """
    first, last = database.read(partial(_bounds, run_id=run_id, turns=turns))
    for start in range(first, last + 1, _MESSAGES_AT_ONCE):
        end = min(start + _MESSAGES_AT_ONCE - 1, last)
        found = database.read(partial(_blocks, run_id=run_id, first=start, last=end))
        for _, message in groupby(found, key=lambda block: block["message"]):
            yield list(message)


def _bounds(connection: Connection, run_id: str, turns: tuple[int, int] | None) -> tuple[int, int]:
    """The numbers of the first and the last message."""
    query = select(func.min(blocks.c.message), func.max(blocks.c.message))
    query = query.where(blocks.c.run_id == run_id)
    if turns is not None:
        query = query.where(blocks.c.turn.between(*turns))
    first, last = connection.execute(query).one()
    return (0, -1) if first is None else (first, last)


def _blocks(connection: Connection, run_id: str, first: int, last: int) -> list[StoredBlock]:
    in_calls = (
        select(tool_calls, tool_outputs.c.size)
        .outerjoin(tool_outputs, _OUTPUT_OF_CALL)
        .where(tool_calls.c.run_id == run_id, tool_calls.c.message.between(first - 1, last))
    )
    # A model may use the API's id of a call again in another message.
    calls = {
        (row["message"], row["tool_use_id"]): _with_state(dict(row))
        for row in connection.execute(in_calls).mappings()
    }
    query = (
        select(blocks)
        .where(blocks.c.run_id == run_id, blocks.c.message.between(first, last))
        .order_by(blocks.c.message, blocks.c.position)
    )
    names = tuple(name for name in StoredBlock.__annotations__ if name != "call")
    return [
        cast(
            StoredBlock,
            {name: row[name] for name in names}
            | {"call": calls.get(_use_of(row["message"], row["content"]))},
        )
        for row in connection.execute(query).mappings()
    ]


def _use_of(message: int, block: Block) -> tuple[int, str]:
    if block["type"] == "tool_result":
        return message - 1, block["tool_use_id"]
    return message, str(block.get("id", ""))


def _with_state(call: dict[str, Any]) -> dict[str, Any]:
    """The row of a call with its id and state: its outcome once it has one."""
    if call["outcome"] is not None:
        state = call["outcome"]
    elif call["interrupted"]:
        state = "interrupted"
    else:
        state = "pending" if call["started_at"] is None else "started"
    call_id = ids.call_id(call["run_id"], call["turn"], call["position"])
    return {"id": call_id, "state": state} | call


def compactions_of_run(database: Database, run_id: str) -> list[StoredCompaction]:
    """A run's compactions in order."""
    query = select(compactions).where(compactions.c.run_id == run_id).order_by(compactions.c.number)
    names = tuple(StoredCompaction.__annotations__)
    rows = database.read(lambda connection: connection.execute(query).mappings().all())
    return [
        cast(StoredCompaction, {name: row[name] for name in names} | {"clips": len(row["clips"])})
        for row in rows
    ]


def show_call(database: Database, call_id: str) -> dict[str, Any]:
    """A tool call: its row, its ``label`` in the tree, its whole input, and its output as far as it was
    kept.

    Raises:
        NotFoundError: there is no such call.
    """

    def work(connection: Connection) -> dict[str, Any]:
        key = call_key(connection, call_id)
        if key is None:
            raise NotFoundError(f"no tool call is named {call_id}")
        row = select(tool_calls).where(
            tool_calls.c.run_id == key.run_id,
            tool_calls.c.message == key.message,
            tool_calls.c.position == key.position,
        )
        call = _with_state(dict(connection.execute(row).mappings().one()))
        exchange = select(blocks.c.content).where(
            blocks.c.run_id == key.run_id,
            blocks.c.message.in_((key.message, key.message + 1)),
            blocks.c.type.in_(("tool_use", "tool_result")),
        )
        call |= {"input": None, "result": None}
        ordered = exchange.order_by(blocks.c.message, blocks.c.position)
        for block in connection.execute(ordered).scalars():
            if block.get("id") == call["tool_use_id"]:
                call["input"] = block["input"]
            elif block.get("tool_use_id") == call["tool_use_id"]:
                call["result"] = block["content"]
        kept = _kept_output(connection, key)
        labels = call_labels(connection, [key.run_id])
        call["label"] = labels[key.run_id, call["turn"], key.position]
        output = call["result"] if kept is None else kept.decode(errors="replace")
        return {**call, "output": output}

    return database.read(work)


def _kept_output(connection: Connection, key: CallKey) -> bytes | None:
    """The output of a call, if it was longer than what the model was shown."""
    query = select(tool_outputs.c.compressed).where(
        tool_outputs.c.run_id == key.run_id,
        tool_outputs.c.message == key.message,
        tool_outputs.c.position == key.position,
    )
    compressed = connection.execute(query).scalar()
    return None if compressed is None else zlib.decompress(compressed)


def tool_output(database: Database, run_id: str, name: str) -> bytes | None:
    """The whole output of a call of a run, as UTF-8. A sub-agent that started with a copy of its parent's
    conversation can read the outputs of the calls in that copy.

    Args:
        name: the call's id (``call_…``), or the id that the model gave it (``toolu_…``).

    Returns:
        None when the run has no such call, or when it has no result yet.
    """

    def work(connection: Connection) -> bytes | None:
        call = connection.execute(_call_named(run_id, name)).first()
        if call is not None:
            return _output(connection, CallKey(run_id, call.message, call.position))
        *above, _ = lineage(run_id)
        copied = _copied_calls(connection, run_id) if above else frozenset()
        for each in reversed(above) if copied else ():
            call = connection.execute(_call_named(each, name)).first()
            if call is not None and call.tool_use_id in copied:
                return _output(connection, CallKey(each, call.message, call.position))
        return None

    return database.read(work)


def _copied_calls(connection: Connection, run_id: str) -> frozenset[str]:
    """The API's ids of the calls in the conversation that a sub-agent started with."""
    query = select(blocks.c.content).where(
        blocks.c.run_id == run_id, blocks.c.turn == 0, blocks.c.type == "tool_use"
    )
    return frozenset(visible(content["id"]) for content in connection.execute(query).scalars())


def _call_named(run_id: str, name: str) -> Any:
    columns = (tool_calls.c.message, tool_calls.c.position, tool_calls.c.tool_use_id)
    query = select(*columns).where(tool_calls.c.run_id == run_id)
    parsed = ids.parse_call_id(name)
    if parsed is None or parsed[0] != run_id:
        return query.where(tool_calls.c.tool_use_id == name)
    _, turn, position = parsed
    return query.where(tool_calls.c.turn == turn, tool_calls.c.position == position)


def _output(connection: Connection, key: CallKey) -> bytes | None:
    if (kept := _kept_output(connection, key)) is not None:
        return kept
    result = select(blocks.c.content).where(
        blocks.c.run_id == key.run_id,
        blocks.c.message == key.message + 1,
        blocks.c.position == key.position,
        blocks.c.type == "tool_result",
    )
    block = connection.execute(result).scalar_one_or_none()
    return None if block is None else str(block["content"]).encode("utf-8", "replace")


def system_prompt(database: Database, run_id: str) -> str | None:
    """The system prompt of a run's requests. Raises ``NotFoundError``: there is no such run."""

    def work(connection: Connection) -> str | None:
        return _spec(connection, run_id, _run(connection, run_id).job_id).system

    return database.read(work)


def sent_request(database: Database, run_id: str, turn: int) -> ModelRequest:
    """The request of a turn as it was sent; the last one, if it took several.

    Args:
        turn: its number, from 1.

    Raises:
        NotFoundError: there is no such run, or nothing was sent in that turn.
    """

    def work(connection: Connection) -> ModelRequest:
        run = _run(connection, run_id)
        call = _model_call(connection, run_id, turn)
        spec = _spec(connection, run_id, run.job_id)
        return ModelRequest(
            model=run.model or spec.model,
            system=spec.system,
            tools=spec.tools,
            messages=sent_messages(
                _messages_before(connection, run_id, call),
                load_compacted(connection, run_id, sent_in=call.number),
            ),
            max_tokens=call.max_tokens,
            options=spec.model_options,
            run_id=run_id,
            item_key=run.item_key,
            agent_type=run.agent_type or "",
            reply_number=turn - 1,
            hour_cache=bool(spec.hour_cache if call.hour_cache is None else call.hour_cache),
        )

    return database.read(work)


def _spec(connection: Connection, run_id: str, job_id: str) -> JobSpec:
    """The spec of a run, apart from a model of its own."""
    spec = JobCache().on(connection).spec_of_run(job_id, run_id)
    return with_instructions_of(connection, run_id, spec)


def _run(connection: Connection, run_id: str) -> Row[Any]:
    query = select(runs.c.job_id, runs.c.item_key, runs.c.model, runs.c.agent_type)
    run = connection.execute(query.where(runs.c.id == run_id)).one_or_none()
    if run is None:
        raise NotFoundError(f"no run is named {run_id}")
    return cast(Row[Any], run)


def _model_call(connection: Connection, run_id: str, turn: int) -> Row[Any]:
    of_run = select(model_calls).where(
        model_calls.c.run_id == run_id, model_calls.c.purpose == "turn"
    )
    latest = of_run.order_by(model_calls.c.number.desc()).limit(1)
    found = connection.execute(latest.where(model_calls.c.turn == turn)).one_or_none()
    if found is not None:
        return found
    last = connection.execute(latest).one_or_none()
    there = "it has none yet" if last is None else f"its last turn is {last.turn}"
    raise NotFoundError(f"nothing was sent in turn {turn} of {run_id}: {there}")


def _messages_before(connection: Connection, run_id: str, call: Row[Any]) -> list[Message]:
    """The conversation as it stood when a call started. Its reply and the results belong to its turn, all
    before it to earlier turns."""
    query = (
        select(blocks.c.message, blocks.c.role, blocks.c.content)
        .where(blocks.c.run_id == run_id, blocks.c.turn < call.turn)
        .order_by(blocks.c.message, blocks.c.position)
    )
    found = connection.execute(query).all()
    if call.stop_reason is None:
        found = found[: len(found) - _texts_added_since(connection, run_id, call.number)]
    messages: dict[int, Message] = {}
    for row in found:
        before = messages.get(row.message, Message(row.role, ()))
        messages[row.message] = Message(row.role, (*before.blocks, row.content))
    return list(messages.values())


def _texts_added_since(connection: Connection, run_id: str, number: int) -> int:
    """How many texts were added since a call without a reply started, by the events: the clocks of two
    workers may differ."""
    query = (
        select(events.c.type, events.c.data)
        .where(
            events.c.run_id == run_id, events.c.type.in_(("model_call_started", "message_added"))
        )
        .order_by(events.c.number.desc())
    )
    count = 0
    for event in connection.execute(query):
        if event.type == "message_added":
            count += event.data["messages"]
        elif event.data["call"] == number:
            break
    return count

"""A run and its conversation: messages, requests as they were sent, and tool output."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias

from sqlalchemy import Connection, Row, Select, func, select

from runner.core.agents import lineage
from runner.core.context import sent_messages
from runner.core.conversation import Message, ModelRequest
from runner.core.media import shown_text, with_bytes
from runner.core.spec import JobSpec
from runner.core.text import visible
from runner.errors import NotFoundError, UsageError
from runner.queries.filters import STATE, CallKey, call_key, call_labels, has_id
from runner.store import ids
from runner.store.blobs import load_blob
from runner.store.conditions import CALL_BLOCKS, of_call
from runner.store.database import Database, reads
from runner.store.run_state import (
    load_compacted,
    load_conversation,
    progress_from_row,
    with_instructions_of,
    with_tools_of,
)
from runner.store.specs import JobCache
from runner.store.tables import (
    blocks,
    compactions,
    events,
    jobs,
    model_calls,
    queued_messages,
    run_items,
    runs,
    sessions,
    tool_calls,
    tool_lists,
    tool_outputs,
)

MESSAGES_AT_ONCE = 64

# A block of a conversation: ``message``, ``position``, ``role``, ``turn``, ``content``, ``created_at``,
# ``spoken_by``, and as ``call`` the row of the tool call that it asks for or answers, with its ``id``
# and ``state``, or None. The call's ``size`` is the size of the whole output in bytes, None if the model
# was shown all.
StoredBlock: TypeAlias = dict[str, Any]
# A change of what the model is sent, made before the reply of ``turn``: its columns. ``text`` replaces
# the messages up to ``last_message``, and ``clips`` counts the results that are sent truncated.
StoredCompaction: TypeAlias = dict[str, Any]


@reads
def show_run(connection: Connection, run_id: str) -> dict[str, Any]:
    """Everything in a run's row, its job's name, provider and ``context``, its model, the size of its
    context (``fullness``, None before the first request), how many ``compactions`` there are of each kind,
    its undelivered messages, ``worked`` in seconds, and ``charged_cost`` in billionths of a USD. Raises
    ``NotFoundError``."""
    query = (
        select(runs, run_items.c.item, jobs.c.name.label("job_name"))
        .join(jobs, jobs.c.id == runs.c.job_id)
        .join(run_items, run_items.c.run_id == runs.c.id)
        .where(runs.c.id == run_id)
    )
    messages = queued_messages.c
    undelivered = (
        select(messages.id, messages.text, messages.created_at)
        .where(messages.run_id == run_id, messages.delivered_message.is_(None))
        .order_by(messages.id)
    )

    kind = compactions.c.kind
    compacted = select(kind, func.count()).where(compactions.c.run_id == run_id)
    compacted = compacted.group_by(kind).order_by(kind)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFoundError(f"no run is named {run_id}")
    spec = JobCache().on(connection).spec_of_run(row.job_id, run_id)
    progress = progress_from_row(row)
    context = progress.context
    fullness = {name: getattr(context, name) for name in ("tokens", "measured", "correction")}
    fullness["window"] = context.checked_window
    successor = select(runs.c.id).where(runs.c.job_id == row.job_id, runs.c.fresh_of == run_id)
    return {
        **row._mapping,
        "model": row.model or spec.model,
        "provider": spec.provider,
        "context": asdict(spec.context),
        "fullness": fullness if context.estimate else None,
        "charged_cost": progress.money.charged_cost,
        "worked": progress.worked,
        "compactions": dict(connection.execute(compacted).all()),
        "fresh_run": connection.execute(successor).scalar(),
        "queued_messages": [dict(each) for each in connection.execute(undelivered).mappings()],
    }


def api_messages(database: Database, run_id: str) -> list[dict[str, Any]]:
    """The conversation exactly as in the Messages API, without an incomplete message of tool results."""
    whole, _ = database.read(
        lambda connection: load_conversation(connection, run_id, lambda snapshot: ())
    )
    load = partial(load_blob, database)
    return [
        {"role": one.role, "content": [with_bytes(block, load) for block in one.blocks]}
        for one in whole
    ]


def messages_of_run(
    database: Database, run_id: str, turns: tuple[int, int] | None = None
) -> Iterator[list[StoredBlock]]:
    """The blocks of each message (of the turns from the first number to the last) in order, including those
    of an incomplete one, few messages in memory at a time."""
    message = blocks.c.message
    bounds = select(func.min(message), func.max(message)).where(blocks.c.run_id == run_id)
    if turns is not None:
        bounds = bounds.where(blocks.c.turn.between(*turns))
    ((first, last),) = database.rows(bounds)
    if first is None:
        return
    for start in range(first, last + 1, MESSAGES_AT_ONCE):
        end = min(start + MESSAGES_AT_ONCE - 1, last)
        found = database.read(partial(_blocks, run_id=run_id, first=start, last=end))
        for _, rows in groupby(found, key=lambda block: block["message"]):
            yield list(rows)


def _blocks(connection: Connection, run_id: str, first: int, last: int) -> list[StoredBlock]:
    in_calls = (
        select(STATE.label("state"), tool_calls, tool_outputs.c.size)
        .outerjoin(tool_outputs, of_call(tool_outputs))
        .where(tool_calls.c.run_id == run_id, tool_calls.c.message.between(first - 1, last))
    )
    # A model may use the API's id of a call again in another message.
    calls = {(row.message, row.tool_use_id): _with_id(row) for row in connection.execute(in_calls)}
    names = ("message", "position", "role", "turn", "content", "created_at", "spoken_by")
    query = (
        select(*(blocks.c[name] for name in names))
        .where(blocks.c.run_id == run_id, blocks.c.message.between(first, last))
        .order_by(blocks.c.message, blocks.c.position)
    )
    found = []
    for row in connection.execute(query):
        asked = row.message, str(row.content.get("id", ""))
        if row.content["type"] == "tool_result":
            asked = row.message - 1, row.content["tool_use_id"]
        found.append({**row._mapping, "call": calls.get(asked)})
    return found


def _with_id(call: Row[Any]) -> dict[str, Any]:
    return {"id": ids.call_id(call.run_id, call.turn, call.position), **call._mapping}


def compactions_of_run(database: Database, run_id: str) -> list[StoredCompaction]:
    query = select(compactions).where(compactions.c.run_id == run_id).order_by(compactions.c.number)
    return [{**row._mapping, "clips": len(row.clips)} for row in database.rows(query)]


@reads
def show_call(connection: Connection, call_id: str) -> dict[str, Any]:
    """Return a call's row, label, whole input and stored output. Raises ``NotFoundError``."""
    key = call_key(connection, call_id)
    if key is None:
        raise NotFoundError(f"no tool call is named {call_id}")
    call = select(STATE.label("state"), tool_calls).where(key.of(tool_calls))
    row = connection.execute(call).one()
    # The n-th call of a reply is its n-th block that asks for a tool.
    asks = select(blocks.c.content).where(key.of(tool_calls), CALL_BLOCKS)
    asked = asks.order_by(blocks.c.position).offset(key.position).limit(1)
    kept, result = _output(connection, key)
    whole = result if row.original is None else row.original
    return {
        **_with_id(row),
        "input": (connection.execute(asked).scalar() or {}).get("input"),
        "result": result,
        "label": call_labels(connection, [key.run_id])[key.run_id, row.turn, key.position],
        "output": whole if kept is None else kept.decode(errors="replace"),
    }


def _output(connection: Connection, key: CallKey) -> tuple[bytes | None, Any]:
    """The output of a call, if it was longer than what the model was shown, and what it was shown."""
    kept = select(tool_outputs.c.compressed).where(key.of(tool_outputs))
    compressed = connection.execute(kept).scalar()
    answers = key._replace(message=key.message + 1).of(blocks)
    result = select(blocks.c.content).where(answers, blocks.c.type == "tool_result")
    block = connection.execute(result).scalar()
    return compressed and zlib.decompress(compressed), block and block["content"]


@reads
def tool_output(connection: Connection, run_id: str, name: str) -> bytes | None:
    """The whole output of a call of a run, as UTF-8; None without such a call or a result of it. If a
    hook replaced the result, what the model was shown. A sub-agent that started with a copy of its
    parent's conversation can read the outputs of the calls in that copy. ``name`` is the call's id
    (``call_…``), or the id that the model gave it (``toolu_…``)."""
    in_copy = select(blocks.c.content).where(
        blocks.c.run_id == run_id, blocks.c.turn == 0, blocks.c.type == "tool_use"
    )
    *above, own = lineage(run_id)
    call = connection.execute(_call_named(own, name)).first()
    if call is None and above:
        copied = {visible(block["id"]) for block in connection.execute(in_copy).scalars()}
        found = (connection.execute(_call_named(each, name)).first() for each in above[::-1])
        call = next((each for each in found if each and each.tool_use_id in copied), None)
    if call is None:
        return None
    kept, result = _output(connection, CallKey(*call[:3]))
    if result is not None and (kept is None or call.original is not None):
        return shown_text(result).encode("utf-8", "replace")
    return kept


def _call_named(run_id: str, name: str) -> Select[Any]:
    call = tool_calls.c
    query = select(call.run_id, call.message, call.position, call.tool_use_id, call.original)
    parsed = ids.parse_call_id(name)
    is_named = has_id(name) if parsed and parsed[0] == run_id else call.tool_use_id == name
    return query.where(call.run_id == run_id, is_named)


def system_prompt(database: Database, run_id: str) -> str | None:
    """The system prompt of a run's requests, of an imported session as far as it says. Raises
    ``NotFoundError``: there is no such run."""
    if (session := session_of_run(database, run_id)) is not None:
        return session["system"] or None
    return database.read(lambda connection: _run(connection, run_id)[1].system)


def session_of_run(database: Database, run_id: str) -> dict[str, Any] | None:
    """The row of ``sessions`` about a run, or None if it is no imported session."""
    rows = database.rows(select(sessions).where(sessions.c.run_id == run_id))
    return dict(rows[0]._mapping) if rows else None


def sent_request(database: Database, run_id: str, turn: int) -> ModelRequest:
    """Return the request of a turn (from 1); the last one, if it took several. Raises
    ``NotFoundError``: there is no such run, or nothing was sent in that turn; and ``UsageError`` for an
    imported session."""

    if session_of_run(database, run_id) is not None:
        raise UsageError(
            f"{run_id} is an imported session: it does not say what Claude Code sent; see its "
            "conversation with `runner transcript`"
        )

    def work(connection: Connection) -> ModelRequest:
        run, spec = _run(connection, run_id)
        call = _model_call(connection, run_id, turn)
        has = tool_lists.c.first_sent_in <= call.number
        spec = with_tools_of(connection, run_id, spec, has)
        compacted = load_compacted(connection, run_id, sent_in=call.number)
        return ModelRequest(
            model=run.model or spec.model,
            system=spec.system,
            tools=spec.tools,
            messages=sent_messages(_messages_before(connection, run_id, call), compacted),
            stable=compacted.stable,
            max_tokens=call.max_tokens,
            options=spec.model_options,
            run_id=run_id,
            item_key=run.item_key,
            agent_type=run.agent_type or "",
            reply_number=turn - 1,
            hour_cache=bool(spec.hour_cache if call.hour_cache is None else call.hour_cache),
            batch=call.batch,
        )

    return database.read(work)


def _run(connection: Connection, run_id: str) -> tuple[Any, JobSpec]:
    """A run with its spec, apart from a model of its own."""
    query = select(runs.c.job_id, runs.c.item_key, runs.c.model, runs.c.agent_type)
    run = connection.execute(query.where(runs.c.id == run_id)).one_or_none()
    if run is None:
        raise NotFoundError(f"no run is named {run_id}")
    spec = JobCache().on(connection).spec_of_run(run.job_id, run_id)
    return run, with_instructions_of(connection, run_id, spec)


def _model_call(connection: Connection, run_id: str, turn: int) -> Row[Any]:
    call = model_calls.c
    of_run = select(model_calls).where(call.run_id == run_id, call.purpose == "turn")
    latest = of_run.order_by(call.number.desc()).limit(1)
    found = connection.execute(latest.where(call.turn == turn)).one_or_none()
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
    messages = groupby(found, key=lambda row: (row.message, row.role))
    return [Message(role, tuple(row.content for row in rows)) for (_, role), rows in messages]


def _texts_added_since(connection: Connection, run_id: str, number: int) -> int:
    """Return the number of texts added since a call without a reply started, by the events, because
    workers' clocks may differ."""
    wanted = events.c.type.in_(("model_call_started", "message_added"))
    query = select(events.c.type, events.c.data).where(events.c.run_id == run_id, wanted)
    count = 0
    for event in connection.execute(query.order_by(events.c.number.desc())):
        if event.type == "message_added":
            count += event.data["messages"]
        elif event.data["call"] == number:
            break
    return count

"""What the model was sent in a turn, put together from what is stored."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import Connection, Row, select

from runner.core.context.compaction import sent_messages
from runner.core.conversation import Message, ModelRequest
from runner.core.spec import JobSpec
from runner.errors import NotFoundError
from runner.store.connection.database import Database
from runner.store.job.cache import JobCache
from runner.store.rows.compactions import load_compacted
from runner.store.rows.hooks import with_instructions_of
from runner.store.tables import blocks, events, model_calls, runs


def as_sent(database: Database, run_id: str, turn: int) -> ModelRequest:
    """The request of a turn as it was sent: of its last one, when it took several tries.

    Args:
        turn: its number, from 1.

    Raises:
        NotFoundError: there is no such run, or nothing was sent in that turn.
    """

    def work(connection: Connection) -> ModelRequest:
        run = _run(connection, run_id)
        call = _call(connection, run_id, turn)
        spec = _spec(connection, run_id, run.job_id)
        return ModelRequest(
            model=run.model or spec.model,
            system=spec.system,
            tools=spec.tools,
            messages=sent_messages(
                _messages(connection, run_id, call),
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


def system_prompt(database: Database, run_id: str) -> str | None:
    """The system prompt that a run's turns have. Raises ``NotFoundError``: there is no such run."""

    def work(connection: Connection) -> str | None:
        return _spec(connection, run_id, _run(connection, run_id).job_id).system

    return database.read(work)


def _spec(connection: Connection, run_id: str, job_id: str) -> JobSpec:
    """What the run works by, but for a model of its own."""
    spec = JobCache().on(connection).spec_of_run(job_id, run_id)
    return with_instructions_of(connection, run_id, spec)


def _run(connection: Connection, run_id: str) -> Row[Any]:
    query = select(runs.c.job_id, runs.c.item_key, runs.c.model, runs.c.agent_type)
    run = connection.execute(query.where(runs.c.id == run_id)).one_or_none()
    if run is None:
        raise NotFoundError(f"no run is named {run_id}")
    return cast(Row[Any], run)


def _call(connection: Connection, run_id: str, turn: int) -> Row[Any]:
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


def _messages(connection: Connection, run_id: str, call: Row[Any]) -> list[Message]:
    """The conversation as it stood when the call began. Its reply, and what answers that, belong to
    the call's turn; what was said before it to an earlier one."""
    query = (
        select(blocks.c.message, blocks.c.role, blocks.c.content)
        .where(blocks.c.run_id == run_id, blocks.c.turn < call.turn)
        .order_by(blocks.c.message, blocks.c.position)
    )
    found = connection.execute(query).all()
    if call.stop_reason is None:
        found = found[: len(found) - _said_since(connection, run_id, call.number)]
    messages: dict[int, Message] = {}
    for row in found:
        before = messages.get(row.message, Message(row.role, ()))
        messages[row.message] = Message(row.role, (*before.blocks, row.content))
    return list(messages.values())


def _said_since(connection: Connection, run_id: str, number: int) -> int:
    """How many texts were added after a call began that has no reply. Only the audit record tells: the
    clocks of two workers may differ."""
    query = (
        select(events.c.type, events.c.data)
        .where(
            events.c.run_id == run_id,
            events.c.type.in_(("model_call_started", "message_added")),
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

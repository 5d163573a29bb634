"""Rows of the database as documents: what is read of each to index it, or to show it again."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import (
    JSON,
    ColumnElement,
    Connection,
    Select,
    Table,
    Text,
    and_,
    cast,
    exists,
    func,
    select,
    tuple_,
)

from runner.core.conversation import Block
from runner.store.jobs import SESSIONS
from runner.store.search.documents import Document, Place, block_text, kind_of, output_text
from runner.store.tables import (
    approvals,
    blocks,
    compactions,
    jobs,
    runs,
    tool_calls,
    tool_outputs,
    verifications,
)

_NO_TEXT = ("null", '""')

_IS_RESULT = blocks.c.type == "tool_result"


class Jobs:
    """What is known of jobs, each read once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._models: dict[str, tuple[str | None, dict[str, str | None]]] = {}
        self._sources: dict[str, str | None] = {}

    def source(self, job_id: str) -> str | None:
        """Where a job came from."""
        if job_id not in self._sources:
            query = select(jobs.c.source).where(jobs.c.id == job_id)
            self._sources[job_id] = self._connection.execute(query).scalar_one()
        return self._sources[job_id]

    def model(self, row: Any) -> str | None:
        """The model that a run calls, of whose row ``row`` has ``job_id``, ``own_model`` and
        ``agent_type``."""
        if row.own_model is not None:
            return str(row.own_model)
        if row.job_id not in self._models:
            query = select(jobs.c.spec).where(jobs.c.id == row.job_id)
            spec = self._connection.execute(query).scalar_one()
            models = {agent["name"]: agent["model"] for agent in spec.get("agents", ())}
            self._models[row.job_id] = spec.get("model"), models
        of_job, by_type = self._models[row.job_id]
        return by_type.get(row.agent_type) or of_job


def system_rows() -> Select[Any]:
    return select(jobs.c.id, jobs.c.created_at, _as_text(jobs.c.spec))


def system_document(row: Any) -> Document | None:
    """What a job says to the model before all else."""
    spec = json.loads(row.spec)
    text = spec.get("system")
    if not text:
        return None
    model = spec.get("model")
    return Document(Place("system", row.id), row.created_at, str(text), model=model)


_LATER = blocks.alias()
# Of what a sub-agent's conversation began with only the last block is its own.
_IS_INHERITED = and_(
    runs.c.depth > 0,
    blocks.c.turn == 0,
    exists().where(
        _LATER.c.run_id == blocks.c.run_id,
        _LATER.c.turn == 0,
        tuple_(_LATER.c.message, _LATER.c.position) > tuple_(blocks.c.message, blocks.c.position),
    ),
)


def block_rows() -> Select[Any]:
    """Blocks with what they can be filtered by, the whole outputs where more was kept, and what a person
    or a hook made of the inputs of calls that these are the results of (``ran_with``)."""
    output_is_of = and_(
        _IS_RESULT,
        tool_outputs.c.run_id == blocks.c.run_id,
        tool_outputs.c.message == blocks.c.message - 1,
        tool_outputs.c.position == blocks.c.position,
    )
    call_is_of = and_(
        _IS_RESULT,
        tool_calls.c.run_id == blocks.c.run_id,
        tool_calls.c.message == blocks.c.message - 1,
        tool_calls.c.position == blocks.c.position,
    )
    question_is_of = and_(
        _IS_RESULT,
        approvals.c.run_id == blocks.c.run_id,
        approvals.c.message == blocks.c.message - 1,
        approvals.c.position == blocks.c.position,
    )
    edited, updated = _as_text(approvals.c.edited_input), _as_text(tool_calls.c.updated_input)
    return (
        select(
            *_columns(blocks),
            runs.c.job_id,
            runs.c.item_key,
            runs.c.model.label("own_model"),
            runs.c.agent_type,
            tool_outputs.c.compressed,
            tool_calls.c.name.label("answered_tool"),
            func.coalesce(edited, updated).label("ran_with"),
            _IS_INHERITED.label("is_inherited"),
        )
        .join(runs, runs.c.id == blocks.c.run_id)
        .outerjoin(tool_outputs, output_is_of)
        .outerjoin(tool_calls, call_is_of)
        .outerjoin(approvals, question_is_of)
    )


def content_of(row: Any) -> Block:
    """The content of a block."""
    content: Block = json.loads(row.content)
    return content


def block_place(row: Any) -> Place:
    return Place(kind_of(row.type), row.job_id, row.run_id, row.message, row.position)


def block_document(row: Any, jobs_read: Jobs | None) -> Document | None:
    """A block, its whole output where it is a result of which more was kept. None for what a sub-agent
    has from its parent: it is found there.

    Args:
        jobs_read: tells its model. None: nobody asks for it.
    """
    if row.is_inherited:
        return None
    content = content_of(row)
    return Document(
        block_place(row),
        row.created_at,
        block_text(content, row.compressed),
        role=row.role,
        tool=_tool_of(row, content),
        model=None if jobs_read is None else jobs_read.model(row),
        item=row.item_key,
    )


def _tool_of(row: Any, content: Block) -> str | None:
    """The tool that a block calls, or whose result it is."""
    if row.type == "tool_use":
        return str(content.get("name", ""))
    name: str | None = row.answered_tool
    return name


def compaction_rows() -> Select[Any]:
    return _of_runs(compactions)


def compaction_document(row: Any, jobs_read: Jobs | None) -> Document | None:
    """What stands in for messages in what the model is sent, None where nothing is said."""
    text = json.loads(row.text)
    if not text:
        return None
    return Document(
        compaction_place(row),
        row.created_at,
        str(text),
        model=None if jobs_read is None else jobs_read.model(row),
        item=row.item_key,
    )


def compaction_place(row: Any) -> Place:
    return Place("compaction", row.job_id, row.run_id, row.number)


def is_without_summary(row: Any, jobs_read: Jobs) -> bool:
    """Whether the text of a compaction may still come: a session that was imported has it in another
    line of its file."""
    return jobs_read.source(row.job_id) == SESSIONS and row.text in _NO_TEXT


def verification_rows() -> Select[Any]:
    return _of_runs(verifications)


def verification_document(row: Any, jobs_read: Jobs | None) -> Document:
    """What a verification that has ended said, after the command that said it."""
    output = json.loads(row.content) if row.content is not None else ""
    if row.compressed is not None:
        output = output_text(row.compressed)
    return Document(
        verification_place(row),
        row.ended_at,
        f"{row.command or ''}\n{output}",
        model=None if jobs_read is None else jobs_read.model(row),
        item=row.item_key,
    )


def verification_place(row: Any) -> Place:
    return Place("verification", row.job_id, row.run_id, row.number)


def _of_runs(table: Table) -> Select[Any]:
    return select(
        *_columns(table),
        runs.c.job_id,
        runs.c.item_key,
        runs.c.model.label("own_model"),
        runs.c.agent_type,
    ).join(runs, runs.c.id == table.c.run_id)


def _columns(table: Table) -> list[ColumnElement[Any]]:
    """The columns of a table, JSON as text: a row can be read whatever is in it."""
    return [
        _as_text(column) if isinstance(column.type, JSON) else column for column in table.columns
    ]


def _as_text(column: ColumnElement[Any]) -> ColumnElement[Any]:
    return cast(column, Text).label(column.key)

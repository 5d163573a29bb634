"""Documents: the texts that a search finds, read from the rows that hold them.

A document is a block of a conversation, a system prompt, a summary, a verification, or the input that
a tool call ran with if a person or a hook had changed it.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    JSON,
    ColumnElement,
    Connection,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    exists,
    func,
    select,
    tuple_,
)
from sqlalchemy.exc import SQLAlchemyError

from runner.core.conversation import Block
from runner.core.search import Role, Source
from runner.core.text import visible
from runner.errors import RunnerError
from runner.store import ids
from runner.store.statements import execute
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

Kind = Literal["text", "thinking", "input", "output", "system", "compaction", "verification", "ran"]

# The source that each kind belongs to. The index numbers the kinds in this order.
SOURCE_OF: dict[Kind, Source] = {
    "text": "text",
    "thinking": "thinking",
    "input": "input",
    "output": "output",
    "system": "system",
    "compaction": "text",
    "verification": "output",
    "ran": "input",
}
KINDS = tuple(SOURCE_OF)

# Content that only the API reads again.
_SEALED = frozenset({"signature", "encrypted_content", "encrypted_index", "type", "id"})
_WITH_SEALED_DATA = frozenset({"base64", "redacted_thinking"})

_MOST_KEYS = 200

# Receives one line that a person should know.
Tell = Callable[[str], None]


class Place(NamedTuple):
    """Where the text of a document is stored."""

    kind: Kind
    job_id: str
    run_id: str = ""  # empty for a system prompt
    message: int = 0  # or the number of a compaction or verification
    position: int = 0  # of the block; for "ran" the number of the call in its message


@dataclass(frozen=True, slots=True)
class Document:
    """A text and what it can be filtered by."""

    place: Place
    at: float  # seconds since the epoch
    text: str | None  # None if the row cannot be read
    role: Role | None = None
    tool: str | None = None
    model: str | None = None
    item: str | None = None
    turn: int | None = None
    use_id: str | None = None  # the API's id of the tool call that the block asks for
    call: int | None = None  # the number of the tool call that the document is about
    position: int = 0  # of its block in the message


def _as_text(column: ColumnElement[Any]) -> ColumnElement[Any]:
    return cast(column, Text).label(column.key)


def _columns(table: Table) -> list[ColumnElement[Any]]:
    """Select JSON columns as text, so that a row can be read whatever is in it."""
    return [
        _as_text(column) if isinstance(column.type, JSON) else column for column in table.columns
    ]


_RUN = (runs.c.job_id, runs.c.item_key, runs.c.model.label("own_model"), runs.c.agent_type)


def _of_result(table: Table) -> ColumnElement[bool]:
    """Join a table that is keyed by call to the block that holds the call's result."""
    return and_(
        blocks.c.type == "tool_result",
        table.c.run_id == blocks.c.run_id,
        table.c.message == blocks.c.message - 1,
        table.c.position == blocks.c.position,
    )


_LATER = blocks.alias()
# A sub-agent's conversation starts with blocks of its parent. Only the last of these is its own.
_IS_INHERITED = and_(
    runs.c.depth > 0,
    blocks.c.turn == 0,
    exists().where(
        _LATER.c.run_id == blocks.c.run_id,
        _LATER.c.turn == 0,
        tuple_(_LATER.c.message, _LATER.c.position) > tuple_(blocks.c.message, blocks.c.position),
    ),
)

# ``compressed`` is the whole output if more was kept than the block has, and ``ran_with`` the input
# that a person or a hook gave the call.
_BLOCK_ROWS = (
    select(
        *_columns(blocks),
        *_RUN,
        tool_outputs.c.compressed,
        tool_calls.c.name.label("answered_tool"),
        func.coalesce(
            _as_text(approvals.c.edited_input), _as_text(tool_calls.c.updated_input)
        ).label("ran_with"),
        _IS_INHERITED.label("is_inherited"),
    )
    .join(runs, runs.c.id == blocks.c.run_id)
    .outerjoin(tool_outputs, _of_result(tool_outputs))
    .outerjoin(tool_calls, _of_result(tool_calls))
    .outerjoin(approvals, _of_result(approvals))
)
_SYSTEM_ROWS = select(jobs.c.id, jobs.c.created_at, _as_text(jobs.c.spec))
_COMPACTION_ROWS, _VERIFICATION_ROWS = (
    select(*_columns(table), *_RUN).join(runs, runs.c.id == table.c.run_id)
    for table in (compactions, verifications)
)

# A call's number in its message counts the blocks that ask for tools.
_ASKED = (
    select(blocks.c.position, blocks.c.turn, cast(blocks.c.content, Text).label("content"))
    .where(
        blocks.c.run_id == bindparam("run"),
        blocks.c.message == bindparam("reply"),
        blocks.c.type == "tool_use",
    )
    .order_by(blocks.c.position)
)
_CALLS = select(tool_calls.c.tool_use_id, tool_calls.c.turn, tool_calls.c.position).where(
    tool_calls.c.run_id == bindparam("run"), tool_calls.c.message == bindparam("reply")
)


class Reader:
    """Makes documents of rows.

    A document whose row is damaged has no text, and ``tell`` is told which one it is.

    Args:
        with_models: look up each document's model, which the index needs.
    """

    def __init__(
        self, connection: Connection, tell: Tell = lambda _line: None, *, with_models: bool = True
    ) -> None:
        self._connection = connection
        self._tell = tell
        self._with_models = with_models
        self._models: dict[str, tuple[str | None, dict[str, str | None]]] = {}

    def of_job(self, row: Any) -> Iterator[Document]:
        place = Place("system", row.id)
        yield from self._guarded(place, row.created_at, partial(self._system, place, row))

    def of_block(self, row: Any) -> Iterator[Document]:
        """Yield the document of a block, and what the call ran with if the block is its result."""
        if row.is_inherited:
            return  # it is found in the parent
        kind = _kind_of(row.type)
        place = Place(kind, row.job_id, row.run_id, row.message, row.position)
        yield from self._guarded(place, row.created_at, partial(self._block, place, row))
        if row.ran_with is not None:
            place = Place("ran", row.job_id, row.run_id, row.message - 1, row.position)
            yield from self._guarded(place, row.created_at, partial(self._ran, place, row))

    def of_compaction(self, row: Any) -> Iterator[Document]:
        place = Place("compaction", row.job_id, row.run_id, row.number)
        yield from self._guarded(place, row.created_at, partial(self._compaction, place, row))

    def of_verification(self, row: Any) -> Iterator[Document]:
        place = Place("verification", row.job_id, row.run_id, row.number)
        yield from self._guarded(place, row.ended_at, partial(self._verification, place, row))

    def _guarded(
        self, place: Place, at: float, read: Callable[[], Document | None]
    ) -> Iterator[Document]:
        try:
            document = read()
        except (SQLAlchemyError, RunnerError):
            raise  # the database does not answer
        except Exception as error:  # the row holds anything: all others are still to be found
            document = unread(place, at, error, self._tell)
        if document is not None:
            yield document

    def _system(self, place: Place, row: Any) -> Document | None:
        spec = json.loads(row.spec)
        text = spec.get("system")
        if not text:
            return None
        return Document(place, row.created_at, str(text), model=spec.get("model"))

    def _block(self, place: Place, row: Any) -> Document:
        content: Block = json.loads(row.content)
        is_call = row.type == "tool_use"
        return Document(
            place,
            row.created_at,
            _whole_text(content, row.compressed),
            role=row.role,
            tool=str(content.get("name", "")) if is_call else row.answered_tool,
            model=self._model(row),
            item=row.item_key,
            turn=row.turn,
            use_id=content.get("id") if is_call else None,
            call=row.position if row.answered_tool is not None else None,
            position=row.position,
        )

    def _ran(self, place: Place, row: Any) -> Document | None:
        """Return what a call ran with, or None if that is what the model asked for."""
        asked = execute(self._connection, _ASKED, {"run": row.run_id, "reply": place.message})
        block = asked[row.position]
        given = json.loads(row.ran_with)
        if json.loads(block.content).get("input") == given:
            return None
        return Document(
            place,
            row.created_at,
            "\n".join(_scalars(given)),
            role="assistant",
            tool=row.answered_tool,
            model=self._model(row),
            item=row.item_key,
            turn=block.turn,
            call=row.position,
            position=block.position,
        )

    def _compaction(self, place: Place, row: Any) -> Document | None:
        text = json.loads(row.text)
        return self._beside(place, row, row.created_at, str(text)) if text else None

    def _verification(self, place: Place, row: Any) -> Document:
        output = json.loads(row.content) if row.content is not None else ""
        if row.compressed is not None:
            output = _unpacked(row.compressed)
        return self._beside(place, row, row.ended_at, f"{row.command or ''}\n{output}")

    def _beside(self, place: Place, row: Any, at: float, text: str) -> Document:
        return Document(place, at, text, model=self._model(row), item=row.item_key, turn=row.turn)

    def _model(self, row: Any) -> str | None:
        """Return the model that a run calls."""
        if not self._with_models:
            return None
        if row.own_model is not None:
            return str(row.own_model)
        if row.job_id not in self._models:
            query = select(jobs.c.spec).where(jobs.c.id == row.job_id)
            spec = self._connection.execute(query).scalar_one()
            models = {agent["name"]: agent["model"] for agent in spec.get("agents", ())}
            self._models[row.job_id] = spec.get("model"), models
        of_job, by_type = self._models[row.job_id]
        return by_type.get(row.agent_type) or of_job


def unread(place: Place, at: float, error: Exception, tell: Tell) -> Document:
    """Return a document without a text, and tell why it has none."""
    where = place.run_id or place.job_id
    tell(
        f"the {place.kind} of {where} at {place.message}.{place.position} cannot be read "
        f"({type(error).__name__}: {str(error)[:100]}): searches leave it out, until "
        "`runner db reindex`"
    )
    return Document(place, at if math.isfinite(at) else 0.0, None)


def _kind_of(block_type: str) -> Kind:
    match block_type:
        case "text" | "thinking":
            return block_type
        case kind if kind.endswith("_use"):
            return "input"
        case kind if kind.endswith("_result"):
            return "output"
        case _:
            return "text"


def _whole_text(block: Block, compressed: bytes | None) -> str:
    """Return the text of a block, or the whole output if more was kept than the block has. The lines
    that only the block has (how the call ended, what was left out) come after the output."""
    shown = _block_text(block)
    if compressed is None:
        return shown
    whole = _unpacked(compressed)
    lines = set(whole.splitlines())
    return "\n".join([whole, *(line for line in shown.splitlines() if line not in lines)])


def _block_text(block: Block) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "thinking":
            return str(block.get("thinking", ""))
        case "tool_use":
            return "\n".join(_scalars(block.get("input")))
        case str(kind) if kind.endswith("_use"):
            return "\n".join([str(block.get("name", "")), *_scalars(block.get("input"))])
        case "tool_result":
            return "\n".join(_texts(block.get("content")))
        case _:
            return "\n".join(_texts(block))


def _unpacked(compressed: bytes) -> str:
    return zlib.decompress(compressed).decode(errors="replace")


def _scalars(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield the texts and numbers in a tool's input. The names of its parameters belong to the tool and
    are left out; names further down were given with the input."""
    if isinstance(value, dict):
        for name, each in value.items():
            if depth > 0:
                yield str(name)
            yield from _scalars(each, depth + 1)
    elif isinstance(value, list):
        for each in value:
            yield from _scalars(each, depth + 1)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a JSON value that are not sealed."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        seals_data = value.get("type") in _WITH_SEALED_DATA
        for name, each in value.items():
            if name not in _SEALED and not (name == "data" and seals_data):
                yield from _texts(each)


@dataclass(frozen=True, eq=False)
class Origin:
    """A table that holds documents."""

    table: Table
    query: Select[Any]
    documents: Callable[[Reader, Any], Iterator[Document]]

    def rows(self, connection: Connection, keys: Collection[tuple[Any, ...]]) -> Iterator[Any]:
        """Yield the rows with these primary keys."""
        columns = list(self.table.primary_key.columns)
        if connection.dialect.name != "sqlite":
            query = self.query.where(tuple_(*columns).in_(sorted(keys)))
            yield from connection.execute(query)
            return
        # SQLite would scan the table for a list of composite keys.
        names = [f"key_{column.name}" for column in columns]
        for key in sorted(keys):
            yield from execute(connection, self._by_key, dict(zip(names, key, strict=True)))

    @cached_property
    def _by_key(self) -> Select[Any]:
        columns = self.table.primary_key.columns
        return self.query.where(*(each == bindparam(f"key_{each.name}") for each in columns))


BLOCKS = Origin(blocks, _BLOCK_ROWS, Reader.of_block)
SYSTEMS = Origin(jobs, _SYSTEM_ROWS, Reader.of_job)
COMPACTIONS = Origin(compactions, _COMPACTION_ROWS, Reader.of_compaction)
VERIFICATIONS = Origin(verifications, _VERIFICATION_ROWS, Reader.of_verification)


def read_documents(connection: Connection, places: Sequence[Place]) -> dict[Place, Document]:
    """Return the documents at some places. Those that are gone or cannot be read are left out."""
    reader = Reader(connection, with_models=False)
    found: dict[Place, Document] = {}
    for start in range(0, len(places), _MOST_KEYS):
        wanted = set(places[start : start + _MOST_KEYS])
        keys: dict[Origin, set[tuple[Any, ...]]] = {}
        for place in wanted:
            origin, key = _row_of(place)
            keys.setdefault(origin, set()).add(key)
        for origin, of_origin in keys.items():
            for row in origin.rows(connection, of_origin):
                for document in origin.documents(reader, row):
                    if document.place in wanted and document.text is not None:
                        found[document.place] = document
    return found


def _row_of(place: Place) -> tuple[Origin, tuple[Any, ...]]:
    """Return where the row of a document is, and its primary key."""
    match place.kind:
        case "system":
            return SYSTEMS, (place.job_id,)
        case "compaction":
            return COMPACTIONS, (place.run_id, place.message)
        case "verification":
            return VERIFICATIONS, (place.run_id, place.message)
        case "ran":  # read with the result of the call
            return BLOCKS, (place.run_id, place.message + 1, place.position)
        case _:
            return BLOCKS, (place.run_id, place.message, place.position)


def call_ids(connection: Connection, documents: Collection[Document]) -> dict[Place, str]:
    """Return Runner's ids of the tool calls that documents are about."""
    known: dict[Place, str] = {}
    asked: dict[tuple[str, int, str], Place] = {}
    for document in documents:
        place = document.place
        if document.call is not None:
            known[place] = ids.call_id(place.run_id, document.turn or 0, document.call)
        elif document.use_id is not None:
            asked[place.run_id, place.message, visible(document.use_id)] = place
    for run_id, message in sorted({key[:2] for key in asked}):
        for row in execute(connection, _CALLS, {"run": run_id, "reply": message}):
            place_of_call = asked.get((run_id, message, row.tool_use_id))
            if place_of_call is not None:
                known[place_of_call] = ids.call_id(run_id, row.turn, row.position)
    return known

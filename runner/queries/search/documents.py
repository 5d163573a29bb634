"""Documents: the texts that a search finds, read from the rows that hold them.

A document is a block of a conversation, a system prompt, a summary, a verification, the input that a
tool call ran with if a person or a hook had changed it, or what an imported session says beside its
conversation: its title, its id, its system prompt and its notes.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select, Table, and_, bindparam, select
from sqlalchemy.exc import SQLAlchemyError

from runner.core.conversation import Block
from runner.core.media import is_media, media_line
from runner.core.search import Role, Source
from runner.core.text import visible
from runner.errors import RunnerError
from runner.store import ids
from runner.store.database import in_lots, reads
from runner.store.statements import execute
from runner.store.tables import (
    approvals,
    blocks,
    compactions,
    jobs,
    runs,
    sessions,
    tool_calls,
    tool_outputs,
    verifications,
)

Kind = Literal[
    "text", "thinking", "input", "output", "system", "compaction", "verification", "ran", "session"
]

# The source that each kind belongs to. The index numbers the kinds in this order.
_SOURCE_OF: dict[Kind, Source] = {
    "text": "text",
    "thinking": "thinking",
    "input": "input",
    "output": "output",
    "system": "system",
    "compaction": "text",
    "verification": "output",
    "ran": "input",
    "session": "system",
}
KINDS = tuple(_SOURCE_OF)

# Content that only the API reads again.
_SEALED = frozenset({"signature", "encrypted_content", "encrypted_index", "type", "id"})
_WITH_SEALED_DATA = frozenset({"base64", "redacted_thinking"})

_MOST_KEYS = 200

# Receives one line that a person should know.
Tell = Callable[[str], None]


class Place(NamedTuple):
    kind: Kind
    job_id: str
    run_id: str = ""  # empty for a system prompt
    message: int = 0  # or the number of a compaction or verification
    position: int = 0  # of the block; for "ran" the number of the call in its message

    @property
    def source(self) -> Source:
        return _SOURCE_OF[self.kind]


@dataclass(frozen=True, slots=True)
class Document:
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
    spoken_by: Role | None = None  # of a user's words in an imported session


def _columns(table: Table) -> list[ColumnElement[Any]]:
    """The columns, JSON as text, so that a row can be read whatever is in it."""
    return [
        sa.cast(column, sa.Text).label(column.key) if isinstance(column.type, sa.JSON) else column
        for column in table.columns
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
    sa.exists().where(
        _LATER.c.run_id == blocks.c.run_id,
        _LATER.c.turn == 0,
        sa.tuple_(_LATER.c.message, _LATER.c.position)
        > sa.tuple_(blocks.c.message, blocks.c.position),
    ),
)

# ``at`` is the time of the document, ``compressed`` the whole output if more was kept than the block
# has, and ``ran_with`` the input that a person or a hook gave the call.
_BLOCK_ROWS = (
    select(
        *(*_columns(blocks), blocks.c.created_at.label("at"), *_RUN, tool_outputs.c.compressed),
        tool_calls.c.name.label("answered_tool"),
        sa.func.coalesce(
            sa.cast(approvals.c.edited_input, sa.Text), sa.cast(tool_calls.c.updated_input, sa.Text)
        ).label("ran_with"),
        _IS_INHERITED.label("is_inherited"),
    )
    .join(runs, runs.c.id == blocks.c.run_id)
    .outerjoin(tool_outputs, _of_result(tool_outputs))
    .outerjoin(tool_calls, _of_result(tool_calls))
    .outerjoin(approvals, _of_result(approvals))
)
_SYSTEM_ROWS = select(
    jobs.c.id, jobs.c.created_at.label("at"), sa.cast(jobs.c.spec, sa.Text).label("spec")
)
_COMPACTION_ROWS, _VERIFICATION_ROWS = (
    select(*_columns(table), at.label("at"), *_RUN).join(runs, runs.c.id == table.c.run_id)
    for table, at in (
        (compactions, compactions.c.created_at),
        (verifications, verifications.c.ended_at),
    )
)

# A call's number in its message counts the blocks that ask for tools.
_ASKED = (
    select(blocks.c.position, blocks.c.turn, sa.cast(blocks.c.content, sa.Text).label("content"))
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
    """Makes documents of rows; ``with_models`` also looks up their models, which the index needs. A
    document whose row is damaged has no text, and ``tell`` is told which one it is."""

    def __init__(
        self, connection: Connection, tell: Tell = lambda _line: None, *, with_models: bool = True
    ) -> None:
        self._connection = connection
        self._tell = tell
        self._with_models = with_models
        self._models: dict[str, tuple[str | None, dict[str, str | None]]] = {}

    def documents(self, origin: Origin, row: Any) -> Iterator[Document]:
        for place in origin.places(row):
            try:
                document = self._read(place, row)
            except (SQLAlchemyError, RunnerError):
                raise  # the database does not answer
            except Exception as error:  # the row holds anything: all others are still to be found
                document = unread(place, row.at, error, self._tell)
            if document is not None:
                yield document

    def _read(self, place: Place, row: Any) -> Document | None:
        if place.kind == "system":
            spec = json.loads(row.spec)
            text, model = spec.get("system"), spec.get("model")
            return Document(place, row.at, str(text), model=model) if text else None
        make = partial(Document, place, row.at, model=self._model(row), item=row.item_key)
        match place.kind:
            case "compaction":
                text = json.loads(row.text)
                return make(str(text), turn=row.turn) if text else None
            case "session":
                texts = (row.title, row.session_id, json.loads(row.system), json.loads(row.notes))
                return make("\n".join(filter(None, texts)))
            case "verification":
                output = json.loads(row.content) if row.content is not None else ""
                if row.compressed is not None:
                    output = _unpacked(row.compressed)
                return make(f"{row.command or ''}\n{output}", turn=row.turn)
            case "ran":
                reply = {"run": row.run_id, "reply": place.message}
                block = execute(self._connection, _ASKED, reply)[row.position]
                given = json.loads(row.ran_with)
                if json.loads(block.content).get("input") == given:
                    return None  # the model asked for that
                where = {"turn": block.turn, "call": row.position, "position": block.position}
                return make("\n".join(_scalars(given)), "assistant", row.answered_tool, **where)
        content: Block = json.loads(row.content)
        is_call = row.type == "tool_use"
        return make(
            _whole_text(content, row.compressed),
            role=row.role,
            spoken_by=row.spoken_by,
            tool=str(content.get("name", "")) if is_call else row.answered_tool,
            turn=row.turn,
            use_id=content.get("id") if is_call else None,
            call=row.position if row.answered_tool is not None else None,
            position=row.position,
        )

    def _model(self, row: Any) -> str | None:
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
    kind = str(block.get("type"))
    if kind in ("text", "thinking"):
        return str(block.get(kind, ""))
    if kind.endswith("_use"):
        name = () if kind == "tool_use" else (str(block.get("name", "")),)
        return "\n".join((*name, *_scalars(block.get("input"))))
    return "\n".join(_texts(block.get("content") if kind == "tool_result" else block))


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
    elif is_media(value):
        yield media_line(value)
    elif isinstance(value, dict):
        seals_data = value.get("type") in _WITH_SEALED_DATA
        for name, each in value.items():
            if name not in _SEALED and not (name == "data" and seals_data):
                yield from _texts(each)


def _of_block(row: Any) -> Iterator[Place]:
    """Yield the place of a block, and of what the call ran with if the block is its result."""
    if row.is_inherited:
        return  # it is found in the parent
    kind: Kind = "thinking" if row.type == "thinking" else "text"
    if row.type.endswith(("_use", "_result")):
        kind = "input" if row.type.endswith("_use") else "output"
    yield Place(kind, row.job_id, row.run_id, row.message, row.position)
    if row.ran_with is not None:
        yield Place("ran", row.job_id, row.run_id, row.message - 1, row.position)


@dataclass(frozen=True, eq=False)
class Origin:
    """A table that holds documents."""

    table: Table
    query: Select[Any]
    places: Callable[[Any], Iterator[Place]]  # of the documents in a row

    def rows(self, connection: Connection, keys: Collection[tuple[Any, ...]]) -> Iterator[Any]:
        columns = list(self.table.primary_key.columns)
        if connection.dialect.name != "sqlite":
            query = self.query.where(sa.tuple_(*columns).in_(sorted(keys)))
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


def _of_number(kind: Kind, row: Any) -> Iterator[Place]:
    yield Place(kind, row.job_id, row.run_id, row.number)


def _of_session(row: Any) -> Iterator[Place]:
    yield Place("session", row.job_id, row.run_id)


BLOCKS = Origin(blocks, _BLOCK_ROWS, _of_block)
SYSTEMS = Origin(jobs, _SYSTEM_ROWS, lambda row: iter([Place("system", row.id)]))
SESSION_ROWS = Origin(
    sessions,
    select(*_columns(sessions), runs.c.started_at.label("at"), *_RUN).join(
        runs, runs.c.id == sessions.c.run_id
    ),
    _of_session,
)
COMPACTIONS = Origin(compactions, _COMPACTION_ROWS, partial(_of_number, "compaction"))
VERIFICATIONS = Origin(verifications, _VERIFICATION_ROWS, partial(_of_number, "verification"))


@reads
def read_documents(connection: Connection, places: Sequence[Place]) -> dict[Place, Document]:
    """Return the documents at some places. Those that are gone or cannot be read are left out."""
    reader = Reader(connection, with_models=False)
    found: dict[Place, Document] = {}
    for wanted in map(set, in_lots(places, _MOST_KEYS)):
        keys: dict[Origin, set[tuple[Any, ...]]] = {}
        for place in wanted:
            origin, key = _row_of(place)
            keys.setdefault(origin, set()).add(key)
        rows = ((origin, row) for origin in keys for row in origin.rows(connection, keys[origin]))
        for document in (each for of_row in rows for each in reader.documents(*of_row)):
            if document.place in wanted and document.text is not None:
                found[document.place] = document
    return found


def _row_of(place: Place) -> tuple[Origin, tuple[Any, ...]]:
    match place.kind:
        case "system":
            return SYSTEMS, (place.job_id,)
        case "compaction":
            return COMPACTIONS, (place.run_id, place.message)
        case "verification":
            return VERIFICATIONS, (place.run_id, place.message)
        case "session":
            return SESSION_ROWS, (place.run_id,)
        case "ran":  # read with the result of the call
            return BLOCKS, (place.run_id, place.message + 1, place.position)
        case _:
            return BLOCKS, (place.run_id, place.message, place.position)


@reads
def call_ids(connection: Connection, documents: Collection[Document]) -> dict[Place, str]:
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
            if of_call := asked.get((run_id, message, row.tool_use_id)):
                known[of_call] = ids.call_id(run_id, row.turn, row.position)
    return known

"""Checks of a file of Runner's own format, so that readers can rely on its rows as on rows that Runner
wrote.

Nothing in a file is trusted: ids become parts of paths, and text is shown on terminals.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    TypeAdapter,
    ValidationError,
    create_model,
)
from sqlalchemy import JSON, BigInteger, Column

from runner.core.agents import DEEPEST, place_columns
from runner.core.context import CompactionKind
from runner.core.conversation import Purpose, Role, Tool, check_block
from runner.core.entries import ToolsListed
from runner.core.hooks import HookDecision, HookEvent
from runner.core.run import ENDED, RunStatus
from runner.core.spec import JobSpec, decoder
from runner.core.state import Progress
from runner.core.text import LONGEST_LINE, is_storable, read_json_object, shorten, visible
from runner.core.times import MOST_REAL
from runner.permissions import Effect, ToolContext
from runner.store.exports import FORMATS, JOB_TABLES, RUN_TABLES
from runner.store.run_state import progress_from_row, tool_context_from_json
from runner.store.tables import job_budgets


def require(condition: bool, problem: str) -> None:
    """Raise ``ValueError`` with the problem of a file unless the condition holds."""
    if not condition:
        raise ValueError(problem)


# --- Values against their types ---

_LARGEST_NUMBER = 2**60  # sums of a few such numbers still fit into 64 bits
_STRICT = ConfigDict(strict=True, extra="forbid", revalidate_instances="always")


@cache
def _type_of(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(tuple[hint], config=_STRICT)  # a dataclass by itself takes no config


def misfit(value: Any, hint: Any, *name: str) -> str | None:
    """Return the first part of a value that is not of its type, with its problem, or None. The type is a
    dataclass, or what its fields are made of; ``name`` is the value's own."""
    try:
        _type_of(hint).validate_python((value,))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return _told((*name, *first["loc"][1:]), first["msg"])
    where = next(_too_large(value), None)
    return None if where is None else _told((*name, *where), "Number is too large")


def _told(where: Iterable[int | str], problem: str) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in where)
    problem = problem.removeprefix("Value error, ")
    return f"{shorten(''.join(steps).lstrip('.'), 80)}: {problem[:1].lower()}{problem[1:]}"


def _too_large(value: Any) -> Iterator[tuple[int | str, ...]]:
    """Yield the places of too large numbers. Lists and mappings, which have any JSON, are left out."""
    if type(value) in (int, float) and not abs(value) <= _LARGEST_NUMBER:
        yield ()
    parts: Any = enumerate(value) if isinstance(value, tuple) else ()
    if is_dataclass(value):
        parts = ((each.name, getattr(value, each.name)) for each in fields(value))
    for step, part in parts:
        yield from ((step, *rest) for rest in _too_large(part))


def _made(value: Any, parse: Callable[[Any], Any], hint: Any, what: str) -> Any:
    """Return the value of a type that ``parse`` makes of JSON. Raises ``ValueError`` if it fails or the
    result is not of the type: with ``what``, such as ``jobs.spec is no job's``."""
    try:
        found = parse(value)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(f"{what} ({type(error).__name__}: {error})") from error
    if (problem := misfit(found, hint)) is not None:
        raise ValueError(f"{what} ({problem})")
    return found


# --- Rows by themselves ---

Row = Mapping[str, Any]


def _only(holds: Callable[[Any], bool], problem: str) -> AfterValidator:
    def check(value: Any) -> Any:
        require(holds(value), problem)
        return value

    return AfterValidator(check)


def _fits_double(value: Any) -> bool:
    return not isinstance(value, int) or abs(value) <= sys.float_info.max


def _id(kind: str, path: str = "") -> Any:
    return Annotated[str, Field(pattern=rf"^{kind}_[0-9a-z]{{26}}{path}$")]


_Object = dict[str, Any]
_Tools = tuple[Tool, ...]
_Block = Annotated[Any, AfterValidator(check_block)]
_Count = Annotated[int, Field(ge=0, lt=2**31)]
_Real = Annotated[float, Field(ge=0, le=MOST_REAL)]
_EventType = Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,59}$")]
_BY_KIND: Mapping[type, Any] = {
    int: _Count,
    bool: bool,
    float: _Real,
    str: Annotated[str, _only(is_storable, "it has a character that no database can hold")],
    bytes: Annotated[str, AfterValidator(partial(base64.b64decode, validate=True))],
    dict: Annotated[Any, _only(_fits_double, "it is a number that is too large for a database")],
}
# The types of columns, where they say more than the database.
_BY_NAME: Mapping[str, Any] = {
    "jobs.id": _id("job"),
    # The id of a sub-agent ends with its number in each run above it.
    "runs.id": _id("run", rf"(\.[1-9][0-9]{{0,3}}){{0,{DEEPEST}}}"),
    "approvals.id": _id("apr"),
    "runs.state": RunStatus,
    "permission_rules.effect": Effect,
    "blocks.role": Role,
    "blocks.content": _Block,
    "approvals.answer": Literal["approved", "denied", "expired", "cancelled"],
    "approvals.answered_via": Literal["person", "rule", "timeout", "cancel", "end"],
    "model_calls.purpose": Purpose,
    "model_calls.cut": list[_Object],
    "compactions.kind": CompactionKind,
    "compactions.clips": list[Annotated[tuple[_Count, _Count, str], Strict(False)]],
    "hook_runs.event": HookEvent,
    "hook_runs.decision": HookDecision,
    "hook_runs.exit_code": Annotated[int, Field(ge=-(2**31), lt=2**31)],  # negative for a signal
    **dict.fromkeys(("events.type", "job_events.type"), _EventType),
    **dict.fromkeys(("events.data", "job_events.data"), _Object),
    **dict.fromkeys(("tool_calls.updated_input", "tool_calls.details"), _Object),
    "approvals.edited_input": _Object,
    **dict.fromkeys(("sessions.system", "sessions.notes", "compactions.text"), str),
    "verifications.content": str,
}
# Columns of a table that have a value in the same rows.
_TOGETHER = {
    "runs": [("fork_turn", "fork_of")],
    "approvals": [("answered_at", "answer")],
    "hook_runs": [("position", "message")],
}


@cache
def _row_type(table: str) -> type[BaseModel]:
    columns = {column.name: _field(column) for column in FORMATS[table].columns}
    make: Any = create_model
    made: type[BaseModel] = make(table, __config__=_STRICT, **columns)
    return made


def _field(column: Column[Any]) -> tuple[Any, Any]:
    """Return the type of a column's values, and their default in rows of an older Runner, which do not
    have the column."""
    kind = dict if isinstance(column.type, JSON) else column.type.python_type
    hint = _BY_NAME.get(str(column), _BY_KIND[kind])
    if isinstance(column.type, BigInteger):
        # Sums over many rows must stay within 64 bits: tokens and sizes, and a job's billionths of a USD.
        hint = Annotated[int, Field(ge=0, le=2**60 if column.table is job_budgets else 2**50)]
    if column.server_default is not None:
        text = str(column.server_default.arg)  # type: ignore[attr-defined]  # a plain value
        return hint, kind(int(text)) if kind in (int, bool) else text
    return (hint | None, None) if column.nullable else (hint, ...)


def read_row(table: str, values: Any) -> dict[str, Any]:
    """Return a file's row as the database takes it. Raises ``ValueError`` with column and problem."""
    try:
        return dict(_row_type(table).model_validate(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        newer = ": the file may be of a newer Runner" if first["type"] == "extra_forbidden" else ""
        raise ValueError(_told((table, *first["loc"]), first["msg"]) + newer) from error


def check_row(table: str, row: Row) -> None:
    """Check a row beyond the types of its columns. Raises ``ValueError``."""
    for column, other in _TOGETHER.get(table, ()):
        together = (row[column] is None) == (row[other] is None)
        require(together, f"{table}.{column} goes with {table}.{other}")
    match table:
        case "events" | "job_events":
            check_event(table, row["type"], row["data"])
        case "blocks":
            # An import of sessions stores the type without control characters.
            kind = row["content"]["type"]
            require(row["type"] in (kind, visible(kind)), "blocks.content is no block of that type")
        case "tool_lists":
            tools = _made(row["tools"], decoder(_Tools), _Tools, "tool_lists.tools are none")
            is_same = ToolsListed(tools).sha256 == row["sha256"]
            require(is_same, "tool_lists.sha256 is not that of the tools")
        case "approvals":
            what = "approvals.setting is none"
            _made(row["setting"], tool_context_from_json, ToolContext, what)
    if row.get("compressed") is not None:
        for number, line in enumerate(_unpacked(table, row).split(b"\n"), 1):
            is_object = table != "session_lines" or read_json_object(line) is not None
            require(is_object, f"session_lines.compressed: line {number} is no object of JSON")


def _unpacked(table: str, row: Row) -> bytes:
    """Unpack no more than the row says: it may be a decompression bomb."""
    size = row["size"]
    require(size is not None and size <= LONGEST_LINE, f"{table}.size is no size of an output")
    unpacking = zlib.decompressobj()
    try:
        unpacked = unpacking.decompress(row["compressed"], size + 1)
    except zlib.error as error:
        raise ValueError(f"{table}.compressed is damaged ({error})") from error
    is_whole = len(unpacked) == size and unpacking.eof and not unpacking.unused_data
    require(is_whole, f"{table}.compressed does not hold the {size} bytes that the row says")
    return unpacked


# The type of a value in the data of an event by its name, the same in all events.
_EVENT_VALUES: dict[str, Any] = {
    name: hint
    for hint, names in (
        (str, "approval cause command commit decision error input kind message name"),
        (str, "outcome output text tool_use_id traceback"),
        (str | None, "answer by detail reason rule state stop_reason via why worker"),
        (_Count, "call_index first last messages turn verification"),
        (_Count | None, "call"),
        (_Real | None, "at due_at duration latency"),
        (bool, "edited"),
        (_Object | None, "new old"),
        (Purpose, "purpose"),
    )
    for name in names.split()
}
# The values that readers need in the data of an event, by its type.
_NEEDED: dict[str, list[str]] = {
    kind: names.split()
    for names, kinds in (
        ("turn call_index name", "outcome_asked permission_decided tool_done tool_started"),
        ("turn call_index name answer", "approval_answered"),
        ("state", "done"),
        ("messages", "message_added"),
        ("text", "message_queued"),
        ("call turn", "model_call_started"),
        ("at", "retry_scheduled"),
        ("turn", "turn_ended turn_started"),
        ("reason", "waiting"),
    )
    for kind in kinds.split()
}


def check_event(table: str, kind: str, data: Mapping[str, Any]) -> None:
    """Check the data of an event of a table. A type that this Runner does not know may have any data, but
    values with a known name must be of the known type. Raises ``ValueError``."""
    is_reply = kind == "model_call_ended" and data.get("stop_reason") is not None
    has_turn = is_reply or "call_index" in data
    for name in (*_NEEDED.get(kind, ()), *(("turn",) if has_turn else ())):
        require(data.get(name) is not None, f"{table}.data of {kind!a}: {name} is missing")
    for name in filter(_EVENT_VALUES.__contains__, data):
        problem = misfit(data[name], _EVENT_VALUES[name], name)
        require(problem is None, f"{table}.data of {kind!a}: {problem}")


# --- Rows against each other ---

Place = tuple[int, int]  # of a tool call: its message, and its position there


@dataclass(eq=False)
class Section:
    """The rows of a job as a whole, or of one run, in a file."""

    id: str
    start: int  # in the file, in bytes
    rows: int = 0
    digest: str = ""  # of the rows as lines
    key: str | None = None  # of a job, if its submitter gave it one
    # Of a run:
    has_ended: bool = True  # no part of it goes on or waits
    approvals: list[str] = field(default_factory=list)  # their ids


class FileCheck:
    """Checks the rows of a file in order. Raises ``ValueError``."""

    def __init__(self) -> None:
        self.sections: list[Section] = []
        self._spec: JobSpec
        self._known: dict[str, set[Place]] = {}  # the runs, with the calls that start sub-agents
        self._delegating: set[str] = set()  # runs whose sub-agent for the whole task is to come

    def add(self, start: int, table: Any, written: Any) -> None:
        """Check the next row, which begins ``start`` bytes into the file."""
        known = isinstance(table, str) and table in FORMATS
        require(known, f"there is no table {str(table)[:60]!a}: the file may be of a newer Runner")
        row = read_row(table, written)
        if table in ("jobs", "runs"):
            self._begin_section(start, table, row["id"])
        require(bool(self.sections), "the first row is not the job's")
        job, section = self.sections[0], self.sections[-1]
        self._rows[table] += 1
        self._check_order(table, row)
        check_row(table, row)
        self._digest.update(FORMATS[table].line(row))
        ids = {"job_id": job.id, "run_id": None if section is job else section.id}
        for column, id_ in ids.items():
            require(row.get(column, id_) == id_, f"{table}.{column} is not {id_ or 'null'}")
        if table == "jobs":
            what = "jobs.spec is no job's"
            section.key = row["key"]
            self._spec = _made(row["spec"], JobSpec.from_json, JobSpec, what)
            is_flat = self._spec.limits.max_agent_depth <= DEEPEST
            require(is_flat, f"{what} (limits.max_agent_depth is over {DEEPEST})")
        elif table == "runs":
            self._add_run(row)
        elif section is not job:
            self._add_of_run(section, table, row)

    def _add_of_run(self, section: Section, table: str, row: Row) -> None:
        if table in ("tool_outputs", "approvals", "hook_runs"):
            of_call = (row["message"], row["position"]) in self._calls
            of_call |= row["message"] is None  # of a hook
            require(of_call, f"{table} has a row of no tool call")
        match table:
            case "blocks":
                # A sub-agent's conversation begins with calls of its parent.
                is_own = row["turn"] > 0 or self._run["parent_run"] is None
                if row["type"] == "tool_use" and row["role"] == "assistant" and is_own:
                    use, message = row["content"], row["message"]
                    place = message, self._asked[message]
                    self._open[place] = visible(use["id"]), visible(use["name"])
                    self._asked[message] += 1
            case "tool_calls":
                self._add_call(row)
            case "approvals":
                section.approvals.append(row["id"])
                section.has_ended &= row["answer"] is not None
            case "hook_runs":
                hooks = [(number, hook.event) for number, hook in enumerate(self._spec.hooks)]
                is_one = (row["hook"], row["event"]) in hooks
                require(is_one, "hook_runs.hook is no hook that the job has at that event")
            case "events":
                count = self._rows[table]
                what = f"events.number is not {count}: they are numbered without gaps"
                require(row["number"] == count, what)

    def end(self) -> None:
        """Check the file as a whole."""
        require(bool(self.sections), "there is no row in it")
        self._end_section()
        for run_id in self._delegating:
            raise ValueError(
                f"{run_id} has given its whole task to a sub-agent, which is not in the file"
            )

    def _begin_section(self, start: int, table: str, id_: str) -> None:
        if self.sections:
            self._end_section()
        is_next = (table == "jobs") == (not self.sections)
        require(is_next, "a file has one job, and its row comes first")
        self.sections.append(Section(id_, start))
        self._digest = hashlib.sha256()
        self._last: tuple[int, list[Any]] = (-1, [])  # the table and the key of the last row
        self._rows = Counter[str]()  # by table
        self._run: Row = {}
        self._asked = Counter[int]()  # tool calls by message
        self._open: dict[Place, tuple[str, str]] = {}  # the id and name of those without a row
        self._calls = set[Place]()  # those with one

    def _end_section(self) -> None:
        section, run = self.sections[-1], self._run
        section.digest, section.rows = self._digest.hexdigest(), self._rows.total()
        if not run:
            return
        section.has_ended &= run["state"] in ENDED
        require(self._rows["run_items"] == 1, "the run has no row in run_items")
        count, stated = self._rows["events"], run["event_count"]
        require(count == stated, f"the run has {count} events, and its row says {stated}")
        for message, _ in self._open:
            raise ValueError(f"a call of message {message} has no row in tool_calls")
        calls = self._asked[max(self._asked, default=0)]
        is_of_last = len(run["progress"]["hooks"]["decided"]) in (0, calls)
        what = "runs.progress is no run's (hooks.decided is not of its last calls)"
        require(is_of_last, what)

    def _check_order(self, table: str, row: Row) -> None:
        """Check that a row is in its section once and in the order in which exports are written."""
        tables = JOB_TABLES if len(self.sections) == 1 else RUN_TABLES
        format = FORMATS[table]
        require(format.table in tables, f"a row of {table} does not belong here")
        # The database numbers the rows without a key.
        key = [row[name] for name in format.key] or [self._rows[table]]
        at = (tables.index(format.table), key)
        require(self._last < at, f"the row of {table} is there twice, or is not in its place")
        self._last = at

    def _add_run(self, run: Row) -> None:
        parent, place = run["parent_run"], (run["parent_message"], run["parent_position"])
        require(run["id"] not in self._known, f"{run['id']} is in the file twice")
        for name, state in (("worker_id", "running"), ("due_at", "queued")):
            is_so = (run["state"] == state) == (run[name] is not None)
            require(is_so, f"runs.{name} is for a run that is {state}, and only for it")
        for name, value in place_columns(run["id"]).items():
            require(run[name] == value, f"runs.{name} is not what the run's id says")
        types = [agent.name for agent in self._spec.agents] if parent else [None]
        # A session of Claude Code has agents, and its job has neither their types nor tools.
        is_session = parent is not None and not self._spec.tools
        is_type = is_session or run["agent_type"] in types
        require(is_type, "runs.agent_type is no type of sub-agent that the job has")
        for name in ("fresh_of", "fork_of", "parent_run"):
            is_before = run[name] is None or run[name] in self._known
            require(is_before, f"runs.{name} names no run that is in the file before it")
        if place[1] is None:
            self._delegating.discard(parent)
        else:
            starts = parent is not None and place in self._known[parent]
            require(starts, "runs.parent_position is of no call of a parent that starts one")
        what = "runs.progress is no run's"
        progress: Progress = _made(SimpleNamespace(**run), progress_from_row, Progress, what)
        if progress.children.split == "whole":
            self._delegating.add(run["id"])
        self._run, self._known[run["id"]] = run, set()

    def _add_call(self, row: Row) -> None:
        place = row["message"], row["position"]
        call = self._open.pop(place, None)
        require(
            call is not None, f"tool_calls has a row that no block of message {place[0]} asks for"
        )
        is_same = call == (row["tool_use_id"], row["name"])
        require(is_same, "tool_calls names another call than its block")
        self._calls.add(place)
        # A call of a tool that the job does not have is refused before anything waits for it.
        if self._spec.tool(row["name"]) is None or self._spec.starts_children(row["name"]):
            self._known[row["run_id"]].add(place)

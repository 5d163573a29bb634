"""Whether the rows of a file can be what a Runner stored: those who read them rely on it.

Whether a value that was made from someone's JSON is what its type says, all the way down.

What the data of events holds: those who read a record rely on what Runner writes into one.

What a row of a table looks like in a file: which columns it has, and what each may hold.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from runner.core.agents import DEEPEST, place_of
from runner.core.hooks import HookEvent
from runner.core.run import ENDED, STATES
from runner.core.spec import JobSpec
from runner.core.text import visible

# Sums of a few such numbers still fit into 64 bits.
LARGEST_INTEGER = 2**60


def misfit(value: Any, hint: Any, name: str = "") -> str | None:
    """The name of the first part of a value that is not of its type, None when all fit.

    Args:
        hint: the type of the value: a dataclass, or what one's fields are made of.
        name: the value's own.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return None
    if origin in (Union, UnionType):
        return None if any(misfit(value, each) is None for each in arguments) else name
    if origin is Literal:
        return None if value in arguments else name
    if is_dataclass(hint) and isinstance(hint, type):
        return _misfit_of(value, hint, name)
    if origin is not None and issubclass(origin, Mapping):
        return _misfit_in_mapping(value, arguments, name)
    if origin is not None and issubclass(origin, Sequence):
        return _misfit_in_sequence(value, arguments, name)
    return None if _is_plain(value, hint) else name


def _misfit_of(value: Any, kind: type, name: str) -> str | None:
    if not isinstance(value, kind):
        return name
    for each, hint in _hints(kind).items():
        found = misfit(getattr(value, each), hint, f"{name}.{each}" if name else each)
        if found is not None:
            return found
    return None


@lru_cache(maxsize=64)
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


def _misfit_in_mapping(value: Any, arguments: tuple[Any, ...], name: str) -> str | None:
    if not isinstance(value, Mapping):
        return name
    inner = arguments[1] if len(arguments) == 2 else Any
    found = (misfit(each, inner, f"{name}.{key}") for key, each in value.items())
    return next((each for each in found if each is not None), None)


def _misfit_in_sequence(value: Any, arguments: tuple[Any, ...], name: str) -> str | None:
    """Tuples of one kind only are met here; JSON has lists."""
    if not isinstance(value, list | tuple):
        return name
    found = (misfit(each, arguments[0], f"{name}[{at}]") for at, each in enumerate(value))
    return next((each for each in found if each is not None), None)


def _is_plain(value: Any, hint: Any) -> bool:
    if hint in (None, NoneType):
        return value is None
    if hint is int:
        return type(value) is int and abs(value) <= LARGEST_INTEGER
    if hint is float:
        return (
            type(value) in (int, float) and math.isfinite(value) and abs(value) <= LARGEST_INTEGER
        )
    return isinstance(value, hint)


# The latest time and the longest duration, as in rows: a time in the year 5138, in seconds.
_MOST_SECONDS = 1e11
_LARGEST = 2**31 - 1
_TYPE = re.compile(r"[a-z][a-z0-9_]{0,59}", re.ASCII)

# What a value is, in whatever event it stands.
_FIELDS: dict[str, Any] = {
    "answer": str | None,
    "approval": str,
    "by": str | None,
    "call": int | None,
    "call_index": int,
    "cause": str,
    "command": str,
    "commit": str,
    "decision": str,
    "detail": str | None,
    "edited": bool,
    "error": str,
    "first": int,
    "input": str,
    "kind": str,
    "last": int,
    "message": str,
    "messages": int,
    "name": str,
    "new": Mapping[str, Any] | None,
    "old": Mapping[str, Any] | None,
    "outcome": str,
    "output": str,
    "purpose": Literal["turn", "summary"],
    "reason": str | None,
    "rule": str | None,
    "state": str | None,
    "stop_reason": str | None,
    "text": str,
    "tool_use_id": str,
    "traceback": str,
    "turn": int,
    "verification": int,
    "via": str | None,
    "why": str | None,
    "worker": str | None,
}
_SECONDS = ("at", "due_at", "duration", "latency")
_OF_A_CALL = ("turn", "call_index", "name")
# What an event of a type does not do without.
_NEEDED: dict[str, tuple[str, ...]] = {
    "approval_answered": (*_OF_A_CALL, "answer"),
    "done": ("state",),
    "message_added": ("messages",),
    "message_queued": ("text",),
    "model_call_started": ("call", "turn"),
    "outcome_asked": _OF_A_CALL,
    "permission_decided": _OF_A_CALL,
    "retry_scheduled": ("at",),
    "tool_done": _OF_A_CALL,
    "tool_started": _OF_A_CALL,
    "turn_ended": ("turn",),
    "turn_started": ("turn",),
    "waiting": ("reason",),
}


def check_event(table: str, kind: str, data: Any) -> None:
    """Refuse what is no event of Runner's. Types that are not known here may have any data, as long as
    what has a known name is what it is elsewhere.

    Args:
        table: what it is called in errors. kind: the event's type.

    Raises:
        ValueError: the type is no name of one, or which value is missing or of another kind.
    """
    if _TYPE.fullmatch(kind) is None:
        raise ValueError(f"{table}.type is {kind[:60]!a}, which is no type of event")
    if not isinstance(data, dict):
        raise ValueError(f"{table}.data is no object")
    for name in _needed(kind, data):
        if data.get(name) is None:
            raise ValueError(f"{table}.data of {kind[:60]!a}: {name} is missing")
    for name, value in data.items():
        if not _fits(name, value):
            raise ValueError(f"{table}.data of {kind[:60]!a}: {name} is of another kind")


def _needed(kind: str, data: Mapping[str, Any]) -> tuple[str, ...]:
    is_reply = kind == "model_call_ended" and data.get("stop_reason") is not None
    needed = _NEEDED.get(kind, ())
    return (*needed, "turn") if is_reply or "call_index" in data else needed


def _fits(name: str, value: Any) -> bool:
    if name in _SECONDS:
        return value is None or (type(value) in (int, float) and 0 <= value <= _MOST_SECONDS)
    if type(value) is int and _FIELDS.get(name) in (int, int | None):
        return 0 <= value <= _LARGEST
    return misfit(value, _FIELDS.get(name, Any), name) is None


# A sub-agent's id goes on with its numbers in its parents.
_ID = re.compile(
    rf"(?:job|apr)_[0-9a-z]{{26}}|run_[0-9a-z]{{26}}(?:\.[1-9][0-9]{{0,3}}){{0,{DEEPEST}}}",
    re.ASCII,
)
LARGEST_OUTPUT = 64 * 1024 * 1024  # bytes; a tool's whole output has 10 MB at most

Row = Mapping[str, Any]
Place = tuple[int, int]  # of a call: its message, and its position there


def check_id(value: str, kind: str) -> None:
    """Refuse what is no id of a job, a run or an approval: ids become parts of paths.

    Raises:
        ValueError: it is none.
    """
    if _ID.fullmatch(value) is None or not value.startswith(f"{kind}_"):
        raise ValueError(f"{value[:60]!a} is no id of ours ({kind}_ and 26 letters and digits)")


class JobCheck:
    """The rows of a job's own section, one after the other, its own row first. ``spec`` is what that
    says."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self.spec: JobSpec | None = None

    def add(self, table: str, row: Row) -> None:
        """Look at a row. Raises ``ValueError``."""
        if table == "jobs":
            self._job(row)
        elif row["job_id"] != self._job_id:
            raise ValueError(f"{table}.job_id is not {self._job_id}")
        if table == "job_events":
            check_event(table, row["type"], row["data"])
        if table == "permission_rules":
            _check_rule(row)

    def _job(self, row: Row) -> None:
        check_id(row["id"], "job")
        if row["id"] != self._job_id:
            raise ValueError(f"it is of another job than {self._job_id}")
        try:
            spec = JobSpec.from_json(row["spec"])
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ValueError(f"jobs.spec is no job's ({type(error).__name__}: {error})") from error
        wrong = misfit(spec, JobSpec)
        if wrong is not None:
            raise ValueError(f"jobs.spec is no job's ({wrong} is of another kind)")
        if spec.limits.max_agent_depth > DEEPEST:
            raise ValueError(f"jobs.spec is no job's (limits.max_agent_depth is over {DEEPEST})")
        self.spec = spec


class RunCheck:
    """The rows of a run's section, one after the other, its own row first.

    Args:
        spec: the job's.
        known: the runs that came before it in the file, each with its ``starts``.
    """

    def __init__(self, job_id: str, spec: JobSpec, known: Mapping[str, Collection[Place]]) -> None:
        self._job_id = job_id
        self._spec = spec
        self._known = known
        self._starts: set[Place] = set()
        self._run: Row = {}
        self._events = 0
        self._uses: dict[int, list[Mapping[str, Any]]] = {}
        self._calls: dict[int, int] = {}
        self._has_item = False
        self.has_open_questions = False

    @property
    def run_id(self) -> str:
        return str(self._run["id"])

    @property
    def starts(self) -> frozenset[Place]:
        """The places of the calls that may have started sub-agents."""
        return frozenset(self._starts)

    @property
    def has_ended(self) -> bool:
        """Whether nothing of the run goes on or waits."""
        return self._run["state"] in ENDED and not self.has_open_questions

    def add(self, table: str, row: Row) -> None:
        """Look at a row. Raises ``ValueError``."""
        if table == "runs":
            self._add_run(row)
            return
        if row["run_id"] != self.run_id:
            raise ValueError(f"{table}.run_id is not {self.run_id}")
        match table:
            case "run_items":
                self._has_item = True
            case "blocks":
                self._add_block(row)
            case "tool_calls":
                self._add_call(row)
            case "tool_outputs":
                self._of_a_call(table, row)
                _check_output(table, row)
            case "approvals":
                self._add_question(row)
            case "events":
                self._add_event(row)
            case "permission_rules":
                _check_rule(row)
                self._of_the_job(table, row)
            case "model_calls" | "compactions" | "verifications":
                _check_small(table, row)
            case "hook_runs":
                self._add_hook(row)

    def end(self) -> None:
        """Look at the section as a whole. Raises ``ValueError``."""
        if not self._has_item:
            raise ValueError("the run has no row in run_items")
        if self._events != self._run["event_count"]:
            raise ValueError(
                f"the run has {self._events} events, and its row says {self._run['event_count']}"
            )
        for message, uses in self._uses.items():
            if self._calls.get(message, 0) != len(uses):
                raise ValueError(f"a call of message {message} has no row in tool_calls")
        calls = len(self._uses[max(self._uses)]) if self._uses else 0
        if len(self._run["progress"]["hooks"]["decided"]) not in (0, calls):
            raise ValueError("runs.progress is no run's (hooks.decided is not of its last calls)")

    def _add_run(self, row: Row) -> None:
        check_id(row["id"], "run")
        self._run = row
        self._of_the_job("runs", row)
        if row["id"] in self._known:
            raise ValueError(f"{row['id']} is in the file twice")
        if row["state"] not in STATES:
            raise ValueError(f"runs.state is {row['state'][:20]!a}, which is no state")
        if (row["state"] == "running") != (row["worker_id"] is not None):
            raise ValueError("runs.worker_id is for a run that is running, and only for it")
        if (row["state"] == "queued") != (row["due_at"] is not None):
            raise ValueError("runs.due_at is for a run that is queued, and only for it")
        for name in ("fresh_of", "fork_of"):
            if row[name] is not None and row[name] not in self._known:
                raise ValueError(f"runs.{name} names no run that is in the file before it")
        if (row["fork_of"] is None) != (row["fork_turn"] is None):
            raise ValueError("runs.fork_turn goes with runs.fork_of")
        self._check_place(row)

    def _check_place(self, row: Row) -> None:
        """Whether a run is where its id says that it is."""
        place = place_of(row["id"])
        parent, is_child = place["parent"], place["parent"] is not None
        wanted = {
            "parent_run": parent,
            "root_run": place["root"] if is_child else None,
            "depth": place["depth"],
            "child_number": int(row["id"].rpartition(".")[2]) if is_child else None,
        }
        for name, value in wanted.items():
            if row[name] != value:
                raise ValueError(f"runs.{name} is not what the run's id says")
        if parent is not None and parent not in self._known:
            raise ValueError("runs.parent_run names no run that is in the file before it")
        types = [agent.name for agent in self._spec.agents] if is_child else [None]
        if row["agent_type"] not in types:
            raise ValueError("runs.agent_type is no type of sub-agent that the job has")
        if row["parent_position"] is None:
            return
        if parent is None:
            raise ValueError("runs.parent_position is for sub-agents")
        if (row["parent_message"], row["parent_position"]) not in self._known[parent]:
            raise ValueError("runs.parent_position is of no call of its parent that starts one")

    def _of_the_job(self, table: str, row: Row) -> None:
        if row["job_id"] != self._job_id:
            raise ValueError(f"{table}.job_id is not {self._job_id}")

    def _add_block(self, row: Row) -> None:
        content = row["content"]
        if not isinstance(content, dict) or content.get("type") != row["type"]:
            raise ValueError("blocks.content is no block of that type")
        if row["role"] not in ("user", "assistant"):
            raise ValueError("blocks.role is neither user nor assistant")
        _check_block(content)
        # What a sub-agent's conversation began with are its parent's calls.
        is_own = row["turn"] > 0 or self._run["parent_run"] is None
        if row["type"] == "tool_use" and row["role"] == "assistant" and is_own:
            self._uses.setdefault(row["message"], []).append(content)

    def _add_call(self, row: Row) -> None:
        message, position = row["message"], row["position"]
        uses = self._uses.get(message, [])
        if position >= len(uses) or position != self._calls.get(message, 0):
            raise ValueError(f"tool_calls has a row that no block of message {message} asks for")
        use = uses[position]
        updated = row["updated_input"]
        if not (updated is None or isinstance(updated, dict)):
            raise ValueError("tool_calls.updated_input is no object")
        if row["tool_use_id"] != visible(use["id"]) or row["name"] != visible(use["name"]):
            raise ValueError("tool_calls names another call than its block")
        self._calls[message] = position + 1
        # A call of a tool that the job does not have is refused before anything waits for it.
        if self._spec.tool(row["name"]) is None or self._spec.starts_children(row["name"]):
            self._starts.add((message, position))

    def _of_a_call(self, table: str, row: Row) -> None:
        if row["position"] >= self._calls.get(row["message"], 0):
            raise ValueError(f"{table} has a row of no tool call")

    def _add_question(self, row: Row) -> None:
        check_id(row["id"], "apr")
        self._of_the_job("approvals", row)
        self._of_a_call("approvals", row)
        if row["answer"] not in _ANSWERS or row["answered_via"] not in _WAYS:
            raise ValueError("approvals.answer or answered_via is none that there is")
        if (row["answer"] is None) != (row["answered_at"] is None):
            raise ValueError("approvals.answered_at goes with approvals.answer")
        edited = row["edited_input"]
        if not (edited is None or isinstance(edited, dict)):
            raise ValueError("approvals.edited_input is no object")
        self.has_open_questions |= row["answer"] is None

    def _add_hook(self, row: Row) -> None:
        if row["event"] not in get_args(HookEvent):
            raise ValueError("hook_runs.event is none at which hooks run")
        hooks = self._spec.hooks
        if row["hook"] >= len(hooks) or hooks[row["hook"]].event != row["event"]:
            raise ValueError("hook_runs.hook is no hook that the job has at that event")
        if row["decision"] not in (None, "allow", "ask", "deny", "block"):
            raise ValueError("hook_runs.decision is neither allow, ask, deny nor block")
        if (row["message"] is None) != (row["position"] is None):
            raise ValueError("hook_runs.position goes with hook_runs.message")
        if row["message"] is not None:
            self._of_a_call("hook_runs", row)

    def _add_event(self, row: Row) -> None:
        self._events += 1
        if row["number"] != self._events:
            raise ValueError(f"events.number is not {self._events}: they are numbered without gaps")
        check_event("events", row["type"], row["data"])


_ANSWERS = (None, "approved", "denied", "expired", "cancelled")
_WAYS = (None, "person", "rule", "timeout", "cancel", "end")
_BLOCK_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "text": {"text": str},
    "tool_use": {"id": str, "name": str, "input": object},
    "tool_result": {"tool_use_id": str, "content": (str, list)},
}


def _check_block(content: Mapping[str, Any]) -> None:
    for name, kind in _BLOCK_FIELDS.get(str(content["type"]), {}).items():
        if name not in content or not isinstance(content[name], kind):
            raise ValueError(f"a block of type {content['type']} has no {name} as the API has it")


def _check_rule(row: Row) -> None:
    if row["effect"] not in ("allow", "ask", "deny"):
        raise ValueError("permission_rules.effect is neither allow, ask nor deny")


def _check_small(table: str, row: Row) -> None:
    match table:
        case "model_calls":
            if row["purpose"] not in ("turn", "summary"):
                raise ValueError("model_calls.purpose is neither turn nor summary")
            if not (row["cut"] is None or _are_blocks(row["cut"])):
                raise ValueError("model_calls.cut is no list of blocks")
        case "compactions":
            _check_compaction(row)
        case _:
            if not (row["content"] is None or isinstance(row["content"], str)):
                raise ValueError("verifications.content is no text")
            if row["compressed"] is not None:
                _check_output(table, row)


def _check_compaction(row: Row) -> None:
    if row["kind"] not in ("clip", "summary", "prune"):
        raise ValueError("compactions.kind is neither clip, summary nor prune")
    if not isinstance(row["text"], str):
        raise ValueError("compactions.text is no text")
    clips = row["clips"]
    if not isinstance(clips, list) or not all(map(_is_clip, clips)):
        raise ValueError("compactions.clips is no list of message, position and text")


def _is_clip(value: Any) -> bool:
    return isinstance(value, list) and list(map(type, value)) == [int, int, str]


def _are_blocks(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(block, dict) and isinstance(block.get("type"), str) for block in value
    )


def _check_output(table: str, row: Row) -> None:
    """A bomb is not unpacked: not more is than the row says."""
    size = row["size"]
    if size is None or size > LARGEST_OUTPUT:
        raise ValueError(f"{table}.size is no size of an output")
    unpacking = zlib.decompressobj()
    try:
        unpacked = len(unpacking.decompress(row["compressed"], size + 1))
    except zlib.error as error:
        raise ValueError(f"{table}.compressed is damaged ({error})") from error
    if unpacked != size or not unpacking.eof or unpacking.unused_data:
        raise ValueError(f"{table}.compressed does not hold the {size} bytes that the row says")


Kind = Literal["text", "integer", "long", "real", "boolean", "json", "bytes"]

NO_DEFAULT = object()
_MOST_REAL = 1e11  # a time in the year 5138; what is larger is no time, duration or amount
# SQLite keeps a JSON number that stands alone as a number, and so a whole one without its ".0".
_WHOLE_BELOW = 2**53
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Column:
    """A column. ``integer`` has 32 bits and ``long`` 64, ``bytes`` is base64 in a file. ``default`` is
    what a row has that does not name the column, ``least`` and ``most`` are of the whole numbers that it
    may hold."""

    name: str
    kind: Kind
    nullable: bool = False
    default: Any = NO_DEFAULT
    least: int = 0
    most: int = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Shape:
    """A table's columns in order. ``key`` names those that its rows are sorted by; empty: they keep
    the order that they have in the file."""

    table: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def to_file(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of the database as it stands in a file."""
        return {column.name: _to_file(column, row[column.name]) for column in self.columns}

    def from_file(self, row: Any) -> dict[str, Any]:
        """A row as the database takes it.

        Raises:
            ValueError: what is wrong with which column.
        """
        if not isinstance(row, dict):
            raise ValueError(f"a row of {self.table} is an object")
        unknown = row.keys() - {column.name for column in self.columns}
        if unknown:
            raise ValueError(
                f"{self.table} has no column {min(unknown)[:_LONGEST_NAME]!a}: the file may be of a "
                "newer Runner"
            )
        return {column.name: self._value(column, row) for column in self.columns}

    def _value(self, column: Column, row: Mapping[str, Any]) -> Any:
        if column.name not in row:
            if column.default is not NO_DEFAULT:
                return column.default
            raise ValueError(f"{self.table}.{column.name} is missing")
        value = row[column.name]
        if column.kind == "json":
            return value
        if value is None:
            if column.nullable:
                return None
            raise ValueError(f"{self.table}.{column.name} is null")
        try:
            return _from_file(column, value)
        except ValueError as error:
            raise ValueError(f"{self.table}.{column.name} {error}") from error


def _to_file(column: Column, value: Any) -> Any:
    if column.kind == "bytes" and value is not None:
        return base64.b64encode(value).decode("ascii")
    if column.kind == "json" and isinstance(value, float) and abs(value) < _WHOLE_BELOW:
        return int(value) if value.is_integer() else value
    return value


def _from_file(column: Column, value: Any) -> Any:
    match column.kind:
        case "text":
            return _text(value)
        case "integer" | "long":
            if type(value) is not int or not column.least <= value <= column.most:
                raise ValueError(f"is no whole number from {column.least} to {column.most}")
            return value
        case "real":
            if type(value) not in (int, float) or not 0 <= value <= _MOST_REAL:
                raise ValueError(f"is no number from 0 to {_MOST_REAL:g}")
            return float(value)
        case "boolean":
            if type(value) is not bool:
                raise ValueError("is neither true nor false")
            return value
        case _:
            return _bytes(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("is no text")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise ValueError("has a character that no database can hold") from error
    if "\0" in value:
        raise ValueError("has a character that no database can hold")
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, str):
        raise ValueError("is no base64")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("is no base64") from error

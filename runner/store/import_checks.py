"""Checks of imported rows, so that readers can rely on them as on rows that Runner wrote.

Nothing in a file is trusted: ids become parts of paths, and text is shown on terminals.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from runner.core.agents import DEEPEST, place_columns
from runner.core.context import CompactionKind
from runner.core.conversation import Purpose, Role, Tool, check_block
from runner.core.entries import ToolsListed
from runner.core.hooks import HookDecision, HookEvent
from runner.core.run import ENDED, RunStatus
from runner.core.spec import JobSpec, decoder
from runner.core.text import LONGEST_LINE, read_json_object, visible
from runner.core.times import MOST_REAL
from runner.permissions import Effect

# --- Values against their types ---

_LARGEST_NUMBER = 2**60  # sums of a few such numbers still fit into 64 bits


def misfit(value: Any, hint: Any, name: str = "") -> str | None:
    """Return the name of the first part of a value that is not of its type, or None. The type is a
    dataclass, or what its fields are made of; ``name`` is the value's own."""
    origin, arguments = get_origin(hint), get_args(hint)
    parts: Iterable[tuple[str, Any, Any]] = ()  # (the step into the value, the part, its type)
    if origin in (Union, UnionType):
        fits = any(misfit(value, each) is None for each in arguments)
    elif origin is Literal:
        fits = value in arguments
    elif origin is not None and issubclass(origin, Mapping):
        if fits := isinstance(value, Mapping):
            parts = ((f".{key}", each, arguments[1]) for key, each in value.items())
    elif origin is not None:
        fits = isinstance(value, list | tuple)
        if fits and origin is tuple and arguments[-1] is not Ellipsis:
            fits = len(value) == len(arguments)
        else:
            arguments = (arguments[0],) * (len(value) if fits else 0)
        if fits:
            pairs = enumerate(zip(value, arguments, strict=True))
            parts = ((f"[{at}]", each, inner) for at, (each, inner) in pairs)
    elif hint in (int, float):
        is_number = type(value) is int or (hint is float and type(value) is float)
        fits = is_number and abs(value) <= _LARGEST_NUMBER
    else:
        fits = hint is Any or isinstance(value, NoneType if hint is None else hint)
        if fits and is_dataclass(hint):
            types = _field_types(cast(type, hint)).items()
            parts = ((f".{each}", getattr(value, each), inner) for each, inner in types)
    if not fits:
        return name
    found = (misfit(each, inner, f"{name}{step}") for step, each, inner in parts)
    return next((each.lstrip(".") for each in found if each is not None), None)


@lru_cache(maxsize=64)
def _field_types(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(cast(Any, kind))}


def check_value(value: Any, parse: Callable[[Any], Any], hint: Any, what: str) -> Any:
    """Return what ``parse`` makes of a JSON value. Raises ``ValueError`` if it fails, or if a part
    of the result is not of the type ``hint``: with ``what``, such as ``jobs.spec is no job's``."""
    try:
        found = parse(value)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(f"{what} ({type(error).__name__}: {error})") from error
    if (wrong := misfit(found, hint)) is not None:
        raise ValueError(f"{what} ({wrong} is of another kind)")
    return found


# --- Ids ---

# The id of a sub-agent ends with its number in each run above it.
_RUN_ID = rf"run_[0-9a-z]{{26}}(?:\.[1-9][0-9]{{0,3}}){{0,{DEEPEST}}}"
_ID = re.compile(rf"(?:job|apr)_[0-9a-z]{{26}}|{_RUN_ID}", re.ASCII)


def check_id(value: str, kind: str) -> None:
    """Raise ``ValueError`` unless a value is an id of this ``kind``: job, run or apr."""
    if _ID.fullmatch(value) is None or not value.startswith(f"{kind}_"):
        raise ValueError(f"{value[:60]!a} is no id of ours ({kind}_ and 26 letters and digits)")


# --- Events ---

_LARGEST_COUNT = 2**31 - 1
_EVENT_TYPE = re.compile(r"[a-z][a-z0-9_]{0,59}", re.ASCII)

# The type of a value by its name, the same in all events.
_EVENT_VALUES: dict[str, Any] = {
    name: hint
    for hint, names in (
        (str, "approval cause command commit decision error input kind message name"),
        (str, "outcome output text tool_use_id traceback"),
        (str | None, "answer by detail reason rule state stop_reason via why worker"),
        (int, "call_index first last messages turn verification"),
        (int | None, "call"),
        (float | None, "at due_at duration latency"),
        (bool, "edited"),
        (Mapping[str, Any] | None, "new old"),
        (Purpose, "purpose"),
    )
    for name in names.split()
}
# The values that readers need in the data of an event, by its type.
_NEEDED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("outcome_asked", "permission_decided", "tool_done", "tool_started"),
        ("turn", "call_index", "name"),
    ),
    "approval_answered": ("turn", "call_index", "name", "answer"),
    "done": ("state",),
    "message_added": ("messages",),
    "message_queued": ("text",),
    "model_call_started": ("call", "turn"),
    "retry_scheduled": ("at",),
    "turn_ended": ("turn",),
    "turn_started": ("turn",),
    "waiting": ("reason",),
}


def check_event(table: str, kind: str, data: Any) -> None:
    """Check the type and the data of an event of a table. A type that this Runner does not know may
    have any data, but values with a known name must be of the known type. Raises ``ValueError``."""
    if _EVENT_TYPE.fullmatch(kind) is None:
        raise ValueError(f"{table}.type is {kind[:60]!a}, which is no type of event")
    if not isinstance(data, dict):
        raise ValueError(f"{table}.data is no object")
    is_reply = kind == "model_call_ended" and data.get("stop_reason") is not None
    has_turn = is_reply or "call_index" in data
    for name in (*_NEEDED.get(kind, ()), *(("turn",) if has_turn else ())):
        if data.get(name) is None:
            raise ValueError(f"{table}.data of {kind!a}: {name} is missing")
    for name in filter(_EVENT_VALUES.__contains__, data):
        value, hint = data[name], _EVENT_VALUES[name]
        most = MOST_REAL if hint == float | None else _LARGEST_COUNT
        is_number = type(value) in (int, float)
        if misfit(value, hint) is not None or (is_number and not 0 <= value <= most):
            raise ValueError(f"{table}.data of {kind!a}: {name} is of another kind")


# --- Rows by themselves ---

Row = Mapping[str, Any]

_Object = Mapping[str, Any] | None
_Answer = Literal["approved", "denied", "expired", "cancelled"] | None
_AnsweredVia = Literal["person", "rule", "timeout", "cancel", "end"] | None
# The types of columns, where they say more than the database, and what to say of other values.
_COLUMNS: dict[str, tuple[Any, str]] = {
    "runs.state": (RunStatus, "is {}, which is no state"),
    "permission_rules.effect": (Effect, "is neither allow, ask nor deny"),
    "blocks.role": (Role, "is neither user nor assistant"),
    "tool_calls.updated_input": (_Object, "is no object"),
    "tool_calls.details": (_Object, "is no object"),
    "approvals.answer": (_Answer, "is none that there is"),
    "approvals.answered_via": (_AnsweredVia, "is none that there is"),
    "approvals.edited_input": (_Object, "is no object"),
    "model_calls.purpose": (Purpose, "is neither turn nor summary"),
    "model_calls.cut": (list[Mapping[str, Any]] | None, "is no list of blocks"),
    "compactions.kind": (CompactionKind, "is neither clip, summary nor prune"),
    "compactions.text": (str, "is no text"),
    **dict.fromkeys(("sessions.system", "sessions.notes"), (str, "is no text")),
    "compactions.clips": (list[tuple[int, int, str]], "is no list of message, position and text"),
    "verifications.content": (str | None, "is no text"),
    "hook_runs.event": (HookEvent, "is none at which hooks run"),
    "hook_runs.decision": (HookDecision | None, "is neither allow, ask, deny nor block"),
}
# Columns of a table that have a value in the same rows.
_TOGETHER = {
    "runs": ("fork_turn", "fork_of"),
    "approvals": ("answered_at", "answer"),
    "hook_runs": ("position", "message"),
}
# Tables about tool calls; rows of hooks may be about none.
_OF_CALLS = ("tool_outputs", "approvals", "hook_runs")
_IDS = {"jobs": "job", "runs": "run", "approvals": "apr"}


def check_row(table: str, row: Row) -> None:
    """Check what a row says by itself. Raises ``ValueError``."""
    if table in _IDS:
        check_id(row["id"], _IDS[table])
    for column, value in row.items():
        if known := _COLUMNS.get(f"{table}.{column}"):
            hint, words = known
            if misfit(value, hint) is not None:
                raise ValueError(f"{table}.{column} {words.format(ascii(str(value)[:20]))}")
    if table in _TOGETHER:
        one, other = _TOGETHER[table]
        if (row[one] is None) != (row[other] is None):
            raise ValueError(f"{table}.{one} goes with {table}.{other}")
    if table in ("events", "job_events"):
        check_event(table, row["type"], row["data"])
    elif table == "blocks":
        block = row["content"]
        kind = block.get("type") if isinstance(block, dict) else None
        # An import of sessions stores the type without control characters.
        if not isinstance(kind, str) or row["type"] not in (kind, visible(kind)):
            raise ValueError("blocks.content is no block of that type")
        check_block(block)
    elif table == "tool_lists":
        kind, what = tuple[Tool, ...], "tool_lists.tools are none"
        tools = check_value(row["tools"], decoder(kind), kind, what)
        if ToolsListed(tools).sha256 != row["sha256"]:
            raise ValueError("tool_lists.sha256 is not that of the tools")
    elif table == "model_calls":
        if not all(isinstance(block.get("type"), str) for block in row["cut"] or ()):
            raise ValueError("model_calls.cut is no list of blocks")
    elif row.get("compressed") is not None:
        content = _unpacked(table, row)
        for number, line in enumerate(content.split(b"\n"), 1):
            if table == "session_lines" and read_json_object(line) is None:
                raise ValueError(f"session_lines.compressed: line {number} is no object of JSON")


def _unpacked(table: str, row: Row) -> bytes:
    """Unpack no more than the row says: it may be a decompression bomb."""
    size = row["size"]
    if size is None or size > LONGEST_LINE:
        raise ValueError(f"{table}.size is no size of an output")
    unpacking = zlib.decompressobj()
    try:
        unpacked = unpacking.decompress(row["compressed"], size + 1)
    except zlib.error as error:
        raise ValueError(f"{table}.compressed is damaged ({error})") from error
    if len(unpacked) != size or not unpacking.eof or unpacking.unused_data:
        raise ValueError(f"{table}.compressed does not hold the {size} bytes that the row says")
    return unpacked


# --- Rows of a job and of a run against each other ---

Place = tuple[int, int]  # of a tool call: its message, and its position there


def spec_of(row: Row) -> JobSpec:
    """Return the job that a row of ``jobs`` describes. Raises ``ValueError``."""
    what = "jobs.spec is no job's"
    spec: JobSpec = check_value(row["spec"], JobSpec.from_json, JobSpec, what)
    if spec.limits.max_agent_depth > DEEPEST:
        raise ValueError(f"{what} (limits.max_agent_depth is over {DEEPEST})")
    return spec


class RunCheck:
    """Checks the rows of a run against each other. Raises ``ValueError`` at what does not fit.
    ``run`` is its own row, checked by itself; ``known`` are the runs before it in the file, with the
    calls that may have started sub-agents. It adds itself to them."""

    def __init__(self, run: Row, spec: JobSpec, known: dict[str, set[Place]]) -> None:
        self._has_open_approvals = False
        self._run = run
        self._spec = spec
        self._events = 0
        self._uses: dict[int, list[Mapping[str, Any]]] = {}  # tool_use blocks by message
        self._calls: dict[int, int] = {}  # rows of tool_calls by message
        self._has_item = False
        if run["id"] in known:
            raise ValueError(f"{run['id']} is in the file twice")
        for name, state in (("worker_id", "running"), ("due_at", "queued")):
            if (run["state"] == state) != (run[name] is not None):
                raise ValueError(f"runs.{name} is for a run that is {state}, and only for it")
        self._check_place(run)
        for name in ("fresh_of", "fork_of", "parent_run"):
            if run[name] is not None and run[name] not in known:
                raise ValueError(f"runs.{name} names no run that is in the file before it")
        if run["parent_position"] is not None:
            if run["parent_run"] is None:
                raise ValueError("runs.parent_position is for sub-agents")
            if (run["parent_message"], run["parent_position"]) not in known[run["parent_run"]]:
                raise ValueError("runs.parent_position is of no call of its parent that starts one")
        self._starts = known[run["id"]] = set[Place]()

    @property
    def has_ended(self) -> bool:
        """True if no part of the run goes on or waits."""
        return self._run["state"] in ENDED and not self._has_open_approvals

    def add(self, table: str, row: Row) -> None:
        """Check the next row. Raises ``ValueError``."""
        if row["run_id"] != self._run["id"]:
            raise ValueError(f"{table}.run_id is not {self._run['id']}")
        of_call = row.get("message") is not None and table in _OF_CALLS
        if of_call and row["position"] >= self._calls.get(row["message"], 0):
            raise ValueError(f"{table} has a row of no tool call")
        match table:
            case "run_items":
                self._has_item = True
            case "blocks":
                # A sub-agent's conversation begins with calls of its parent.
                is_own = row["turn"] > 0 or self._run["parent_run"] is None
                if row["type"] == "tool_use" and row["role"] == "assistant" and is_own:
                    self._uses.setdefault(row["message"], []).append(row["content"])
            case "tool_calls":
                self._add_call(row)
            case "approvals":
                self._has_open_approvals |= row["answer"] is None
            case "hook_runs":
                hooks = self._spec.hooks
                if row["hook"] >= len(hooks) or hooks[row["hook"]].event != row["event"]:
                    raise ValueError("hook_runs.hook is no hook that the job has at that event")
            case "events":
                self._events += 1
                if row["number"] != self._events:
                    raise ValueError(
                        f"events.number is not {self._events}: they are numbered without gaps"
                    )

    def end(self) -> None:
        """Check the run as a whole. Raises ``ValueError``."""
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

    def _check_place(self, run: Row) -> None:
        for name, value in place_columns(run["id"]).items():
            if run[name] != value:
                raise ValueError(f"runs.{name} is not what the run's id says")
        is_child = run["parent_run"] is not None
        types = [agent.name for agent in self._spec.agents] if is_child else [None]
        is_session = not self._spec.tools  # of Claude Code: its job has no types either
        if run["agent_type"] not in types and not (is_child and is_session):
            raise ValueError("runs.agent_type is no type of sub-agent that the job has")

    def _add_call(self, row: Row) -> None:
        message, position = row["message"], row["position"]
        uses = self._uses.get(message, [])
        if position >= len(uses) or position != self._calls.get(message, 0):
            raise ValueError(f"tool_calls has a row that no block of message {message} asks for")
        use = uses[position]
        if row["tool_use_id"] != visible(use["id"]) or row["name"] != visible(use["name"]):
            raise ValueError("tool_calls names another call than its block")
        self._calls[message] = position + 1
        # A call of a tool that the job does not have is refused before anything waits for it.
        if self._spec.tool(row["name"]) is None or self._spec.starts_children(row["name"]):
            self._starts.add((message, position))

"""Checks of imported rows, so that readers can rely on them as on rows that Runner wrote.

Nothing in a file is trusted: ids become parts of paths, and text is shown on terminals.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from runner.core.agents import DEEPEST, place_of
from runner.core.hooks import HookEvent
from runner.core.run import ENDED, RunStatus
from runner.core.spec import JobSpec
from runner.core.text import visible

# --- Values against their types ---

_LARGEST_NUMBER = 2**60  # sums of a few such numbers still fit into 64 bits


def misfit(value: Any, hint: Any, name: str = "") -> str | None:
    """Return the name of the first part of a value that is not of its type, or None.

    Args:
        hint: the type: a dataclass, a TypedDict, or what their fields are made of.
        name: of the value itself.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return None
    if origin in (Union, UnionType):
        return None if any(misfit(value, each) is None for each in arguments) else name
    if origin is Literal:
        return None if value in arguments else name
    if is_dataclass(hint) or is_typeddict(hint):
        return _misfit_of_fields(value, hint, name)
    if origin is None:
        return None if _is_plain(value, hint) else name
    if issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            return name
        return _first(misfit(each, arguments[1], f"{name}.{key}") for key, each in value.items())
    if not isinstance(value, list | tuple):
        return name
    if origin is tuple and arguments[-1] is not Ellipsis:
        if len(value) != len(arguments):
            return name
        inner: Sequence[Any] = arguments
    else:
        inner = arguments[:1] * len(value)
    each_with_hint = enumerate(zip(value, inner, strict=True))
    return _first(misfit(each, hint, f"{name}[{at}]") for at, (each, hint) in each_with_hint)


def _first(found: Iterable[str | None]) -> str | None:
    return next((each for each in found if each is not None), None)


def _misfit_of_fields(value: Any, kind: Any, name: str) -> str | None:
    is_dict = is_typeddict(kind)
    if not isinstance(value, dict if is_dict else kind):
        return name
    for each, hint in _hints(kind).items():
        path = f"{name}.{each}" if name else each
        if is_dict and each not in value:
            return path
        found = misfit(value[each] if is_dict else getattr(value, each), hint, path)
        if found is not None:
            return found
    return None


@lru_cache(maxsize=64)
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    names = [each.name for each in fields(kind)] if is_dataclass(kind) else hints
    return {name: hints[name] for name in names}


def _is_plain(value: Any, hint: Any) -> bool:
    if hint in (None, NoneType):
        return value is None
    if hint is int:
        return type(value) is int and abs(value) <= _LARGEST_NUMBER
    if hint is float:
        is_number = type(value) in (int, float)
        return is_number and math.isfinite(value) and abs(value) <= _LARGEST_NUMBER
    return isinstance(value, hint)


def check_value(value: Any, parse: Callable[[Any], Any], hint: Any, what: str) -> Any:
    """Return what ``parse`` makes of a JSON value.

    Args:
        hint: the type of the result.
        what: says in errors what the value is not, such as ``jobs.spec is no job's``.

    Raises:
        ValueError: ``parse`` fails, or a part of the result is not of its type.
    """
    try:
        found = parse(value)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(f"{what} ({type(error).__name__}: {error})") from error
    wrong = misfit(found, hint)
    if wrong is not None:
        raise ValueError(f"{what} ({wrong} is of another kind)")
    return found


# --- Ids ---

# The id of a sub-agent ends with its number in each run above it.
_ID = re.compile(
    rf"(?:job|apr)_[0-9a-z]{{26}}|run_[0-9a-z]{{26}}(?:\.[1-9][0-9]{{0,3}}){{0,{DEEPEST}}}",
    re.ASCII,
)


def check_id(value: str, kind: str) -> None:
    """Raise ``ValueError`` unless a value is the id of a job, a run or an approval (``kind``: job, run
    or apr)."""
    if _ID.fullmatch(value) is None or not value.startswith(f"{kind}_"):
        raise ValueError(f"{value[:60]!a} is no id of ours ({kind}_ and 26 letters and digits)")


# --- Events ---

_MOST_SECONDS = 1e11  # the year 5138
_LARGEST_COUNT = 2**31 - 1
_EVENT_TYPE = re.compile(r"[a-z][a-z0-9_]{0,59}", re.ASCII)
_SECONDS = ("at", "due_at", "duration", "latency")

# The type of a value by its name, the same in all events.
_EVENT_VALUES: dict[str, Any] = {
    name: hint
    for hint, names in (
        (str, "approval cause command commit decision error input kind message name"),
        (str, "outcome output text tool_use_id traceback"),
        (str | None, "answer by detail reason rule state stop_reason via why worker"),
        (int, "call_index first last messages turn verification"),
        (int | None, "call"),
        (bool, "edited"),
        (Mapping[str, Any] | None, "new old"),
        (Literal["turn", "summary"], "purpose"),
    )
    for name in names.split()
}
_OF_A_CALL = ("turn", "call_index", "name")
# The values that readers need in the data of an event, by its type.
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
    """Check an event. A type that this Runner does not know may have any data, but values with a known
    name must be of the known type.

    Args:
        table: the name for errors. kind: the event's type.

    Raises:
        ValueError: the type is no event's, or a value is missing or of another type.
    """
    if _EVENT_TYPE.fullmatch(kind) is None:
        raise ValueError(f"{table}.type is {kind[:60]!a}, which is no type of event")
    if not isinstance(data, dict):
        raise ValueError(f"{table}.data is no object")
    is_reply = kind == "model_call_ended" and data.get("stop_reason") is not None
    has_turn = is_reply or "call_index" in data
    for name in (*_NEEDED.get(kind, ()), *(("turn",) if has_turn else ())):
        if data.get(name) is None:
            raise ValueError(f"{table}.data of {kind[:60]!a}: {name} is missing")
    for name, value in data.items():
        if not _fits(name, value):
            raise ValueError(f"{table}.data of {kind[:60]!a}: {name} is of another kind")


def _fits(name: str, value: Any) -> bool:
    if name in _SECONDS:
        return value is None or (type(value) in (int, float) and 0 <= value <= _MOST_SECONDS)
    hint = _EVENT_VALUES.get(name, Any)
    if type(value) is int and hint in (int, int | None):
        return 0 <= value <= _LARGEST_COUNT
    return misfit(value, hint) is None


# --- Rows by themselves ---

Row = Mapping[str, Any]

LARGEST_OUTPUT = 64 * 1024 * 1024  # bytes; a tool's whole output has 10 MB at most


class _Block(TypedDict):
    type: str


class _Text(TypedDict):
    text: str


class _ToolUse(TypedDict):
    id: str
    name: str
    input: Any


class _ToolResult(TypedDict):
    tool_use_id: str
    content: str | list[Any]


_BLOCKS: dict[str, Any] = {"text": _Text, "tool_use": _ToolUse, "tool_result": _ToolResult}

_Object = Mapping[str, Any] | None
# The types of columns by table, where they say more than the database, and what to say of other values.
_COLUMNS: dict[str, dict[str, tuple[Any, str]]] = {
    "runs": {"state": (RunStatus, "is {}, which is no state")},
    "permission_rules": {
        "effect": (Literal["allow", "ask", "deny"], "is neither allow, ask nor deny")
    },
    "blocks": {
        "content": (_Block, "is no block of that type"),
        "role": (Literal["user", "assistant"], "is neither user nor assistant"),
    },
    "tool_calls": {"updated_input": (_Object, "is no object")},
    "approvals": {
        "answer": (
            Literal["approved", "denied", "expired", "cancelled"] | None,
            "is none that there is",
        ),
        "answered_via": (
            Literal["person", "rule", "timeout", "cancel", "end"] | None,
            "is none that there is",
        ),
        "edited_input": (_Object, "is no object"),
    },
    "model_calls": {
        "purpose": (Literal["turn", "summary"], "is neither turn nor summary"),
        "cut": (list[_Block] | None, "is no list of blocks"),
    },
    "compactions": {
        "kind": (Literal["clip", "summary", "prune"], "is neither clip, summary nor prune"),
        "text": (str, "is no text"),
        "clips": (list[tuple[int, int, str]], "is no list of message, position and text"),
    },
    "verifications": {"content": (str | None, "is no text")},
    "hook_runs": {
        "event": (HookEvent, "is none at which hooks run"),
        "decision": (
            Literal["allow", "ask", "deny", "block"] | None,
            "is neither allow, ask, deny nor block",
        ),
    },
}
# Columns of a table that have a value in the same rows.
_TOGETHER = {
    "runs": ("fork_turn", "fork_of"),
    "approvals": ("answered_at", "answer"),
    "hook_runs": ("position", "message"),
}
_IDS = {"jobs": "job", "runs": "run", "approvals": "apr"}


def check_row(table: str, row: Row) -> None:
    """Check what a row says by itself. Raises ``ValueError``."""
    if table in _IDS:
        check_id(row["id"], _IDS[table])
    for column, (hint, words) in _COLUMNS.get(table, {}).items():
        if misfit(row[column], hint) is not None:
            raise ValueError(f"{table}.{column} {words.format(ascii(str(row[column])[:20]))}")
    if table in _TOGETHER:
        one, other = _TOGETHER[table]
        if (row[one] is None) != (row[other] is None):
            raise ValueError(f"{table}.{one} goes with {table}.{other}")
    if table in ("events", "job_events"):
        check_event(table, row["type"], row["data"])
    elif table == "blocks":
        _check_block(row)
    elif table in ("tool_outputs", "verifications") and row["compressed"] is not None:
        _check_output(table, row)


def _check_block(row: Row) -> None:
    kind = row["content"]["type"]
    if kind != row["type"]:
        raise ValueError("blocks.content is no block of that type")
    missing = misfit(row["content"], _BLOCKS.get(kind, Any))
    if missing is not None:
        raise ValueError(f"a block of type {kind} has no {missing} as the API has it")


def _check_output(table: str, row: Row) -> None:
    """Unpack no more than the row says: it may be a decompression bomb."""
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
    """Checks the rows of a run against each other.

    Args:
        run: its own row, checked by itself.
        spec: the job's.
        known: the runs before it in the file, each with its ``starts``.

    Raises:
        ValueError: the row does not fit the job or the other runs.
    """

    def __init__(self, run: Row, spec: JobSpec, known: Mapping[str, Collection[Place]]) -> None:
        # The calls that may have started sub-agents.
        self.starts: set[Place] = set()
        self.has_open_approvals = False
        self._run = run
        self._spec = spec
        self._events = 0
        self._uses: dict[int, list[Mapping[str, Any]]] = {}  # tool_use blocks by message
        self._calls: dict[int, int] = {}  # rows of tool_calls by message
        self._has_item = False
        if run["id"] in known:
            raise ValueError(f"{run['id']} is in the file twice")
        if (run["state"] == "running") != (run["worker_id"] is not None):
            raise ValueError("runs.worker_id is for a run that is running, and only for it")
        if (run["state"] == "queued") != (run["due_at"] is not None):
            raise ValueError("runs.due_at is for a run that is queued, and only for it")
        for name in ("fresh_of", "fork_of"):
            if run[name] is not None and run[name] not in known:
                raise ValueError(f"runs.{name} names no run that is in the file before it")
        self._check_parent(run, known)

    @property
    def has_ended(self) -> bool:
        """True if no part of the run goes on or waits."""
        return self._run["state"] in ENDED and not self.has_open_approvals

    def _check_parent(self, run: Row, known: Mapping[str, Collection[Place]]) -> None:
        """Check that a run is where its id says."""
        place = place_of(run["id"])
        parent, is_child = place["parent"], place["parent"] is not None
        wanted = {
            "parent_run": parent,
            "root_run": place["root"] if is_child else None,
            "depth": place["depth"],
            "child_number": int(run["id"].rpartition(".")[2]) if is_child else None,
        }
        for name, value in wanted.items():
            if run[name] != value:
                raise ValueError(f"runs.{name} is not what the run's id says")
        if parent is not None and parent not in known:
            raise ValueError("runs.parent_run names no run that is in the file before it")
        types = [agent.name for agent in self._spec.agents] if is_child else [None]
        if run["agent_type"] not in types:
            raise ValueError("runs.agent_type is no type of sub-agent that the job has")
        if run["parent_position"] is None:
            return
        if parent is None:
            raise ValueError("runs.parent_position is for sub-agents")
        if (run["parent_message"], run["parent_position"]) not in known[parent]:
            raise ValueError("runs.parent_position is of no call of its parent that starts one")

    def add(self, table: str, row: Row) -> None:
        """Check the next row. Raises ``ValueError``."""
        if row["run_id"] != self._run["id"]:
            raise ValueError(f"{table}.run_id is not {self._run['id']}")
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
            case "tool_outputs":
                self._check_call_of(table, row)
            case "approvals":
                self._check_call_of(table, row)
                self.has_open_approvals |= row["answer"] is None
            case "hook_runs":
                self._check_hook(row)
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
            self.starts.add((message, position))

    def _check_call_of(self, table: str, row: Row) -> None:
        if row["position"] >= self._calls.get(row["message"], 0):
            raise ValueError(f"{table} has a row of no tool call")

    def _check_hook(self, row: Row) -> None:
        hooks = self._spec.hooks
        if row["hook"] >= len(hooks) or hooks[row["hook"]].event != row["event"]:
            raise ValueError("hook_runs.hook is no hook that the job has at that event")
        if row["message"] is not None:
            self._check_call_of("hook_runs", row)

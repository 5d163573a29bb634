"""What the data of events holds: those who read a record rely on what Runner writes into one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from runner.exchange.fitting import misfit

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

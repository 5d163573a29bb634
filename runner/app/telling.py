"""Events of a run for a person who follows it: one line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.app.humanize import TONES, Note, duration, event_note

# Told by what follows, or of no interest to somebody who watches.
_UNTOLD = ("message_added", "turn_ended", "tree_recorded", "limit_reached", "hook_started")


def line_of(event: Mapping[str, Any]) -> Note | None:
    """Return an event in one line; None if there is nothing to say."""
    data = event["data"] if isinstance(event["data"], dict) else {}

    def get(name: str, before: str = "") -> str:
        return f"{before}{data[name]}" if data.get(name) not in (None, "") else ""

    took = data.get("duration") or data.get("latency")
    time = f", {duration(took)}" if isinstance(took, int | float) else ""
    match event["type"]:
        case kind if kind in _UNTOLD:
            return None
        case "attempt_started":
            return Note(f"attempt {event['attempt']} begins, on {get('worker')}")
        case "attempt_ended" if data.get("due_at"):
            return Note(f"back in the queue: {get('why')}", "wait")
        case "turn_started":
            return Note(f"turn {get('turn')}")
        case "model_call_started":
            return Note("writes a summary") if data.get("purpose") == "summary" else None
        case "model_call_ended" if data.get("stop_reason"):
            usage: dict[str, int] = {**(data.get("usage") or {})}
            sent = sum(usage.get(name, 0) for name in ("input", "cache_read", "cache_creation"))
            return Note(f"reply: {sent:,} tokens in, {usage.get('output', 0):,} out{time}")
        case "permission_decided":
            is_allowed = data.get("decision") == "allow"
            why = get("reason", ": ") or get("rule", " by the rule ")
            words = {"deny": "denied", "ask": "waits for an approval"}.get(get("decision"), "")
            return None if is_allowed else Note(f"{get('name')} {words}{why}", "bad")
        case "tool_started":
            return Note(f"{get('name')} {get('input')}")
        case "tool_done":
            tone = TONES.get(data.get("outcome"), "plain")
            return Note(f"{get('name')} {get('outcome')}{time}{get('output', ': ')}", tone)
        case "verification_started":
            return Note("verifies")
        case "verified":
            tone = TONES.get(data.get("outcome"), "bad")
            said = f"verification {get('outcome')}{time}: {get('command')}{get('output', ': ')}"
            return Note(said, tone)
        case kind:
            return event_note(kind, data, event["attempt"])

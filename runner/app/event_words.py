"""Describes events of a run in words, one line each, for transcripts, pages and live displays."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from runner.app.humanize import TONES, Note, Tone, cell, duration, moment, run_state, text_in
from runner.core.run import RUNNERS_NAME

# Events that other events make redundant.
_UNTOLD = ("message_added", "turn_ended", "tree_recorded", "limit_reached", "hook_started")
_NAMES = {
    "run_submitted": "submitted",
    "pause_requested": "pause requested",
    "begun_afresh": "begun afresh",
}
_TOLD_BESIDE = frozenset({"by", "at", "why", "old", "new", "job_id", "item_key", "total"})
_TOLD_BY_TYPE = frozenset({"pause_requested"})  # values that only repeat the event's type


def is_by_person(data: Mapping[str, Any]) -> bool:
    return data.get("by") not in (None, RUNNERS_NAME)


def event_note(
    type_: str, data: Any, attempt: int | None, *, beside_calls: bool = True
) -> Note | None:
    """Return an event in words, or None if another event, or a call that it is shown beside, says the
    same, or no reader needs it. The data of an imported event may have any shape."""
    data = data if isinstance(data, dict) else {}
    get, took = partial(text_in, data), data.get("duration") or data.get("latency")
    time = f", {duration(took)}" if isinstance(took, int | float) else ""
    match type_:
        case kind if kind in _UNTOLD:
            return None
        case "turn_started":
            return Note(f"turn {get('turn')}")
        case "model_call_started":
            return Note("writes a summary") if data.get("purpose") == "summary" else None
        case "model_call_ended" if "error" in data:
            words = f"the summary by model call {get('call')} is not used: {get('error')}"
            return Note(words, "bad")
        case "model_call_ended" if data.get("stop_reason"):
            usage: dict[str, int] = {**(data.get("usage") or {})}
            sent = sum(usage.get(name, 0) for name in ("input", "cache_read", "cache_creation"))
            return Note(f"reply: {sent:,} tokens in, {usage.get('output', 0):,} out{time}")
        case "model_call_ended":
            failure = f"{get('kind')}{get('message', ': ')}"
            return Note(f"model call {get('call')} failed: {failure}", "bad")
        case "retry_scheduled":
            return Note(f"tries again at {moment(data['at'])}", "wait")
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
        case "waiting":
            return Note(f"waits: {get('reason')}{get('detail', ': ')}{_who_and_why(data)}", "wait")
        case "attempt_started" | "attempt_ended" | "error":
            return _note_on_attempt(type_, data, attempt)
        case "done":  # the event of the cancellation says it
            is_cancelled = data["state"] == "cancelled"
            return None if is_cancelled else run_state({"reason": "", "detail": "", **data})
        case "child_started" if "call_index" in data:
            words = f"{get('name')} starts {get('agent_type')} {get('child')}"
            return None if beside_calls else Note(words)
        case "child_started":
            did = "is given the whole task" if "token_ceiling" in data else "works for it"
            return Note(f"{get('agent_type')} {get('child')} {did}")
        case "connection":  # `runner audit connections` lists those that were made, too
            where = f"{get('host')}:{get('port')} {get('outcome')}{get('why', ': ')}"
            is_made = data.get("outcome") == "allowed"
            return None if is_made else Note(f"connection to {where}", "bad")
        case "hook_finished":
            return _note_on_hook(data)
    return _note_on_change(type_, data)


def _note_on_attempt(type_: str, data: Mapping[str, Any], attempt: int | None) -> Note | None:
    get = partial(text_in, data)
    if type_ == "attempt_started":
        return Note(f"attempt {attempt} begins, on {get('worker')}")
    if type_ == "error":  # a bug; ``done`` reports all other failures
        last = get("traceback").strip("\n").rpartition("\n")[2]
        return Note(f"attempt {attempt} ended in a bug: {last}", "bad") if last else None
    match data.get("why"):
        case "host_fault":
            words = f"host {get('host')} could not work on the run: {get('detail')}"
            return Note(words, "wait")
        case "lease_lost":
            return Note(f"attempt {attempt} was lost with its worker", "bad")
    # The next event explains an attempt's other ends.
    return Note(f"back in the queue{get('why', ': ')}", "wait") if data.get("due_at") else None


def _note_on_hook(data: Mapping[str, Any]) -> Note:
    told = ", ".join(str(data[name]) for name in ("outcome", "decision") if data.get(name))
    took = data.get("duration")
    time = f" ({duration(took)})" if isinstance(took, float | int) else ""
    get = partial(text_in, data)
    hook = f"hook {get('hook')} at {get('event')}{get('name', ' of ')}"
    tone: Tone = "plain" if data.get("outcome") == "succeeded" else "bad"
    is_against = data.get("decision") in ("ask", "deny")
    said = cell(get("system_message", "; it says: "))
    words = f"{hook}: {told}{get('reason', ': ')}{time}{said}"
    return Note(words, "wait" if is_against else tone)


def _note_on_change(type_: str, data: Mapping[str, Any]) -> Note | None:
    """Describe a change by a person, a rule or instructions, or an event of an unknown type."""
    get = partial(text_in, data)
    match type_:
        case "session_note":
            return Note(f"{get('kind').replace('_', ' ')}: {cell(get('text'))}")
        case "message_queued":
            return Note(f"message queued{_who(data)}: {get('text')}")
        case "approval_answered":
            index = data.get("call_index")
            number = index + 1 if isinstance(index, int) else "?"
            call = f"{get('name')}, call {number} of turn {get('turn')}"
            edited = ", with another input" if data.get("edited") else ""
            words = f"{call}: {get('answer')}{edited}{get('rule', ' by the rule ')}{_who(data)}"
            return Note(words, TONES.get(get("answer"), "plain"))
        case "instructions_read":
            files = data.get("files")
            names = [str(file.get("path")) for file in files] if isinstance(files, list) else []
            return Note(f"instructions read: {', '.join(names)}") if names else None
        case "tools_changed":
            kinds = {kind: data.get(kind) for kind in ("removed", "changed", "added", "left_out")}
            told = "; ".join(
                f"{kind.replace('_', ' ')}: {', '.join(map(cell, each))}"
                for kind, each in kinds.items()
                if each
            )
            return Note(f"tools of MCP servers have changed ({told})")
        case "rule_added" | "rule_revoked":
            kind, side = ("new", "new") if type_ == "rule_added" else ("revoked", "old")
            changed = data.get(side) or {}
            of = changed.get("run_id")
            scope = "for the whole job" if of is None else f"for {of} and its sub-agents"
            said = f"{kind} rule {text_in(changed, 'effect')} {text_in(changed, 'rule')}"
            return Note(f"{scope}: {said}{_who(data)}")
    details = ", ".join(
        f"{name} {_value(value)}"
        for name, value in data.items()
        if name not in _TOLD_BESIDE and value not in (None, "", [], {})
    )
    said = _NAMES.get(type_, type_.replace("_", " "))
    return Note(f"{said}{f' ({details})' if details else ''}{_who_and_why(data)}")


def _who_and_why(data: Mapping[str, Any]) -> str:
    """``by lena: too dear (max_turns 5 → 9)``."""
    before = old if isinstance(old := data.get("old"), dict) else {}
    after = new if isinstance(new := data.get("new"), dict) else {}
    changes = [
        f"{name} {_value(before.get(name))} → {_value(after.get(name))}"
        if name in before and name in after
        else f"{name} {_value(after.get(name, before.get(name)))}"
        for name in before | after
        if before.get(name) != after.get(name) and name not in _TOLD_BY_TYPE
    ]
    return _who(data) + (f" ({', '.join(changes)})" if changes else "")


def _who(data: Mapping[str, Any]) -> str:
    return text_in(data, "by", " by ") * is_by_person(data) + text_in(data, "why", ": ")


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(each)}" for name, each in value.items())
    if isinstance(value, float):
        return f"{value:.10g}"
    return "none" if value in (None, "") else str(value)

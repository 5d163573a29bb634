"""The audit record: what each entry says happened, in short lines without content."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runner.core.agents import NewChild, child_id
from runner.core.context import Compaction
from runner.core.conversation import ModelReply, ToolResult, Usage
from runner.core.entries import (
    CallsDecided,
    ChildrenStarted,
    ContextCompacted,
    Delivered,
    HookFinished,
    HookStarted,
    InstructionsRead,
    ModelCallFailed,
    ModelCallStarted,
    ModelReplied,
    OutcomeAsked,
    RunSettled,
    SummaryReplied,
    ToolFinished,
    ToolsStarted,
    TreeRecorded,
    TurnEnded,
    UserMessageAdded,
    VerificationStarted,
    Verified,
)
from runner.core.fold import Applied
from runner.core.hook_decisions import name_of
from runner.core.hooks import HookRun
from runner.core.run import (
    LONGEST_NAME,
    LONGEST_WHY,
    RUNNER,
    Author,
    Ended,
    Outcome,
    Requeued,
    Waiting,
)
from runner.core.state import RunState
from runner.core.text import shorten
from runner.permissions import Decision

INPUT_SUMMARY_LENGTH = 100
OUTPUT_SUMMARY_LENGTH = 80
_MOST_MATCHED_RULES = 10
_TELLING_INPUTS = ("command", "file_path", "path", "query", "pattern", "url")


# The types of events that say who did it (``signed_event``), of runs.
SIGNED = (
    "run_submitted",
    "approval_answered",
    "begun_afresh",
    "cancelled",
    "forked",
    "imported",
    "message_queued",
    "pause_requested",
    "paused",
    "resumed",
    "retried",
    "workspace_pruned",
)


@dataclass(frozen=True, slots=True)
class Event:
    type: str
    data: dict[str, Any]


def summarise_input(arguments: Any) -> str:
    """What a call is about: the first of its telling arguments, else all of them."""
    if isinstance(arguments, dict):
        for name in _TELLING_INPUTS:
            if isinstance(value := arguments.get(name), str) and value.strip():
                return shorten(value, INPUT_SUMMARY_LENGTH)
    return shorten(json.dumps(arguments, ensure_ascii=False), INPUT_SUMMARY_LENGTH)


def signed_event(
    kind: str,
    author: Author,
    data: Mapping[str, Any] | None = None,
    *,
    old: Mapping[str, Any] | None = None,
    new: Mapping[str, Any] | None = None,
) -> Event:
    """The event of something that a person can do, with who did it and why.

    Args:
        data: what else it tells.
        old, new: the values that changed, by name, before and after; ``old`` is None for what came
            to be, ``new`` for what is gone. Both None: neither is told.
    """
    by = None if author.name is None else shorten(author.name, LONGEST_NAME)
    signed = {**(data or {}), "by": by, "why": shorten(author.why, LONGEST_WHY)}
    if old is None and new is None:
        return Event(kind, signed)
    values = {"old": old and dict(old), "new": new and dict(new)}
    return Event(kind, signed | values)


def events_of(applied: Applied) -> Iterator[Event]:
    """The events of an entry, in order."""
    state, after = applied.before, applied.after
    match applied.entry:
        case ModelCallStarted() as entry:
            yield from _started(state, entry)
        case ModelReplied(reply):
            yield _ended(state, reply, after, after.turns)
            if not after.calls:
                yield Event("turn_ended", {"turn": after.turns})
        case SummaryReplied() as entry:
            yield from _summarised(state, entry, after)
        case ContextCompacted(compaction):
            yield _compacted(compaction)
        case ModelCallFailed() as entry:
            yield from _failed(state, entry)
        case CallsDecided(decisions):
            for index, decision in sorted(decisions.items()):
                yield Event("permission_decided", _call(state, index) | _decided(decision))
        case ToolsStarted(indexes):
            for index in indexes:
                summary = summarise_input(state.calls[index].input)
                yield Event("tool_started", _call(state, index) | {"input": summary})
        case ChildrenStarted(children):
            for child in children:
                yield _child_started(state, child)
        case OutcomeAsked(index):
            yield _asked(state, index)
        case ToolFinished() as entry:
            yield _finished(state, entry)
            if not after.calls:
                yield Event("turn_ended", {"turn": state.turns})
        case HookStarted(number):
            (run,) = (run for run in after.hooks.runs if run.number == number)
            yield Event("hook_started", _hook(state, run))
        case HookFinished() as entry:
            yield _hook_finished(state, entry)
        case TurnEnded():
            yield Event("turn_ended", {"turn": state.turns})
        case InstructionsRead() as entry:
            yield _instructions(entry)
        case TreeRecorded() | VerificationStarted() | Verified() | Delivered() as entry:
            yield _in_workspace(state, entry)
        case UserMessageAdded() as entry:
            data = {"cause": entry.cause, "messages": len(entry.texts)}
            yield Event("message_added", data)
        case RunSettled(outcome):
            yield from _settled(state, outcome)


def _summarised(state: RunState, entry: SummaryReplied, after: RunState) -> Iterator[Event]:
    ended = _ended(state, entry.reply, after, state.turns + 1)
    useless = {} if entry.compaction is not None else {"error": shorten(entry.why, 300)}
    yield Event(ended.type, ended.data | {"purpose": "summary"} | useless)
    if entry.compaction is not None:
        yield _compacted(entry.compaction)


def _asked(state: RunState, index: int) -> Event:
    call = state.calls[index]
    more = {"input": summarise_input(call.input_to_run), "started_by": call.started_by}
    return Event("outcome_asked", _call(state, index) | more)


def _decided(decision: Decision) -> dict[str, Any]:
    grounds = [
        {"rule": matched.rule.text, "matched": shorten(matched.matched, INPUT_SUMMARY_LENGTH)}
        for matched in decision.matched_rules[:_MOST_MATCHED_RULES]
    ]
    data = {"decision": decision.effect, "rule": decision.rule, "snapshot": decision.snapshot}
    reason = {"reason": shorten(decision.reason, 300)} if decision.reason else {}
    return data | {"grounds": grounds} | reason


def _call(state: RunState, index: int) -> dict[str, Any]:
    call = state.calls[index]
    return {
        "turn": state.turns,
        "call_index": index,
        "tool_use_id": shorten(call.id, INPUT_SUMMARY_LENGTH),
        "name": shorten(call.name, INPUT_SUMMARY_LENGTH),
    }


def _child_started(state: RunState, child: NewChild) -> Event:
    """What asked for it is a call, if any."""
    call = {"turn": state.turns} if child.index is None else _call(state, child.index)
    return Event(
        "child_started",
        call
        | {
            "child": child_id(state.run_id, child.number),
            "agent_type": child.agent_type,
            "description": shorten(child.description, INPUT_SUMMARY_LENGTH),
            "snapshot": child.snapshot,
            "token_ceiling": child.tokens,
            "cost_ceiling": child.cost,
            "deadline": child.deadline,
        },
    )


def _finished(state: RunState, entry: ToolFinished) -> Event:
    tree = {} if entry.tree is None else {"tree": entry.tree}
    return Event("tool_done", _call(state, entry.index) | _result(entry.result) | tree)


def _hook(state: RunState, run: HookRun) -> dict[str, Any]:
    about = {"turn": state.turns} if run.index is None else _call(state, run.index)
    name = shorten(name_of(state.spec.hooks[run.hook]), INPUT_SUMMARY_LENGTH)
    return about | {"hook_run": run.number, "event": run.event, "hook": name}


def _hook_finished(state: RunState, entry: HookFinished) -> Event:
    (run,) = (run for run in state.hooks.runs if run.number == entry.number)
    result, answer = entry.result, entry.result.answer
    said = {
        "outcome": answer.outcome,
        "duration": round(result.duration, 4),
        "updated": result.updated_input is not None,
        "context": bool(answer.context),
        "stops": answer.stops,
    }
    decision = {} if answer.decision is None else {"decision": answer.decision}
    reason = {"reason": shorten(answer.reason, 300)} if answer.reason else {}
    tree = {} if entry.tree is None else {"tree": entry.tree}
    return Event("hook_finished", _hook(state, run) | said | decision | reason | tree)


def _instructions(entry: InstructionsRead) -> Event:
    files = [
        {"path": file.path, "sha256": file.sha256, "characters": len(file.text)}
        for file in entry.files
    ]
    left_out = [shorten(each, 300) for each in entry.left_out]
    return Event("instructions_read", {"files": files, "left_out": left_out})


def _result(result: ToolResult) -> dict[str, Any]:
    return {
        "output": shorten(result.content, OUTPUT_SUMMARY_LENGTH),
        "outcome": result.outcome,
        "is_error": result.is_error,
        "duration": round(result.duration, 4),
    }


def _in_workspace(
    state: RunState, entry: TreeRecorded | VerificationStarted | Verified | Delivered
) -> Event:
    match entry:
        case TreeRecorded(tree, cause, found):
            put_aside = {} if found is None else {"found": found}
            return Event("tree_recorded", {"tree": tree, "cause": cause} | put_aside)
        case VerificationStarted(number):
            data = {"verification": number, "turn": state.turns}
            return Event("verification_started", data | {"tree": state.files.tree})
        case Verified(number, command, result):
            summary = shorten(command, INPUT_SUMMARY_LENGTH)
            return Event("verified", {"verification": number, "command": summary} | _result(result))
        case Delivered(commit):
            return Event("delivered", {"commit": commit})


def _started(state: RunState, entry: ModelCallStarted) -> Iterator[Event]:
    turn = state.turns + 1
    is_turn = entry.purpose == "turn"
    if is_turn and state.model.tries == 0:
        yield Event("turn_started", {"turn": turn})
    data = {"call": entry.number, "turn": turn, "max_tokens": entry.reservation.max_tokens}
    yield Event("model_call_started", data if is_turn else data | {"purpose": entry.purpose})


def _ended(state: RunState, reply: ModelReply, after: RunState, turn: int) -> Event:
    open_call = state.model.open_call
    return Event(
        "model_call_ended",
        {
            "call": open_call.number if open_call else None,
            "turn": turn,
            "stop_reason": shorten(reply.stop_reason, INPUT_SUMMARY_LENGTH),
            "usage": usage_of(reply.usage),
            "total": usage_of(after.money.usage),
            "request_id": reply.request_id,
            "latency": round(reply.latency, 3),
        },
    )


def _compacted(compaction: Compaction) -> Event:
    return Event(
        "context_compacted",
        {
            "kind": compaction.kind,
            "first": compaction.first,
            "last": compaction.last,
            "tokens_before": compaction.tokens_before,
            "tokens_after": compaction.tokens_after,
        },
    )


def usage_of(usage: Usage) -> dict[str, int]:
    """Tokens by kind, as events hold them."""
    return {
        "input": usage.input_tokens,
        "cache_read": usage.cache_read_tokens,
        "cache_creation": usage.cache_creation_tokens,
        "output": usage.output_tokens,
    }


def _failed(state: RunState, entry: ModelCallFailed) -> Iterator[Event]:
    open_call = state.model.open_call
    data = {
        "call": open_call.number if open_call else None,
        "kind": shorten(entry.kind, INPUT_SUMMARY_LENGTH),
        "message": shorten(entry.message, 300),
        "status": entry.status,
        "request_id": entry.request_id,
        "charged": entry.charged,
    }
    yield Event("model_call_ended", data)
    if entry.retry_at is not None:
        yield Event("retry_scheduled", {"at": entry.retry_at, "after": data["kind"]})


def _settled(state: RunState, outcome: Outcome) -> Iterator[Event]:
    match outcome:
        case Ended(how, reason, detail):
            data = {"state": how, "reason": reason, "detail": shorten(detail, 300)}
            if how == "stopped":
                yield Event("limit_reached", data)
            if how == "failed":
                yield Event("error", data)
            yield Event("attempt_ended", {"why": "run ended"})
            yield Event("done", data | {"total": usage_of(state.money.usage)})
        case Waiting(reason, detail):
            yield Event("attempt_ended", {"why": f"waiting: {reason}"})
            if reason == "paused":
                now = {"state": "waiting", "reason": "paused"}
                yield signed_event("paused", RUNNER, old={"state": "running"}, new=now)
            else:
                more = {"detail": shorten(detail, 300)} if detail else {}
                yield Event("waiting", {"reason": reason, **more})
        case Requeued(due_at, why):
            yield Event("attempt_ended", {"why": why, "due_at": due_at})

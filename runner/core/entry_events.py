"""The events of entries: what an attempt did, for the audit record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runner.core import entries, run
from runner.core.agents import child_id
from runner.core.budget import JobBudget, is_near
from runner.core.conversation import ToolResult
from runner.core.entries import Entry
from runner.core.events import (
    OUTPUT_SUMMARY_LENGTH,
    Event,
    connection_events,
    signed_event,
    summarise_input,
    summary,
    usage_of,
)
from runner.core.fold import Applied
from runner.core.hooks import HookRun
from runner.core.prices import FREE
from runner.core.state import RunState
from runner.core.text import shorten

_REASON_LENGTH = 300
_MOST_MATCHED_RULES = 10


def events_of(applied: Applied) -> Iterator[Event]:
    state, entry, after = applied.before, applied.entry, applied.after
    if isinstance(entry, entries.ModelEntry):
        yield from _of_model(state, entry, after)
    elif isinstance(entry, entries.CallEntry):
        yield from _of_calls(state, entry)
    elif isinstance(entry, entries.HookEntry):
        yield from _of_hook(state, entry, after)
    elif isinstance(entry, entries.WorkspaceEntry):
        if isinstance(entry, entries.Verified):
            about = about_verification(state, entry.number)
            yield from connection_events(about, entry.result.connections)
        yield _in_workspace(state, entry)
    elif isinstance(entry, entries.UserMessageAdded):
        yield Event("message_added", {"cause": entry.cause, "messages": len(entry.texts)})
    elif isinstance(entry, entries.ToolsListed):
        yield _tools_changed(state, entry)
    elif isinstance(entry, entries.RunSettled):
        yield from _settled(state, entry.outcome)
    yield from _limits_near(state, entry, after)
    ends = entries.ModelReplied | entries.ToolFinished | entries.TurnEnded
    if isinstance(entry, ends) and not after.calls:
        yield Event("turn_ended", {"turn": after.turns})


_USING = (entries.ModelEntry, entries.ToolFinished, entries.UserMessageAdded)


def _limits_near(state: RunState, entry: Entry, after: RunState) -> Iterator[Event]:
    """Yield an event for each limit of the run or its job that a call, or what a sub-agent needed,
    uses up to ``NEAR``."""
    if not isinstance(entry, _USING):
        return
    before, now = _used(state), _used(after)
    for limit, (used, most) in now.items():
        if most is not None and is_near(used, most) and not is_near(before[limit][0], most):
            yield Event("limit_near", {"limit": limit, "used": round(used), "most": round(most)})


def _used(state: RunState) -> dict[str, tuple[float, float | None]]:
    """Return what is used of each limit: turns, tokens, seconds, costs in billionths of a USD."""
    used, limits, budget = state.charged, state.limits, state.money.budget or JobBudget()
    last_at = state.model.pace.last_at
    return {
        "max_turns": (state.turns, limits.max_turns),
        "token_ceiling": (used.tokens, limits.token_ceiling),
        "cost_ceiling": (used.cost, limits.cost_ceiling),
        "deadline": ((last_at or state.submitted_at) - state.submitted_at, limits.deadline),
        "budget_tokens": (budget.spent_tokens, budget.most_tokens),
        "budget_usd": (budget.spent_cost, budget.most_cost),
    }


def _of_model(state: RunState, entry: entries.ModelEntry, after: RunState) -> Iterator[Event]:
    turn, call = state.turns + 1, state.model.open_call and state.model.open_call.number
    data: dict[str, Any]
    match entry:
        case entries.ModelCallStarted(number, reservation, _, purpose):
            if purpose == "turn" and state.model.tries == 0:
                yield Event("turn_started", {"turn": turn})
            data = {"call": number, "turn": turn, "max_tokens": reservation.max_tokens}
            of_summary = {} if purpose == "turn" else {"purpose": purpose}
            in_batch = {"batch": True} if reservation.batch else {}
            more = _given(cap_day=reservation.day) | in_batch
            yield Event("model_call_started", data | of_summary | more)
        case entries.ModelReplied(reply) | entries.SummaryReplied(reply):
            data = {
                "call": call,
                "turn": turn,
                "stop_reason": summary(reply.stop_reason),
                "usage": usage_of(reply.usage),
                "total": usage_of(after.money.usage),
                "request_id": reply.request_id,
                "latency": round(reply.latency, 3),
            }
            if isinstance(entry, entries.SummaryReplied):
                data |= {"purpose": "summary"} | _given(error=shorten(entry.why, _REASON_LENGTH))
            yield Event("model_call_ended", data)
        case entries.ModelCallFailed(kind, message, status, request_id, _, _, retry_at):
            data = {"call": call, "kind": summary(kind)}
            data |= {"message": shorten(message, _REASON_LENGTH), "status": status}
            data |= {"request_id": request_id, "charged": entry.charged}
            if entry.charged > entry.counted.total:
                data["unknown_cost"] = _unknown_cost(state, entry, after)
            if entry.counted.total:
                data |= {"usage": usage_of(entry.counted), "total": usage_of(after.money.usage)}
            yield Event("model_call_ended", data)
            if retry_at is not None:
                yield Event("retry_scheduled", {"at": retry_at, "after": data["kind"]})
    match entry:
        case entries.ContextCompacted(compaction) | entries.SummaryReplied(_, compaction):
            if compaction is not None:
                names = ("kind", "first", "last", "tokens_before", "tokens_after")
                data = {name: getattr(compaction, name) for name in names}
                yield Event("context_compacted", data)


def _unknown_cost(state: RunState, entry: entries.ModelCallFailed, after: RunState) -> int:
    """Return the part of a failed call's charge that is not for what the API counted."""
    charged, open_call = after.money.charged_cost - state.money.charged_cost, state.model.open_call
    if open_call is None or not entry.counted.total:
        return charged
    spec = state.spec
    tariff = state.money.tariffs.get(
        spec.model if open_call.purpose == "turn" else spec.summary_model, FREE
    )
    tariff = tariff.in_lane(batch=open_call.reservation.batch)
    hour_cache = open_call.reservation.hour_cache
    return charged - tariff.cost(entry.counted, hour_cache=hour_cache)


def _of_calls(state: RunState, entry: entries.CallEntry) -> Iterator[Event]:
    match entry:
        case entries.CallsDecided(decisions):
            for index, decision in sorted(decisions.items()):
                matched_rules = decision.matched_rules[:_MOST_MATCHED_RULES]
                told = {
                    "decision": decision.effect,
                    "rule": decision.rule,
                    "snapshot": decision.snapshot,
                    "grounds": [
                        {"rule": matched.rule.text, "matched": summary(matched.matched)}
                        for matched in matched_rules
                    ],
                    **_given(reason=shorten(decision.reason, _REASON_LENGTH)),
                }
                yield Event("permission_decided", about_call(state, index) | told)
        case entries.ToolsStarted(indexes):
            for index in indexes:
                told = {"input": summarise_input(state.calls[index].input)}
                yield Event("tool_started", about_call(state, index) | told)
        case entries.ChildrenStarted(children):
            for child in children:
                told = {
                    "child": child_id(state.run_id, child.number),
                    "agent_type": child.agent_type,
                    "description": summary(child.description),
                    "snapshot": child.snapshot,
                    "token_ceiling": child.tokens,
                    "cost_ceiling": child.cost,
                    "deadline": child.deadline,
                }
                yield Event("child_started", about_call(state, child.index) | told)
        case entries.OutcomeAsked(index):
            call = state.calls[index]
            more = {"input": summarise_input(call.input_to_run), "started_by": call.started_by}
            yield Event("outcome_asked", about_call(state, index) | more)
        case entries.ToolFinished(index, result, snapshot):
            yield from connection_events(about_call(state, index), result.connections)
            yield Event(
                "tool_done", about_call(state, index) | about_result(result) | _given(tree=snapshot)
            )


def about_call(state: RunState, index: int | None) -> dict[str, Any]:
    """Return the data by which events name a call; None: the turn alone."""
    if index is None:
        return {"turn": state.turns}
    call = state.calls[index]
    return {
        "turn": state.turns,
        "call_index": index,
        "tool_use_id": summary(call.id),
        "name": summary(call.name),
    }


def about_hook(state: RunState, run: HookRun) -> dict[str, Any]:
    """Return the data by which events name a run of a hook."""
    name = summary(state.spec.hooks[run.hook].name)
    named = {"hook_run": run.number, "event": run.event, "hook": name}
    return about_call(state, run.index) | named


def about_verification(state: RunState, number: int) -> dict[str, Any]:
    """Return the data by which events name a verification."""
    return {"turn": state.turns, "verification": number}


def about_result(result: ToolResult) -> dict[str, Any]:
    """Return the data by which events tell a call's result."""
    return {
        "output": shorten(result.content, OUTPUT_SUMMARY_LENGTH),
        "outcome": result.outcome,
        "is_error": result.is_error,
        "duration": round(result.duration, 4),
        **_given(containment=result.containment),
    }


def _given(**data: str | None) -> dict[str, Any]:
    return {name: text for name, text in data.items() if text}


def _of_hook(state: RunState, entry: entries.HookEntry, after: RunState) -> Iterator[Event]:
    [of_hook] = (each for each in after.hooks.runs if each.number == entry.number)
    data = about_hook(state, of_hook)
    if isinstance(entry, entries.HookStarted):
        yield Event("hook_started", data)
        return
    result, answer = entry.result, entry.result.answer
    yield from connection_events(data, result.connections)
    data |= {
        "outcome": answer.outcome,
        "duration": round(result.duration, 4),
        "updated": result.updated_input is not None,
        "replaced": result.updated_output is not None,
        "context": bool(answer.context),
        "stops": answer.stops,
    }
    reason, message = (shorten(text, _REASON_LENGTH) for text in (answer.reason, result.message))
    more = _given(
        system_message=message,
        decision=answer.decision,
        reason=reason,
        tree=entry.snapshot,
        containment=result.containment,
    )
    yield Event("hook_finished", data | more)


def _in_workspace(state: RunState, entry: entries.WorkspaceEntry) -> Event:
    match entry:
        case entries.InstructionsRead(files, left_out):
            read = [
                {"path": each.path, "sha256": each.sha256, "characters": len(each.text)}
                for each in files
            ]
            why = [shorten(each, _REASON_LENGTH) for each in left_out]
            return Event("instructions_read", {"files": read, "left_out": why})
        case entries.SnapshotRecorded(snapshot, cause, found):
            return Event("tree_recorded", {"tree": snapshot, "cause": cause} | _given(found=found))
        case entries.VerificationStarted(number):
            data = {"verification": number, "turn": state.turns, "tree": state.files.tree}
            return Event("verification_started", data)
        case entries.Verified(number, command, result):
            data = {"verification": number, "command": summary(command)}
            return Event("verified", data | about_result(result))
        case entries.Delivered(commit):
            return Event("delivered", {"commit": commit})


def _tools_changed(state: RunState, entry: entries.ToolsListed) -> Event:
    before, now = ({tool.name: tool for tool in each} for each in (state.spec.tools, entry.tools))
    names = {
        "removed": before.keys() - now.keys(),
        "changed": {name for name in before.keys() & now.keys() if before[name] != now[name]},
        "added": now.keys() - before.keys(),
    }
    left_out = [shorten(each, _REASON_LENGTH) for each in entry.left_out]
    return Event(
        "tools_changed",
        {"sha256": entry.sha256, **{k: sorted(v) for k, v in names.items()}, "left_out": left_out},
    )


def _settled(state: RunState, outcome: run.Outcome) -> Iterator[Event]:
    match outcome:
        case run.Ended(how, reason, detail):
            data = {"state": how, "reason": reason, "detail": shorten(detail, _REASON_LENGTH)}
            if how in ("stopped", "failed"):
                yield Event("limit_reached" if how == "stopped" else "error", data)
            yield Event("attempt_ended", {"why": "run ended"})
            yield Event("done", data | {"total": usage_of(state.money.usage)})
        case run.Waiting(reason, detail):
            yield Event("attempt_ended", {"why": f"waiting: {reason}"})
            if reason == "paused":
                now = {"state": "waiting", "reason": "paused"}
                yield signed_event("paused", run.RUNNER, old={"state": "running"}, new=now)
            else:
                more = _given(detail=shorten(detail, _REASON_LENGTH))
                yield Event("waiting", {"reason": reason, **more})
        case run.Requeued(due_at, why):
            yield Event("attempt_ended", {"why": why, "due_at": due_at})

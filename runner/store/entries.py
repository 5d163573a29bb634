"""The rows of an attempt's entries: collected in memory, then written table by table."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, func, insert, select

from runner.core.calls import changes_tree, outcome_question
from runner.core.context import Compaction
from runner.core.conversation import (
    Block,
    ModelReply,
    ToolResult,
    message_blocks,
    result_block,
    text_block,
    tool_uses,
)
from runner.core.entries import (
    CallsDecided,
    ChildrenStarted,
    ContextCompacted,
    Delivered,
    Entry,
    HookFinished,
    HookStarted,
    InstructionsRead,
    ModelCallFailed,
    ModelCallStarted,
    ModelReplied,
    OutcomeAsked,
    RunSettled,
    SummaryReplied,
    TimeWorked,
    ToolFinished,
    ToolsStarted,
    TreeRecorded,
    TurnEnded,
    UserMessageAdded,
    VerificationStarted,
    Verified,
)
from runner.core.events import Event, events_of, summarise_input
from runner.core.fold import Applied
from runner.core.hook_decisions import asks
from runner.core.run import Ended, Lease, Outcome, Requeued, Waiting
from runner.core.state import Call, RunState
from runner.core.text import shorten, visible
from runner.permissions import Decision, Request, digest_of
from runner.permissions.suggestions import suggest
from runner.store import ids
from runner.store.run_state import HookRows, compaction_row, tool_context_to_json
from runner.store.statements import Writes
from runner.store.tables import (
    approvals,
    blocks,
    compactions,
    events,
    job_events,
    model_calls,
    queued_messages,
    tool_calls,
    tool_outputs,
    verifications,
)


def model_call_row(
    state: RunState, entry: ModelCallStarted, attempt: int, now: float
) -> dict[str, Any]:
    """The row of a call that begins.

    Args:
        state: the run before it.
        attempt: the one that makes the call.
        now: seconds since the epoch.
    """
    of_turn = entry.purpose == "turn"
    return {
        "run_id": state.run_id,
        "number": entry.number,
        "attempt": attempt,
        "turn": state.turns + 1,
        "model": state.spec.model if of_turn else state.spec.summary_model,
        "max_tokens": entry.reservation.max_tokens,
        "worst_case": entry.reservation.worst_case,
        "started_at": now,
        "purpose": entry.purpose,
        "hour_cache": entry.reservation.hour_cache,
    }


def reply_changes(reply: ModelReply, kept: Sequence[Block], now: float) -> dict[str, Any]:
    """What a reply adds to its call's row.

    Args:
        kept: those of its blocks that are stored elsewhere; the others stay with the call.
        now: seconds since the epoch.
    """
    left_out = [block for block in reply.blocks if block not in kept]
    left_out += [reply.cut] if reply.cut else []
    return {
        "ended_at": now,
        "model": visible(reply.model),
        "latency": reply.latency,
        "request_id": reply.request_id and visible(reply.request_id),
        "stop_reason": visible(reply.stop_reason),
        "input_tokens": reply.usage.input_tokens,
        "cache_read_tokens": reply.usage.cache_read_tokens,
        "cache_creation_tokens": reply.usage.cache_creation_tokens,
        "output_tokens": reply.usage.output_tokens,
        "charged_tokens": reply.usage.total,
        "cut": left_out or None,
    }


def summary_changes(entry: SummaryReplied, now: float) -> dict[str, Any]:
    """What the reply to a call for a summary adds to its row. The compaction has the text; a reply
    that was of no use stays with the call, with the reason."""
    is_used = entry.compaction is not None
    kept = [block for block in entry.reply.blocks if is_used and block["type"] == "text"]
    error = {} if is_used else {"error": visible(f"summary_failed: {entry.why}")}
    return reply_changes(entry.reply, kept, now) | error


def failure_changes(entry: ModelCallFailed) -> dict[str, Any]:
    """What a failure adds to its call's row."""
    return {
        "ended_at": entry.at,
        "request_id": entry.request_id and visible(entry.request_id),
        "charged_tokens": entry.charged,
        "error": visible(f"{entry.kind}: {entry.message}"),
    }


def verification_row(
    state: RunState, entry: VerificationStarted, attempt: int, now: float
) -> dict[str, Any]:
    """A verification as it begins. ``now`` is in seconds since the epoch."""
    return {
        "run_id": state.run_id,
        "number": entry.number,
        "turn": state.turns,
        "tree": state.files.tree,
        "attempt": attempt,
        "started_at": now,
    }


def verified_changes(entry: Verified, attempt: int, now: float) -> dict[str, Any]:
    """What its end changes in its row: the attempt is the one that saw it end."""
    result = entry.result
    changes: dict[str, Any] = {
        "attempt": attempt,
        "ended_at": now,
        "duration": result.duration,
        "outcome": result.outcome,
        "command": visible(entry.command),
        "content": result.content,
    }
    if result.output is not None:
        changes |= {"size": len(result.output), "compressed": zlib.compress(result.output)}
    return changes


# A question about what became of a call is no question about such calls: the two are not answered
# together, and no rule answers it.
_OF_OUTCOME = " (outcome unknown)"
# Nor does a rule answer what a hook asks.
_OF_HOOK = " (a hook asks)"

_UNANSWERED: dict[str, Any] = {
    "answer": None,
    "answered_at": None,
    "answered_by": None,
    "answered_via": None,
    "reason": "",
}

_Key = tuple[int, int]


class Questions:
    """Rows of ``approvals``: new ones, and changes of those that are there.

    Args:
        now: seconds since the epoch.
    """

    def __init__(self, run_id: str, job_id: str, now: float) -> None:
        self._run_id = run_id
        self._job_id = job_id
        self._now = now
        self._new: dict[_Key, dict[str, Any]] = {}
        self._changed: dict[_Key, dict[str, Any]] = {}

    def ask(self, state: RunState, call: Call, decision: Decision) -> None:
        """Whether a call may run."""
        question = self._question(state, call, decision)
        if asks(state, call):
            key = question["group_key"] + _OF_HOOK
            question |= {"group_key": key, "suggested_rule": "", "by_hook": True}
        self._insert(state, call, question)

    def ask_again(self, state: RunState, call: Call, decision: Decision) -> None:
        """Whether a call runs again of which nobody knows what it did. It had one question at most
        before; what a person had changed of its input stays so."""
        question = self._question(state, call, decision)
        question |= {"group_key": question["group_key"] + _OF_OUTCOME, "suggested_rule": ""}
        if call.decision is not None and call.decision.effect == "ask":
            self._change(_key(state, call), {**question, **_UNANSWERED})
        else:
            self._insert(state, call, question)

    def close(self, state: RunState, call: Call) -> None:
        """Nobody is asked any more: the run has ended."""
        closing = {"answer": "cancelled", "answered_at": self._now, "answered_via": "end"}
        self._change(_key(state, call), closing)

    def add_to(self, writes: Writes) -> None:
        """Have all of it written with the rest."""
        writes.insert(approvals, [*self._new.values()])
        for (message, position), changes in self._changed.items():
            writes.change(
                approvals, changes, run_id=self._run_id, message=message, position=position
            )

    def _insert(self, state: RunState, call: Call, question: dict[str, Any]) -> None:
        message, position = _key(state, call)
        named = {"run_id": self._run_id, "message": message, "position": position}
        owner = {"job_id": self._job_id, "turn": state.turns, "tool": call.name}
        self._new[message, position] = {**named, **owner, **question}

    def _change(self, key: _Key, changes: dict[str, Any]) -> None:
        rows = self._new if key in self._new else self._changed  # one statement writes a row once
        rows.setdefault(key, {}).update(changes)

    def _question(self, state: RunState, call: Call, decision: Decision) -> dict[str, Any]:
        assert call.tool_context is not None, "a call is located before it is asked about"
        arguments = call.input_to_run
        suggestion = suggest(state.policy, Request(call.name, arguments, call.tool_context))
        return {
            "id": ids.new("apr", self._now),
            "input_digest": digest_of(arguments),
            "setting": tool_context_to_json(call.tool_context),
            "checked_snapshot": decision.snapshot,
            "summary": summarise_input(arguments),
            "group_key": visible(suggestion.key),
            "suggested_rule": suggestion.rule,
            "asked_at": self._now,
            "expires_at": _expires_at(state, self._now),
            "notified_at": self._now if state.spec.asking.notify is None else None,
        }


def _key(state: RunState, call: Call) -> _Key:
    return len(state.messages) - 1, call.index


def _expires_at(state: RunState, now: float) -> float | None:
    """When a question is answered by itself: the job's patience or its deadline has run out."""
    times = []
    if state.spec.asking.timeout is not None:
        times.append(now + state.spec.asking.timeout)
    if state.limits.deadline is not None:
        times.append(state.submitted_at + state.limits.deadline)
    return min(times, default=None)


_DENIAL_LENGTH = 300


class Rows:
    """The rows of one transaction. ``run_changes`` are for the run's own row.

    Args:
        lease: who writes. job_id: the run's job. now: seconds since the epoch. event_count: the
            run's last event number.
    """

    def __init__(self, lease: Lease, job_id: str, now: float, event_count: int) -> None:
        self.run_changes: dict[str, Any] = {}
        self.denials = 0
        self.event_count = event_count
        self._run_id = lease.run_id
        self._job_id = job_id
        self._attempt = lease.attempt
        self._now = now
        self._events: list[dict[str, Any]] = []
        self._blocks: list[dict[str, Any]] = []
        self._outputs: list[dict[str, Any]] = []
        self._compactions: list[dict[str, Any]] = []
        self._questions = Questions(lease.run_id, job_id, now)
        self._hooks = HookRows(lease.run_id, lease.attempt, now)
        self._delivered: dict[int, int] = {}
        self._verifications: list[dict[str, Any]] = []
        self._verified: dict[int, dict[str, Any]] = {}
        self._new_calls: dict[tuple[int, int], dict[str, Any]] = {}
        self._changed_calls: dict[tuple[int, int], dict[str, Any]] = {}
        self._new_model_calls: dict[int, dict[str, Any]] = {}
        self._changed_model_calls: dict[int, dict[str, Any]] = {}

    def add(self, applied: Sequence[Applied]) -> None:
        """Collect the rows of entries, in order."""
        for one in applied:
            for event in events_of(one):
                self._add_event(event.type, event.data)
            self._add_entry(one.before, one.entry)

    def _add_event(self, kind: str, data: dict[str, Any]) -> None:
        self.event_count += 1
        self._events.append(
            {
                "run_id": self._run_id,
                "number": self.event_count,
                "at": self._now,
                "attempt": self._attempt,
                "type": kind,
                "data": data,
            }
        )

    def _add_entry(self, state: RunState, entry: Entry) -> None:
        match entry:
            case ModelCallStarted(number):
                row = model_call_row(state, entry, self._attempt, self._now)
                self._new_model_calls[number] = row
            case ModelReplied(reply):
                self._add_reply(state, reply)
            case ModelCallFailed():
                self._change_model_call(state, failure_changes(entry))
            case SummaryReplied():
                self._add_summary(state, entry)
            case ContextCompacted(compaction):
                self._add_compaction(state, compaction, None)
            case TimeWorked() | TurnEnded() | Delivered():
                pass  # the run's progress says so
            case HookStarted():
                self._hooks.start(state, entry)
            case HookFinished():
                self._finish_hook(state, entry)
            case InstructionsRead():
                self._hooks.instruct(entry)
            case CallsDecided(decisions):
                for index, decision in decisions.items():
                    self._decide_call(state, index, decision)
                    if decision.effect == "ask":
                        self._questions.ask(state, state.calls[index], decision)
            case OutcomeAsked(index, unrecorded):
                decision = outcome_question(state, unrecorded)
                self._decide_call(state, index, decision, asked_again=True)
                self._questions.ask_again(state, state.calls[index], decision)
            case ToolsStarted(indexes):
                self._start_calls(state, indexes)
            case ChildrenStarted(children):
                asking = {child.index for child in children if child.index is not None}
                self._start_calls(state, sorted(asking))
            case ToolFinished():
                self._finish_call(state, entry)
            case TreeRecorded(tree):
                if state.files.tree is None:
                    self.run_changes["start_tree"] = tree
            case VerificationStarted() | Verified():
                self._verify(state, entry)
            case UserMessageAdded():
                self._add_user_message(state, entry)
            case RunSettled(outcome):
                self.run_changes |= _state_changes(outcome, self._now)
                if isinstance(outcome, Ended):
                    self._interrupt_calls(state)

    def _add_summary(self, state: RunState, entry: SummaryReplied) -> None:
        call = state.model.open_call
        assert call is not None
        self._change_model_call(state, summary_changes(entry, self._now))
        self._note_result()
        if entry.compaction is not None:
            self._add_compaction(state, entry.compaction, call.number)

    def _add_compaction(
        self, state: RunState, compaction: Compaction, made_by_call: int | None
    ) -> None:
        row = compaction_row(state, compaction, made_by_call, self._now)
        self._compactions.append(row)
        self.run_changes["compaction_count"] = row["number"]

    def _add_reply(self, state: RunState, reply: ModelReply) -> None:
        entering = message_blocks(reply)
        self._change_model_call(state, reply_changes(reply, entering, self._now))
        self._note_result()
        message, turn = len(state.messages), state.turns + 1
        for position, block in enumerate(entering):
            self._add_block(message, position, "assistant", turn, block)
        for position, block in enumerate(tool_uses(entering)):
            self._new_calls[message, position] = {
                "run_id": self._run_id,
                "message": message,
                "position": position,
                "turn": turn,
                "tool_use_id": visible(block["id"]),
                "name": visible(block["name"]),
            }

    def _decide_call(self, state: RunState, index: int, decision: Decision, **changes: Any) -> None:
        matched = decision.matched_rules[0] if decision.matched_rules else None
        self._change_call(
            state,
            index,
            decision=decision.effect,
            rule=matched and matched.rule.text,
            rule_position=matched and matched.rule.position,
            matched=matched and visible(matched.matched),
            decision_snapshot=decision.snapshot,
            decision_reason=visible(decision.reason) or None,
            **changes,
        )

    def _interrupt_calls(self, state: RunState) -> None:
        """Nobody is asked any more about calls that will not run. One that an earlier end cut off has
        had its question closed by it."""
        for call in state.calls:
            if call.result is not None:
                continue
            self._change_call(state, call.index, interrupted=True)
            asked = call.decision is not None and call.decision.effect == "ask"
            if asked and call.answer is None and not call.interrupted:
                self._questions.close(state, call)

    def _start_calls(self, state: RunState, indexes: Sequence[int]) -> None:
        changes: dict[str, Any] = {"started_attempt": self._attempt, "started_at": self._now}
        if changes_tree(state, [state.calls[index] for index in indexes]):
            changes["tree_before"] = state.files.tree
        for index in indexes:
            again = {"asked_again": False} if state.calls[index].asked_again else {}
            self._change_call(state, index, **changes, **again)

    def _verify(self, state: RunState, entry: VerificationStarted | Verified) -> None:
        """What has begun is stored before it ends: the two are never in one transaction."""
        if isinstance(entry, VerificationStarted):
            row = verification_row(state, entry, self._attempt, self._now)
            self._verifications.append(row)
        else:
            self._verified[entry.number] = verified_changes(entry, self._attempt, self._now)
            self._note_result()

    def _finish_hook(self, state: RunState, entry: HookFinished) -> None:
        self._hooks.finish(entry)
        updated = entry.result.updated_input
        (run,) = (run for run in state.hooks.runs if run.number == entry.number)
        if updated is not None and run.index is not None:
            self._change_call(state, run.index, updated_input=updated)
        self._note_result()

    def _finish_call(self, state: RunState, entry: ToolFinished) -> None:
        result, message = entry.result, len(state.messages)
        self.denials += result.outcome == "denied"
        self._change_call(
            state,
            entry.index,
            ended_at=self._now,
            duration=result.duration,
            outcome=result.outcome,
            **({} if entry.tree is None else {"tree_after": entry.tree}),
            **self._denial(state.calls[entry.index], result),
        )
        block = result_block(state.calls[entry.index].id, result)
        self._add_block(message, entry.index, "user", state.turns, block)
        if result.output is not None:
            self._outputs.append(
                {
                    "run_id": self._run_id,
                    "message": message - 1,
                    "position": entry.index,
                    "size": len(result.output),
                    "compressed": zlib.compress(result.output),
                }
            )
        self._note_result()

    def _denial(self, call: Call, result: ToolResult) -> dict[str, str]:
        """Why a call was denied, where neither its decision nor its answer says so."""
        said_before = (call.decision is not None and call.decision.effect == "deny") or (
            call.answer is not None and call.answer.effect != "approved"
        )
        if result.outcome != "denied" or said_before:
            return {}
        return {"denial": shorten(result.content, _DENIAL_LENGTH)}

    def _note_result(self) -> None:
        self.run_changes |= {"lost_leases": 0, "bugs": 0}

    def _add_user_message(self, state: RunState, entry: UserMessageAdded) -> None:
        tail = state.messages[-1]
        message, position = len(state.messages), 0
        if tail.role == "user":
            message, position = message - 1, len(tail.blocks)
        for offset, text in enumerate(entry.texts):
            self._add_block(message, position + offset, "user", state.turns, text_block(text))
        self._delivered |= dict.fromkeys(entry.queued_ids, message)

    def _add_block(self, message: int, position: int, role: str, turn: int, block: Block) -> None:
        self._blocks.append(
            {
                "run_id": self._run_id,
                "message": message,
                "position": position,
                "role": role,
                "type": block["type"],
                "turn": turn,
                "content": block,
                "created_at": self._now,
            }
        )

    def _change_call(self, state: RunState, index: int, **changes: Any) -> None:
        key = (len(state.messages) - 1, index)
        rows = self._new_calls if key in self._new_calls else self._changed_calls
        rows.setdefault(key, {}).update(changes)

    def _change_model_call(self, state: RunState, changes: dict[str, Any]) -> None:
        assert state.model.open_call is not None
        number = state.model.open_call.number
        new = number in self._new_model_calls
        rows = self._new_model_calls if new else self._changed_model_calls
        rows.setdefault(number, {}).update(changes)

    def writes(self) -> Writes:
        """Everything that was collected, to be written."""
        writes = Writes()
        for table, rows in (
            (model_calls, [*self._new_model_calls.values()]),
            (blocks, self._blocks),
            (tool_calls, [*self._new_calls.values()]),
            (tool_outputs, self._outputs),
            (compactions, self._compactions),
            (verifications, self._verifications),
            (events, self._events),
        ):
            writes.insert(table, rows)
        self._questions.add_to(writes)
        self._hooks.add_to(writes)
        for (message, position), changes in self._changed_calls.items():
            key = {"run_id": self._run_id, "message": message, "position": position}
            writes.change(tool_calls, changes, **key)
        for number, changes in self._changed_model_calls.items():
            writes.change(model_calls, changes, run_id=self._run_id, number=number)
        for number, changes in self._verified.items():
            writes.change(verifications, changes, run_id=self._run_id, number=number)
        for queued_id, message in self._delivered.items():
            writes.change(queued_messages, {"delivered_message": message}, id=queued_id)
        return writes


def _state_changes(outcome: Outcome, now: float) -> dict[str, Any]:
    freed = {"worker_id": None, "due_at": None, "rung_at": None}
    match outcome:
        case Ended(state, reason, detail):
            return freed | {
                "state": state,
                "reason": visible(reason),
                "detail": visible(detail),
                "ended_at": now,
                "pause_requested": False,
            }
        case Waiting(reason, detail):
            return freed | {
                "state": "waiting",
                "reason": reason,
                "detail": detail,
                "pause_requested": False,
            }
        case Requeued(due_at, reason):
            return freed | {"state": "queued", "reason": reason, "detail": "", "due_at": due_at}


def add_job_events(
    connection: Connection, job_id: str, happened: Iterable[Event], now: float
) -> None:
    """Append events to a job that is locked (``store.rules.lock_rules``), or is being submitted.

    Args:
        now: seconds since the epoch.
    """
    newest = select(func.max(job_events.c.number)).where(job_events.c.job_id == job_id)
    last = connection.execute(newest).scalar() or 0
    rows = [
        {"job_id": job_id, "number": number, "at": now, "type": event.type, "data": event.data}
        for number, event in enumerate(happened, last + 1)
    ]
    if rows:
        connection.execute(insert(job_events), rows)

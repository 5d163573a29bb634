"""What an attempt's entries are as rows: collected in memory, then written table by table."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from runner.core.calls import changes_tree
from runner.core.context.compaction import Compaction
from runner.core.conversation import (
    Block,
    ModelReply,
    ToolResult,
    message_blocks,
    result_block,
    text_block,
    tool_uses,
)
from runner.core.files.doubt import outcome_question
from runner.core.journal.entries import (
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
from runner.core.journal.events import events_of
from runner.core.journal.fold import Applied
from runner.core.journal.view import Call, RunView
from runner.core.run import Ended, Lease, Outcome, Requeued, Waiting
from runner.core.text.plain import shorten, visible
from runner.permissions import Decision
from runner.store.asking import Questions
from runner.store.connection.statement import Writes
from runner.store.rows.compactions import compaction_row
from runner.store.rows.hooks import HookRows
from runner.store.rows.model_calls import (
    failure_changes,
    reply_changes,
    started_row,
    summary_changes,
)
from runner.store.rows.verifications import started_row as verification_row
from runner.store.rows.verifications import verified_changes
from runner.store.tables import (
    blocks,
    compactions,
    events,
    model_calls,
    queued_messages,
    tool_calls,
    tool_outputs,
    verifications,
)

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

    def _add_entry(self, view: RunView, entry: Entry) -> None:
        match entry:
            case ModelCallStarted(number):
                row = started_row(view, entry, self._attempt, self._now)
                self._new_model_calls[number] = row
            case ModelReplied(reply):
                self._add_reply(view, reply)
            case ModelCallFailed():
                self._change_model_call(view, failure_changes(entry))
            case SummaryReplied():
                self._add_summary(view, entry)
            case ContextCompacted(compaction):
                self._add_compaction(view, compaction, None)
            case TimeWorked() | TurnEnded() | Delivered():
                pass  # the run's progress says so
            case HookStarted():
                self._hooks.start(view, entry)
            case HookFinished():
                self._finish_hook(view, entry)
            case InstructionsRead():
                self._hooks.instruct(entry)
            case CallsDecided(decisions):
                for index, decision in decisions.items():
                    self._decide_call(view, index, decision)
                    if decision.effect == "ask":
                        self._questions.ask(view, view.calls[index], decision)
            case OutcomeAsked(index, unrecorded):
                decision = outcome_question(view, unrecorded)
                self._decide_call(view, index, decision, asked_again=True)
                self._questions.ask_again(view, view.calls[index], decision)
            case ToolsStarted(indexes):
                self._start_calls(view, indexes)
            case ChildrenStarted(children):
                asking = {child.index for child in children if child.index is not None}
                self._start_calls(view, sorted(asking))
            case ToolFinished():
                self._finish_call(view, entry)
            case TreeRecorded(tree):
                if view.progress.tree is None:
                    self.run_changes["start_tree"] = tree
            case VerificationStarted() | Verified():
                self._verify(view, entry)
            case UserMessageAdded():
                self._add_user_message(view, entry)
            case RunSettled(outcome):
                self.run_changes |= _state_changes(outcome, self._now)
                if isinstance(outcome, Ended):
                    self._interrupt_calls(view)

    def _add_summary(self, view: RunView, entry: SummaryReplied) -> None:
        call = view.progress.open_call
        assert call is not None
        self._change_model_call(view, summary_changes(entry, self._now))
        self._note_result()
        if entry.compaction is not None:
            self._add_compaction(view, entry.compaction, call.number)

    def _add_compaction(
        self, view: RunView, compaction: Compaction, made_by_call: int | None
    ) -> None:
        row = compaction_row(view, compaction, made_by_call, self._now)
        self._compactions.append(row)
        self.run_changes["compaction_count"] = row["number"]

    def _add_reply(self, view: RunView, reply: ModelReply) -> None:
        entering = message_blocks(reply)
        self._change_model_call(view, reply_changes(reply, entering, self._now))
        self._note_result()
        message, turn = len(view.messages), view.progress.turns + 1
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

    def _decide_call(self, view: RunView, index: int, decision: Decision, **changes: Any) -> None:
        matched = decision.matched_rules[0] if decision.matched_rules else None
        self._change_call(
            view,
            index,
            decision=decision.effect,
            rule=matched and matched.rule.text,
            rule_position=matched and matched.rule.position,
            matched=matched and visible(matched.matched),
            decision_snapshot=decision.snapshot,
            decision_reason=visible(decision.reason) or None,
            **changes,
        )

    def _interrupt_calls(self, view: RunView) -> None:
        """Nobody is asked any more about calls that will not run. One that an earlier end cut off has
        had its question closed by it."""
        for call in view.calls:
            if call.result is not None:
                continue
            self._change_call(view, call.index, interrupted=True)
            asked = call.decision is not None and call.decision.effect == "ask"
            if asked and call.answer is None and not call.interrupted:
                self._questions.close(view, call)

    def _start_calls(self, view: RunView, indexes: Sequence[int]) -> None:
        changes: dict[str, Any] = {"started_attempt": self._attempt, "started_at": self._now}
        if changes_tree(view, [view.calls[index] for index in indexes]):
            changes["tree_before"] = view.progress.tree
        for index in indexes:
            again = {"asked_again": False} if view.calls[index].asked_again else {}
            self._change_call(view, index, **changes, **again)

    def _verify(self, view: RunView, entry: VerificationStarted | Verified) -> None:
        """What has begun is stored before it ends: the two are never in one transaction."""
        if isinstance(entry, VerificationStarted):
            row = verification_row(view, entry, self._attempt, self._now)
            self._verifications.append(row)
        else:
            self._verified[entry.number] = verified_changes(entry, self._attempt, self._now)
            self._note_result()

    def _finish_hook(self, view: RunView, entry: HookFinished) -> None:
        self._hooks.finish(entry)
        updated = entry.result.updated_input
        (run,) = (run for run in view.hook_runs if run.number == entry.number)
        if updated is not None and run.index is not None:
            self._change_call(view, run.index, updated_input=updated)
        self._note_result()

    def _finish_call(self, view: RunView, entry: ToolFinished) -> None:
        result, message = entry.result, len(view.messages)
        self.denials += result.outcome == "denied"
        self._change_call(
            view,
            entry.index,
            ended_at=self._now,
            duration=result.duration,
            outcome=result.outcome,
            **({} if entry.tree is None else {"tree_after": entry.tree}),
            **self._denial(view.calls[entry.index], result),
        )
        block = result_block(view.calls[entry.index].id, result)
        self._add_block(message, entry.index, "user", view.progress.turns, block)
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

    def _add_user_message(self, view: RunView, entry: UserMessageAdded) -> None:
        tail = view.messages[-1]
        message, position = len(view.messages), 0
        if tail.role == "user":
            message, position = message - 1, len(tail.blocks)
        for offset, text in enumerate(entry.texts):
            self._add_block(
                message, position + offset, "user", view.progress.turns, text_block(text)
            )
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

    def _change_call(self, view: RunView, index: int, **changes: Any) -> None:
        key = (len(view.messages) - 1, index)
        rows = self._new_calls if key in self._new_calls else self._changed_calls
        rows.setdefault(key, {}).update(changes)

    def _change_model_call(self, view: RunView, changes: dict[str, Any]) -> None:
        assert view.progress.open_call is not None
        number = view.progress.open_call.number
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

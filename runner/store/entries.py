"""The rows of an attempt's entries: collected in memory, then written table by table."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from operator import attrgetter
from typing import Any

from sqlalchemy import Table

from runner.core import entries
from runner.core.context import Compaction
from runner.core.conversation import ModelReply, message_blocks, result_block, text_block, tool_uses
from runner.core.entry_events import events_of
from runner.core.events import INPUT_SUMMARY_LENGTH, summarise_input
from runner.core.fold import Applied
from runner.core.hook_decisions import asks, replaced
from runner.core.run import Ended, Lease, Outcome, Requeued, Waiting
from runner.core.state import Call, RunState
from runner.core.text import shorten, visible
from runner.core.tool_calls import changes_files, interrupted_by, outcome_question
from runner.permissions import Decision, Request, digest_of
from runner.permissions.suggestions import suggest
from runner.store import ids, tables
from runner.store.changes import FREED, ended, event_rows, queued
from runner.store.statements import Writes

# A question about what became of a call is no question about such calls: the two are not answered
# together, and no rule answers it. Nor does a rule answer what a hook asks.
_OF_OUTCOME, _OF_HOOK = " (outcome unknown)", " (a hook asks)"
_UNANSWERED: dict[str, Any] = {
    "answer": None,
    "answered_at": None,
    "answered_by": None,
    "answered_via": None,
    "reason": "",
}
_DENIAL_LENGTH = 300


class Rows:
    """The rows of one transaction, at ``now`` in seconds since the epoch."""

    def __init__(self, lease: Lease, job_id: str, now: float, event_count: int) -> None:
        self.run_changes: dict[str, Any] = {}  # of the run's own row
        self.denials = 0
        self.event_count = event_count  # the number of the run's last event
        self._run_id = lease.run_id
        self._job_id = job_id
        self._attempt = lease.attempt
        self._now = now
        # By table and key. One statement writes a row once: a change of a new row joins it.
        self._new: dict[Table, dict[tuple[Any, ...], dict[str, Any]]] = defaultdict(dict)
        self._changed: dict[Table, dict[tuple[Any, ...], dict[str, Any]]] = defaultdict(dict)

    def add(self, applied: Sequence[Applied]) -> None:
        """Collect the rows of entries, in order."""
        for one in applied:
            happened, last = events_of(one), self.event_count
            for row in event_rows(
                self._run_id, happened, self._now, after=last, attempt=self._attempt
            ):
                self.event_count = row["number"]
                self._new[tables.events][self.event_count,] = row
            self._add_entry(one.before, one.entry)

    def writes(self) -> Writes:
        """Everything that was collected, to be written."""
        writes = Writes()
        by_name = attrgetter("name")  # in the same order each time: statements are kept
        for table in sorted(self._new, key=by_name):
            writes.insert(table, [*self._new[table].values()])
        for table in sorted(self._changed, key=by_name):
            for key, changes in self._changed[table].items():
                named = dict(zip(_key_of(table), key, strict=True))
                writes.change(table, changes, run_id=self._run_id, **named)
        return writes

    def _insert(self, table: Table, *key: Any, **row: Any) -> None:
        named = zip(_key_of(table), key, strict=True)
        self._new[table][key] = {"run_id": self._run_id, **dict(named), **row}

    def _change(self, table: Table, *key: Any, **changes: Any) -> None:
        rows = self._new[table] if key in self._new[table] else self._changed[table]
        rows.setdefault(key, {}).update(changes)

    def _change_call(self, state: RunState, index: int, **changes: Any) -> None:
        self._change(tables.tool_calls, len(state.messages) - 1, index, **changes)

    def _add_entry(self, state: RunState, entry: entries.Entry) -> None:
        match entry:
            case entries.ModelCallStarted():
                self._start_model_call(state, entry)
            case entries.ModelReplied(reply):
                self._add_reply(state, reply)
            case entries.ModelCallFailed():
                self._fail_model_call(state, entry)
            case entries.SummaryReplied():
                self._add_summary(state, entry)
            case entries.ContextCompacted(compaction):
                self._add_compaction(state, compaction, None)
            case entries.TimeWorked() | entries.TurnEnded() | entries.Delivered():
                pass  # the run's progress says so
            case entries.HookStarted():
                self._start_hook(state, entry)
            case entries.HookFinished():
                self._finish_hook(state, entry)
            case entries.InstructionsRead():
                self._add_instructions(state, entry)
            case entries.ToolsListed():
                self._add_tool_list(state, entry)
            case entries.CallsDecided(decisions):
                for index, decision in decisions.items():
                    self._decide_call(state, index, decision)
            case entries.OutcomeAsked(index, unrecorded):
                self._ask_outcome(state, index, unrecorded)
            case entries.ToolsStarted(indexes):
                self._start_calls(state, indexes)
            case entries.ChildrenStarted(children):
                asking = {child.index for child in children if child.index is not None}
                self._start_calls(state, sorted(asking))
            case entries.ToolFinished():
                self._finish_call(state, entry)
            case entries.SnapshotRecorded(snapshot):
                if state.files.tree is None:
                    self.run_changes["start_tree"] = snapshot
            case entries.VerificationStarted() | entries.Verified():
                self._verify(state, entry)
            case entries.UserMessageAdded():
                self._add_user_message(state, entry)
            case entries.RunSettled(outcome):
                self._settle(state, outcome)

    def _add_instructions(self, state: RunState, entry: entries.InstructionsRead) -> None:
        if state.files.instructed:
            return  # these are in a message
        for position, file in enumerate(entry.files):
            columns = {"path": file.path, "sha256": file.sha256, "text": file.text}
            size = len(file.text.encode())
            self._insert(tables.run_instructions, position, size=size, **columns)

    def _add_tool_list(self, state: RunState, entry: entries.ToolsListed) -> None:
        self._insert(
            tables.tool_lists,
            state.model.tool_lists + 1,
            turn=state.turns,
            first_sent_in=state.model.calls + 1,
            sha256=entry.sha256,
            tools=[asdict(tool) for tool in entry.tools],
            created_at=self._now,
        )

    def _start_model_call(self, state: RunState, entry: entries.ModelCallStarted) -> None:
        reserved = entry.reservation
        self._insert(
            tables.model_calls,
            entry.number,
            attempt=self._attempt,
            turn=state.turns + 1,
            model=state.spec.billed_as(
                state.spec.model if entry.purpose == "turn" else state.spec.summary_model
            ),
            max_tokens=reserved.max_tokens,
            worst_case=reserved.worst_case,
            started_at=self._now,
            purpose=entry.purpose,
            hour_cache=reserved.hour_cache,
            batch=reserved.batch,
        )
        if reserved.batch:
            waits = {"job_id": self._job_id, "asked_at": self._now}
            self._insert(tables.batch_calls, entry.number, **waits)

    def _change_model_call(self, state: RunState, **changes: Any) -> None:
        call = state.model.open_call
        assert call is not None
        self._change(tables.model_calls, call.number, **changes)
        if call.reservation.batch and "ended_at" in changes:
            self._change(tables.batch_calls, call.number, result=None, ended_at=self._now)

    def _end_model_call(self, state: RunState, reply: ModelReply, kept: Sequence[Any]) -> None:
        """``kept`` are the blocks that are stored elsewhere: the others stay with the call."""
        left_out = [block for block in reply.blocks if block not in kept]
        left_out += [reply.cut] if reply.cut else []
        self._change_model_call(
            state,
            ended_at=self._now,
            # On a platform prices go by what was asked for, which the reply does not repeat.
            **({} if state.spec.account else {"model": visible(reply.model)}),
            latency=reply.latency,
            request_id=reply.request_id and visible(reply.request_id),
            stop_reason=visible(reply.stop_reason),
            **reply.usage.by_kind(),
            charged_tokens=reply.usage.total,
            cut=left_out or None,
        )
        self._note_result()

    def _fail_model_call(self, state: RunState, entry: entries.ModelCallFailed) -> None:
        counted = entry.counted.by_kind() if entry.counted.total else {}
        self._change_model_call(
            state,
            ended_at=entry.at,
            request_id=entry.request_id and visible(entry.request_id),
            **counted,
            charged_tokens=entry.charged,
            error=visible(f"{entry.kind}: {entry.message}"),
        )

    def _add_reply(self, state: RunState, reply: ModelReply) -> None:
        entering = message_blocks(reply)
        self._end_model_call(state, reply, entering)
        message, turn = len(state.messages), state.turns + 1
        for position, block in enumerate(entering):
            self._add_block(message, position, "assistant", turn, block)
        for position, block in enumerate(tool_uses(entering)):
            named = {"tool_use_id": visible(block["id"]), "name": visible(block["name"])}
            self._insert(tables.tool_calls, message, position, turn=turn, **named)

    def _add_summary(self, state: RunState, entry: entries.SummaryReplied) -> None:
        """The compaction has the text; a useless reply stays with the call, with the reason."""
        call, compaction = state.model.open_call, entry.compaction
        assert call is not None
        kept = [block for block in entry.reply.blocks if compaction and block["type"] == "text"]
        self._end_model_call(state, entry.reply, kept)
        if compaction is None:
            self._change_model_call(state, error=visible(f"summary_failed: {entry.why}"))
        else:
            self._add_compaction(state, compaction, call.number)

    def _add_compaction(self, state: RunState, compaction: Compaction, call: int | None) -> None:
        """``call`` is the number of the model call that wrote it, None when none did."""
        number = self.run_changes["compaction_count"] = state.context.compacted.count + 1
        self._insert(
            tables.compactions,
            number,
            kind=compaction.kind,
            first_message=compaction.first,
            last_message=compaction.last,
            text=compaction.text,
            clips=[[each.message, each.position, each.text] for each in compaction.truncated],
            tokens_before=compaction.tokens_before,
            tokens_after=compaction.tokens_after,
            turn=state.turns + 1,
            made_by_call=call,
            first_sent_in=state.model.calls + 1,
            created_at=self._now,
        )

    def _decide_call(self, state: RunState, index: int, decision: Decision) -> None:
        self._change_call(state, index, **_decision_columns(decision))
        if decision.effect == "ask":
            call = state.calls[index]
            question = self._question(state, call, decision)
            if asks(state, call):
                key = question["group_key"] + _OF_HOOK
                question |= {"group_key": key, "suggested_rule": "", "by_hook": True}
            self._insert(tables.approvals, len(state.messages) - 1, index, **question)

    def _ask_outcome(self, state: RunState, index: int, unrecorded: str) -> None:
        """Ask whether a call with an unknown outcome runs again. It had one question at most before; a
        person's change of its input stays."""
        decision, call = outcome_question(state, unrecorded), state.calls[index]
        self._change_call(state, index, **_decision_columns(decision), asked_again=True)
        question = self._question(state, call, decision)
        question |= {"group_key": question["group_key"] + _OF_OUTCOME, "suggested_rule": ""}
        key = len(state.messages) - 1, index
        if call.decision is not None and call.decision.effect == "ask":
            self._change(tables.approvals, *key, **question, **_UNANSWERED)
        else:
            self._insert(tables.approvals, *key, **question)

    def _question(self, state: RunState, call: Call, decision: Decision) -> dict[str, Any]:
        assert call.tool_context is not None, "a call is located before it is asked about"
        arguments, asking = call.input_to_run, state.spec.asking
        suggestion = suggest(state.policy, Request(call.name, arguments, call.tool_context))
        patience = None if asking.timeout is None else self._now + asking.timeout
        return {
            "job_id": self._job_id,
            "turn": state.turns,
            "tool": call.name,
            "id": ids.new("apr", self._now),
            "input_digest": digest_of(arguments),
            "setting": asdict(call.tool_context),
            "checked_snapshot": decision.snapshot,
            "summary": summarise_input(arguments),
            "group_key": visible(suggestion.key),
            "suggested_rule": suggestion.rule,
            "asked_at": self._now,
            # It is answered by itself when the job's patience or its deadline has run out.
            "expires_at": min(filter(None, (patience, state.ends_at)), default=None),
            "notified_at": None if state.spec.announces_questions else self._now,
        }

    def _start_calls(self, state: RunState, indexes: Sequence[int]) -> None:
        changes: dict[str, Any] = {"started_attempt": self._attempt, "started_at": self._now}
        if changes_files(state, [state.calls[index] for index in indexes]):
            changes["tree_before"] = state.files.tree
        for index in indexes:
            again = {"asked_again": False} if state.calls[index].asked_again else {}
            self._change_call(state, index, **changes, **again)

    def _finish_call(self, state: RunState, entry: entries.ToolFinished) -> None:
        result, message, call = entry.result, len(state.messages), state.calls[entry.index]
        changes: dict[str, Any] = {"ended_at": self._now, "duration": result.duration}
        more: dict[str, Any] = {"tree_after": entry.snapshot, "containment": result.containment}
        more["details"] = result.details
        changes |= {name: value for name, value in more.items() if value is not None}
        if result.outcome == "denied":
            self.denials += 1
            # Its decision or its answer may say why already.
            said = (call.decision is not None and call.decision.effect == "deny") or (
                call.answer is not None and call.answer.effect != "approved"
            )
            if not said:
                changes["denial"] = shorten(result.content, _DENIAL_LENGTH)
        self._change_call(state, entry.index, outcome=result.outcome, **changes)
        block = result_block(call.id, result)
        self._add_block(message, entry.index, "user", state.turns, block)
        if result.output is not None:
            self._insert(
                tables.tool_outputs, message - 1, entry.index, **_compressed(result.output)
            )
        self._note_result()

    def _start_hook(self, state: RunState, entry: entries.HookStarted) -> None:
        begun = {"attempt": self._attempt, "started_at": self._now, "tree_before": state.files.tree}
        if any(run.number == entry.number for run in state.hooks.runs):
            self._change(tables.hook_runs, entry.number, **begun)
            return
        self._insert(
            tables.hook_runs,
            entry.number,
            **begun,
            hook=entry.hook,
            event=entry.event,
            name=shorten(state.spec.hooks[entry.hook].name, INPUT_SUMMARY_LENGTH),
            turn=state.turns,
            message=None if entry.index is None else len(state.messages) - 1,
            position=entry.index,
        )

    def _finish_hook(self, state: RunState, entry: entries.HookFinished) -> None:
        result, answer = entry.result, entry.result.answer
        self._change(
            tables.hook_runs,
            entry.number,
            ended_at=self._now,
            duration=result.duration,
            outcome=answer.outcome,
            exit_code=result.exit_code,
            decision=answer.decision,
            reason=answer.reason,
            context=answer.context,
            stops=answer.stops,
            output=result.output,
            errors=result.errors,
            tree_after=entry.snapshot,
        )
        (run,) = (run for run in state.hooks.runs if run.number == entry.number)
        if result.updated_input is not None and run.index is not None:
            self._change_call(state, run.index, updated_input=result.updated_input)
        if result.updated_output is not None and run.index is not None:
            block, original = replaced(state.calls[run.index], result.updated_output)
            self._change_call(state, run.index, original=original)
            self._change(tables.blocks, len(state.messages), run.index, content=block)
        self._note_result()

    def _verify(
        self, state: RunState, entry: entries.VerificationStarted | entries.Verified
    ) -> None:
        """The start and the end of a verification are never in one transaction."""
        attempt, at = self._attempt, self._now
        if isinstance(entry, entries.VerificationStarted):
            begun = {"turn": state.turns, "tree": state.files.tree, "started_at": at}
            self._insert(tables.verifications, entry.number, attempt=attempt, **begun)
            return
        result = entry.result
        ended_as = {"duration": result.duration, "outcome": result.outcome, "ended_at": at}
        said = {"command": visible(entry.command), "content": result.content}
        whole = {} if result.output is None else _compressed(result.output)
        self._change(
            tables.verifications, entry.number, attempt=attempt, **ended_as, **said, **whole
        )
        self._note_result()

    def _add_user_message(self, state: RunState, entry: entries.UserMessageAdded) -> None:
        tail = state.messages[-1]
        message, position = len(state.messages), 0
        if tail.role == "user":
            message, position = message - 1, len(tail.blocks)
        for place, text in enumerate(entry.texts, position):
            self._add_block(message, place, "user", state.turns, text_block(text))
        for queued_id in entry.queued_ids:
            self._change(tables.queued_messages, queued_id, delivered_message=message)

    def _add_block(self, message: int, position: int, role: str, turn: int, block: Any) -> None:
        columns = {"role": role, "type": block["type"], "turn": turn, "content": block}
        self._insert(tables.blocks, message, position, **columns, created_at=self._now)

    def _note_result(self) -> None:
        self.run_changes |= {"lost_leases": 0, "bugs": 0, "host_faults": None}

    def _settle(self, state: RunState, outcome: Outcome) -> None:
        match outcome:
            case Waiting(reason, detail):
                waits = {"state": "waiting", "reason": reason, "detail": detail}
                self.run_changes |= {**FREED, **waits, "pause_requested": False}
            case Requeued(due_at, reason):
                self.run_changes |= queued(due_at, reason, outcome.rank)
            case Ended(how, reason, detail):
                self.run_changes |= ended(how, visible(reason), visible(detail), self._now)
                self._interrupt_calls(state, outcome)

    def _interrupt_calls(self, state: RunState, outcome: Ended) -> None:
        """Close the questions about calls that will not run, unless an earlier end has closed them."""
        closed = {"answer": "cancelled", "answered_at": self._now, "answered_via": "end"}
        for call in state.calls:
            if not interrupted_by(outcome, call):
                continue
            self._change_call(state, call.index, interrupted=True)
            if call.waits and not call.interrupted:
                self._change(tables.approvals, len(state.messages) - 1, call.index, **closed)


@cache
def _key_of(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.primary_key if column.name != "run_id")


def _decision_columns(decision: Decision) -> dict[str, Any]:
    matched = decision.matched_rules[0] if decision.matched_rules else None
    return {
        "decision": decision.effect,
        "rule": matched and matched.rule.text,
        "rule_position": matched and matched.rule.position,
        "matched": matched and visible(matched.matched),
        "decision_snapshot": decision.snapshot,
        "decision_reason": visible(decision.reason) or None,
    }


def _compressed(output: bytes) -> dict[str, Any]:
    return {"size": len(output), "compressed": zlib.compress(output)}

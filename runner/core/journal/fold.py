"""How a run changes with each entry of its journal.

``apply`` folds one entry into a view. The store writes an entry as rows and reads the rows back as
a view; a test holds that both ways give the same value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from runner.core.agents import fold as agents
from runner.core.context.cache import paced
from runner.core.context.compaction import Compaction, difference, tokens_of
from runner.core.context.window import corrected, estimate_text, is_measurement
from runner.core.conversation import (
    CONTEXT_EXCEEDED,
    Block,
    Message,
    ModelReply,
    content_text,
    message_blocks,
    result_block,
    text_block,
    text_bytes,
    tool_uses,
)
from runner.core.ending import fold as ending
from runner.core.ending.result import RESULT_SOURCE
from runner.core.files.doubt import outcome_question
from runner.core.hooks import fold as hooks
from runner.core.hooks.lookup import end_turns
from runner.core.journal.entries import (
    OUR_OWN_FAILURES,
    PROMPT_TOO_LONG,
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
from runner.core.journal.view import (
    Call,
    Failure,
    Fullness,
    OpenCall,
    Pace,
    Progress,
    RunView,
    Stop,
)
from runner.core.run import Ended, Outcome, Requeued, Waiting
from runner.core.spec import JobSpec
from runner.permissions import ToolContext


@dataclass(frozen=True, slots=True)
class Applied:
    """An entry, and the run before and after it."""

    before: RunView
    entry: Entry
    after: RunView


def fold(view: RunView, entries: Iterable[Entry]) -> list[Applied]:
    """``entries``, each with the run before and after it."""
    applied: list[Applied] = []
    for entry in entries:
        after = apply(view, entry)
        applied.append(Applied(view, entry, after))
        view = after
    return applied


def apply(view: RunView, entry: Entry) -> RunView:
    """The view after one entry."""
    match entry:
        case ModelCallStarted():
            return _started(view, entry)
        case ModelReplied(reply, tool_contexts):
            return _replied(view, reply, tool_contexts)
        case ModelCallFailed():
            return _failed(view, entry)
        case SummaryReplied():
            return _summarised(view, entry)
        case ContextCompacted(compaction):
            return _compacted(view, compaction)
        case TimeWorked(seconds):
            return _progress(view, worked=view.progress.worked + seconds)
        case CallsDecided() | OutcomeAsked():
            return hooks.decided(_with_calls(view, entry), entry)
        case ToolsStarted():
            return _with_calls(view, entry)
        case ChildrenStarted():
            return agents.started(view, entry)
        case ToolFinished():
            return _finished(view, entry)
        case HookStarted() | HookFinished() | TurnEnded() | InstructionsRead():
            return hooks.after(view, entry)
        case TreeRecorded() | VerificationStarted() | Verified() | Delivered():
            return replace(view, progress=ending.after(view.progress, entry))
        case UserMessageAdded():
            return _user_message(view, entry)
        case RunSettled(outcome):
            return _settled(view, outcome)


def opening(
    spec: JobSpec, prompt: str, *, warms: bool = False
) -> tuple[tuple[Message, ...], Progress]:
    """How a run begins: its first message, and a progress that counts what the first call sends."""
    message = Message("user", (text_block(prompt),))
    tokens = tokens_of([message], spec.context.chars_per_token)
    return (message,), Progress(
        appended_bytes=spec.request_bytes([message]),
        fullness=Fullness(sent=spec.shared_tokens + tokens),
        warms=warms,
    )


def rested(progress: Progress) -> Progress:
    """The progress of a run that ended, so that it can be taken up again: what ended it is no longer
    to be answered. A paused turn stays paused: its server tools have no results yet."""
    stop = progress.stop
    return replace(
        progress,
        stop=stop if stop is not None and stop.reason == "pause_turn" else None,
        failure=None,
        nudges=0,
        continuations=0,
        verify_failures=0,
        submitted=False,
        result_nudges=0,
        fullness=replace(progress.fullness, refused=0, must_shrink=False, summary_failed=False),
        hooked=replace(progress.hooked, ended=progress.hooked.count),
    )


def _progress(view: RunView, **changes: Any) -> RunView:
    return replace(view, progress=replace(view.progress, **changes))


def _with_calls(view: RunView, entry: CallsDecided | ToolsStarted | OutcomeAsked) -> RunView:
    return replace(view, calls=tuple(_changed(view, call, entry) for call in view.calls))


def _changed(view: RunView, call: Call, entry: CallsDecided | ToolsStarted | OutcomeAsked) -> Call:
    match entry:
        case CallsDecided(decisions) if call.index in decisions:
            return replace(call, decision=decisions[call.index].shortened())
        case ToolsStarted(indexes) if call.index in indexes:
            return replace(call, started_by=view.attempt, asked_again=False)
        case OutcomeAsked(index, unrecorded) if call.index == index:
            return replace(
                call, decision=outcome_question(view, unrecorded), answer=None, asked_again=True
            )
        case _:
            return call


def _appended(view: RunView, blocks: Iterable[Block], **changes: Any) -> RunView:
    """With blocks that are in the conversation now counted, once and for all."""
    progress, per_token = view.progress, view.spec.context.chars_per_token
    size, tokens = 0, 0
    for block in blocks:
        text = content_text(block)
        size += text_bytes(text)
        tokens += estimate_text(text, per_token)
    fullness = changes.pop("fullness", progress.fullness)
    return _progress(
        view,
        appended_bytes=changes.pop("appended_bytes", progress.appended_bytes) + size,
        fullness=replace(fullness, sent=fullness.sent + tokens, since=fullness.since + tokens),
        **changes,
    )


def _started(view: RunView, entry: ModelCallStarted) -> RunView:
    progress = view.progress
    is_turn = entry.purpose == "turn"
    view = replace(view, purse=view.purse and view.purse.with_reserved(entry.reservation))
    return _progress(
        view,
        open_call=OpenCall(entry.number, view.attempt, entry.reservation, entry.purpose),
        model_calls=entry.number,
        tries=progress.tries + is_turn,
        budget_waits=0,
        delivered=None,
        fullness=replace(progress.fullness, window=view.window),
        pace=Pace(*paced(progress.pace.last_at, progress.pace.slow, entry.at))
        if is_turn
        else progress.pace,
    )


def _charged(view: RunView, tokens: int, cost: int, **changes: Any) -> RunView:
    """With a call that has ended charged for."""
    progress = view.progress
    if progress.open_call is not None and view.purse is not None:
        spent = view.purse.with_spent(progress.open_call.reservation, tokens, cost)
        view = replace(view, purse=spent)
    return _progress(
        view,
        charged_tokens=progress.charged_tokens + tokens,
        charged_cost=progress.charged_cost + cost,
        open_call=None,
        **changes,
    )


def _replied_and_charged(view: RunView, reply: ModelReply, model: str, **changes: Any) -> RunView:
    call, tariff = view.progress.open_call, view.tariffs.get(model)
    hour_cache = call is not None and call.reservation.hour_cache
    cost = tariff.cost(reply.usage, hour_cache=hour_cache) if tariff else 0
    usage = view.progress.usage + reply.usage
    return _charged(view, reply.usage.total, cost, usage=usage, failure=None, **changes)


def _replied(view: RunView, reply: ModelReply, tool_contexts: tuple[ToolContext, ...]) -> RunView:
    progress = view.progress
    call = progress.open_call
    blocks = message_blocks(reply)
    view = replace(
        view,
        messages=(*view.messages, Message("assistant", blocks)) if blocks else view.messages,
        calls=tuple(
            Call(
                index,
                block["id"],
                block["name"],
                block["input"],
                tool_context=tool_contexts[index] if tool_contexts else None,
            )
            for index, block in enumerate(tool_uses(blocks))
        ),
        hook_runs=(),
    )
    view = _replied_and_charged(
        view,
        reply,
        view.spec.model,
        turns=progress.turns + 1,
        last_prompt_tokens=reply.usage.prompt_tokens,
        continuations=progress.continuations if reply.stop_reason == "max_tokens" else 0,
        nudges=0 if blocks else progress.nudges,
        stop=Stop(
            reply.stop_reason,
            call is not None and call.reservation.lowered,
            empty=not blocks,
            lowered_by=call.reservation.lowered_by if call is not None else "token_ceiling",
        ),
        tries=0,
        warms=False,
        submitted=False,
        hooked=replace(progress.hooked, past=progress.hooked.count, decided=()),
    )
    fullness = _measured(progress.fullness, reply)
    return _appended(view, blocks, appended_bytes=0, fullness=fullness)


def _measured(before: Fullness, reply: ModelReply) -> Fullness:
    """After a reply that says how long its prompt really was; what it says may be no measurement."""
    too_long = reply.stop_reason == CONTEXT_EXCEEDED
    after = replace(before, refused=before.refused + 1 if too_long else 0, must_shrink=too_long)
    real = reply.usage.prompt_tokens
    if not is_measurement(real, before.sent):
        return after
    correction = corrected(before.correction, real, before.sent)
    return replace(after, since=0, measured=real, correction=correction)


def _summarised(view: RunView, entry: SummaryReplied) -> RunView:
    view = _replied_and_charged(view, entry.reply, view.spec.summary_model)
    if entry.compaction is not None:
        return _compacted(view, entry.compaction)
    return _fullness(view, summary_failed=True)


def _compacted(view: RunView, compaction: Compaction) -> RunView:
    """For the bound of the next prompt, what stands in for messages is as if it were appended."""
    before = view.progress.fullness
    texts = [compaction.text, *(clip.text for clip in compaction.clips)]
    added = sum(text_bytes(content_text(text_block(text))) for text in texts)
    change = difference(
        view.messages, view.compacted, compaction, view.spec.context.chars_per_token
    )
    view = replace(view, compacted=view.compacted.after(compaction))
    view = _progress(view, appended_bytes=view.progress.appended_bytes + added)
    return _fullness(
        view,
        sent=before.sent + change,
        since=0,
        measured=compaction.tokens_after,
        must_shrink=False,
        summary_failed=False,
    )


def _fullness(view: RunView, **changes: Any) -> RunView:
    return _progress(view, fullness=replace(view.progress.fullness, **changes))


def _failed(view: RunView, entry: ModelCallFailed) -> RunView:
    before, call = view.progress.failure, view.progress.open_call
    cost = call.reservation.worst_cost if call is not None and entry.charged else 0
    too_long = entry.kind == PROMPT_TOO_LONG
    if call is not None and call.purpose == "summary" and (too_long or entry.retry_at is None):
        view = _fullness(view, summary_failed=True)
        return _charged(view, entry.charged, cost, failure=None)
    if too_long:
        refused = view.progress.fullness.refused + 1
        view = _fullness(view, refused=refused, must_shrink=True)
        return _charged(view, entry.charged, cost, failure=None)
    failure = Failure(
        count=before.count + 1 if before else 1,
        first_at=before.first_at if before else entry.at,
        retry_at=entry.retry_at,
        kind=entry.kind,
        message=entry.message,
        request_id=entry.request_id,
    )
    ours = entry.kind in OUR_OWN_FAILURES
    return _charged(view, entry.charged, cost, failure=before if ours else failure)


def _finished(view: RunView, entry: ToolFinished) -> RunView:
    call = view.calls[entry.index]
    block = result_block(call.id, entry.result)
    finished = replace(call, result=block, outcome=entry.result.outcome)
    calls = tuple(finished if c.index == entry.index else c for c in view.calls)
    view = replace(view, calls=calls)
    view = replace(view, progress=agents.answered(view, entry))
    tool = view.spec.tool(call.name)
    if tool is not None and tool.source == RESULT_SOURCE and not entry.result.is_error:
        view = _progress(view, submitted=True, result_nudges=0)
    if entry.tree is not None:
        view = _progress(view, tree=entry.tree)
    view = _appended(view, [block])
    if end_turns(view.spec) or any(c.result is None for c in calls):
        return view
    return hooks.joined(view)


def _user_message(view: RunView, entry: UserMessageAdded) -> RunView:
    blocks = tuple(map(text_block, entry.texts))
    tail = view.messages[-1]
    if tail.role == "user":
        messages = (*view.messages[:-1], Message("user", tail.blocks + blocks))
    else:
        messages = (*view.messages, Message("user", blocks))
    delivered = frozenset(entry.queued_ids)
    queued = tuple(message for message in view.queued if message.id not in delivered)
    view = agents.told(view, entry)
    progress = ending.answered(view.progress, entry)
    progress = hooks.told(progress, entry)
    return _appended(
        replace(view, messages=messages, queued=queued, progress=progress),
        blocks,
        continuations=progress.continuations + (entry.cause == "continue"),
        nudges=progress.nudges + (entry.cause == "nudge"),
        stop=None,
    )


def _settled(view: RunView, outcome: Outcome) -> RunView:
    view = replace(view, outcome=outcome)
    match outcome:
        case Ended():
            calls = (c if c.result else replace(c, interrupted=True) for c in view.calls)
            return replace(
                view, progress=rested(view.progress), calls=tuple(calls), pause_requested=False
            )
        case Waiting():
            return replace(
                view, progress=replace(view.progress, failure=None), pause_requested=False
            )
        case Requeued(reason="budget"):
            return _progress(view, budget_waits=view.progress.budget_waits + 1)
        case _:
            return view

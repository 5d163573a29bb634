"""How a run changes with each entry of its journal.

``apply`` folds one entry into a view. The store writes an entry as rows and reads the rows back as
a view; a test holds that both ways give the same value.

How a run changes with what it starts sub-agents for, and with what becomes of them.

How a run's progress changes with what is recorded of its workspace and of its end.

How a run changes with what is recorded of its hooks and of its workspace's instructions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from runner.core.agents import Child, Split
from runner.core.budget import Charged
from runner.core.calls import outcome_question
from runner.core.context import (
    Compaction,
    corrected,
    difference,
    estimate_text,
    is_measurement,
    paced,
    tokens_of,
)
from runner.core.conversation import (
    CONTEXT_EXCEEDED,
    CUT_REASONS,
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
from runner.core.entries import (
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
from runner.core.hook_decisions import decided_at, end_turns, hooks_of
from runner.core.hooks import HookRun
from runner.core.run import Ended, Outcome, Requeued, Waiting
from runner.core.spec import JobSpec
from runner.core.state import (
    Call,
    Failure,
    Fullness,
    OpenCall,
    Pace,
    Progress,
    RunView,
    Stop,
)
from runner.core.workspace import RESULT_SOURCE, Verification, with_instructions
from runner.permissions import ToolContext


def children_started(view: RunView, entry: ChildrenStarted) -> RunView:
    """The view after children were started: each counts all that it may use from here on."""
    indexes = {child.index for child in entry.children}
    children = tuple(
        Child(child.number, child.index, child.agent_type, Charged(child.tokens, child.cost or 0))
        for child in entry.children
    )
    progress = view.progress
    return replace(
        view,
        calls=tuple(
            replace(call, started_by=view.attempt) if call.index in indexes else call
            for call in view.calls
        ),
        children=(*view.children, *children),
        held_by_children=sum((child.held for child in children), view.held_by_children),
        tree_size=view.tree_size + len(children),
        shared_tree=None,
        progress=replace(
            progress,
            children=progress.children + len(children),
            split=_split_by(view, indexes),
        ),
    )


def _split_by(view: RunView, indexes: set[int | None]) -> Split:
    if None in indexes:
        return "whole"
    split = any(view.spec.splits(call.name) for call in view.calls if call.index in indexes)
    return "done" if split else view.progress.split


def split_answered(view: RunView, entry: ToolFinished) -> Progress:
    """The progress after a call has its result: a split that was no good is asked for again."""
    is_split = view.spec.splits(view.calls[entry.index].name)
    if is_split and entry.result.is_error and view.progress.split == "asked":
        return replace(view.progress, split="asked_again")
    return view.progress


def children_after_message(view: RunView, entry: UserMessageAdded) -> RunView:
    """The view after the model was told to split its task, or what came of the whole of it."""
    progress = view.progress
    match entry.cause:
        case "split":
            split: Split = "asked_again" if progress.split else "asked"
            return replace(view, progress=replace(progress, split=split))
        case "children":
            return replace(view, children=(), progress=replace(progress, split="done"))
        case _:
            return view


def ending_after(
    progress: Progress, entry: TreeRecorded | VerificationStarted | Verified | Delivered
) -> Progress:
    """The progress after one entry."""
    match entry:
        case TreeRecorded(tree):
            delivered = progress.delivered if tree == progress.tree else None
            return replace(progress, tree=tree, delivered=delivered)
        case VerificationStarted(number):
            verification = Verification(number, progress.turns, tree=progress.tree)
            return replace(progress, verification=verification)
        case Verified():
            return replace(progress, verification=_verified(progress, entry))
        case Delivered(commit):
            return replace(progress, delivered=commit)


def ending_after_message(progress: Progress, message: UserMessageAdded) -> Progress:
    """The progress after the model is told more: it has not ended. What it was told of a verification
    is in the conversation now."""
    told = message.cause == "verify"
    verification = progress.verification
    return replace(
        progress,
        submitted=False,
        delivered=None,
        result_nudges=progress.result_nudges + (message.cause == "result"),
        verify_failures=progress.verify_failures + told,
        verification=replace(verification, output="") if verification else None,
    )


def _verified(progress: Progress, entry: Verified) -> Verification:
    begun = progress.verification
    assert begun is not None, "a verification has begun before it ends"
    if not entry.result.is_error:
        return replace(begun, passed=True)
    return replace(begun, passed=False, command=entry.command, output=entry.result.content)


def hooks_after(
    view: RunView, entry: HookStarted | HookFinished | TurnEnded | InstructionsRead
) -> RunView:
    """The view after one entry."""
    match entry:
        case HookStarted():
            return _hook_started(view, entry)
        case HookFinished():
            return _hook_finished(view, entry)
        case TurnEnded():
            return hooks_joined(view)
        case InstructionsRead():
            return _instructed(view, entry)


def hooks_joined(view: RunView) -> RunView:
    """With the results of the last reply's calls in the conversation: all have theirs."""
    progress = view.progress
    results = tuple(call.result for call in view.calls if call.result is not None)
    answered = progress.stop is not None and progress.stop.reason not in CUT_REASONS
    return replace(
        view,
        calls=(),
        children=(),
        messages=(*view.messages, Message("user", results)),
        progress=replace(
            progress,
            stop=None if answered else progress.stop,
            hooked=replace(progress.hooked, closed=progress.turns),
        ),
    )


def hooks_decided(view: RunView, entry: CallsDecided | OutcomeAsked) -> RunView:
    """After a decision that is of the hooks so far: those that follow look at what a person makes of the
    call."""
    if not any(hooks_of(view.spec, "PreToolUse")):
        return view
    indexes = entry.decisions if isinstance(entry, CallsDecided) else (entry.index,)
    hooked = view.progress.hooked
    at = (hooked.count if call.index in indexes else decided_at(view, call) for call in view.calls)
    return replace(view, progress=replace(view.progress, hooked=replace(hooked, decided=tuple(at))))


def hooks_after_message(progress: Progress, entry: UserMessageAdded) -> Progress:
    """The progress after a message that may tell what hooks have said so far."""
    if entry.cause != "hook":
        return progress
    return replace(progress, hooked=replace(progress.hooked, told=progress.hooked.count))


def _hook_started(view: RunView, entry: HookStarted) -> RunView:
    """One that was started before begins again under its number."""
    run = HookRun(entry.number, entry.hook, entry.event, entry.index, view.attempt)
    before = tuple(other for other in view.hook_runs if other.number != entry.number)
    runs = tuple(sorted((*before, run), key=lambda one: one.number))
    hooked = view.progress.hooked
    hooked = replace(hooked, count=max(hooked.count, entry.number))
    return replace(view, hook_runs=runs, progress=replace(view.progress, hooked=hooked))


def _hook_finished(view: RunView, entry: HookFinished) -> RunView:
    result = entry.result
    runs = tuple(
        replace(run, answer=result.answer) if run.number == entry.number else run
        for run in view.hook_runs
    )
    (run,) = (run for run in runs if run.number == entry.number)
    if entry.tree is not None:
        view = replace(view, progress=replace(view.progress, tree=entry.tree))
    if result.updated_input is None:
        return replace(view, hook_runs=runs)
    # Where the call leads with another input is to be looked up before it is decided on.
    calls = tuple(
        replace(call, updated_input=result.updated_input, tool_context=None)
        if call.index == run.index
        else call
        for call in view.calls
    )
    return replace(view, hook_runs=runs, calls=calls)


def _instructed(view: RunView, entry: InstructionsRead) -> RunView:
    """What the system prompt goes on with is counted as all that is sent."""
    system = with_instructions(view.spec.system, entry.files)
    before, after = view.spec.system or "", system or ""
    progress, per_token = view.progress, view.spec.context.chars_per_token
    tokens = estimate_text(after, per_token) - estimate_text(before, per_token)
    progress = replace(
        progress,
        instructed=True,
        appended_bytes=progress.appended_bytes + text_bytes(after) - text_bytes(before),
        fullness=replace(progress.fullness, sent=progress.fullness.sent + tokens),
    )
    return replace(view, spec=replace(view.spec, system=system), progress=progress)


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
            return hooks_decided(_with_calls(view, entry), entry)
        case ToolsStarted():
            return _with_calls(view, entry)
        case ChildrenStarted():
            return children_started(view, entry)
        case ToolFinished():
            return _finished(view, entry)
        case HookStarted() | HookFinished() | TurnEnded() | InstructionsRead():
            return hooks_after(view, entry)
        case TreeRecorded() | VerificationStarted() | Verified() | Delivered():
            return replace(view, progress=ending_after(view.progress, entry))
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
    view = replace(view, progress=split_answered(view, entry))
    tool = view.spec.tool(call.name)
    if tool is not None and tool.source == RESULT_SOURCE and not entry.result.is_error:
        view = _progress(view, submitted=True, result_nudges=0)
    if entry.tree is not None:
        view = _progress(view, tree=entry.tree)
    view = _appended(view, [block])
    if end_turns(view.spec) or any(c.result is None for c in calls):
        return view
    return hooks_joined(view)


def _user_message(view: RunView, entry: UserMessageAdded) -> RunView:
    blocks = tuple(map(text_block, entry.texts))
    tail = view.messages[-1]
    if tail.role == "user":
        messages = (*view.messages[:-1], Message("user", tail.blocks + blocks))
    else:
        messages = (*view.messages, Message("user", blocks))
    delivered = frozenset(entry.queued_ids)
    queued = tuple(message for message in view.queued if message.id not in delivered)
    view = children_after_message(view, entry)
    progress = ending_after_message(view.progress, entry)
    progress = hooks_after_message(progress, entry)
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

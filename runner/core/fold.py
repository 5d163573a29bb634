"""Apply entries to the run state."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, repeat
from typing import Any, TypeVar

from runner.core import conversation, entries
from runner.core.agents import SPLIT_SOURCE, Child, NewChild
from runner.core.budget import Charged
from runner.core.compaction import without_newest_media
from runner.core.context import (
    Compaction,
    corrected,
    difference,
    estimate,
    estimate_text,
    is_measurement,
    tokens_of,
)
from runner.core.entries import (
    MEDIA_REFUSED,
    OF_KEY,
    OUR_OWN_FAILURES,
    PROMPT_TOO_LONG,
    WARMS_CACHE,
    Entry,
)
from runner.core.hook_decisions import decided_at, end_turns, hooks_of, replaced
from runner.core.hooks import HookRun
from runner.core.run import Ended, Outcome, Requeued, Waiting
from runner.core.spec import JobSpec
from runner.core.state import (
    Call,
    ContextState,
    Failure,
    ModelState,
    OpenCall,
    Progress,
    RunState,
    Stop,
)
from runner.core.tool_calls import interrupted_by, outcome_question
from runner.core.workspace import (
    RESULT_SOURCE,
    Instructions,
    Verification,
    digests_of,
    with_instructions,
)

P = TypeVar("P", bound=Progress)


@dataclass(frozen=True, slots=True)
class Applied:
    before: RunState
    entry: Entry
    after: RunState


def fold(state: RunState, happened: Iterable[Entry]) -> list[Applied]:
    """Return the entries, each with the state before and after it."""
    happened = list(happened)
    states = list(accumulate(happened, apply, initial=state))
    return list(map(Applied, states, happened, states[1:]))


def apply(state: RunState, entry: Entry) -> RunState:
    match entry:
        case entries.ModelCallStarted():
            return _started(state, entry)
        case entries.ModelReplied():
            return _replied(state, entry)
        case entries.ModelCallFailed():
            return _failed(state, entry)
        case entries.SummaryReplied(reply, compaction):
            state = _charged_for(state, reply, state.spec.summary_model)
            if compaction is None:
                return _set_context(state, summary_failed=True)
            return _compacted(state, compaction)
        case entries.ContextCompacted(compaction):
            return _compacted(state, compaction)
        case entries.TimeWorked(seconds):
            return replace(state, worked=state.worked + seconds)
        case entries.CallsDecided(decisions):
            for index, decision in decisions.items():
                state = _set_calls(state, [index], decision=decision.shortened())
            return _decided(state, decisions)
        case entries.OutcomeAsked(index, unrecorded):
            question = outcome_question(state, unrecorded)
            state = _set_calls(state, [index], decision=question, answer=None, asked_again=True)
            return _decided(state, [index])
        case entries.ToolsStarted(indexes):
            return _set_calls(state, indexes, started_by=state.attempt, asked_again=False)
        case entries.ChildrenStarted(children):
            return _children_started(state, children)
        case entries.ToolFinished():
            return _finished(state, entry)
        case entries.HookStarted() | entries.HookFinished():
            return _hook(state, entry)
        case entries.TurnEnded():
            return _turn_ended(state)
        case entries.ToolsListed(tools):
            return _listed(state, tools)
        case entries.UserMessageAdded():
            return _user_message(state, entry)
        case entries.RunSettled(outcome):
            return _settled(replace(state, outcome=outcome), outcome)
        case _:
            return _in_workspace(state, entry)


def opening(
    spec: JobSpec,
    prompt: str,
    attached: Iterable[conversation.Block] = (),
    shared: ContextState | None = None,
    *,
    warms_cache: bool = False,
) -> tuple[tuple[conversation.Message, ...], Progress]:
    """Return a run's first message, and a progress that counts the first request. ``shared`` is the
    context of the spec without messages, for many runs that begin with it."""
    blocks = (conversation.text_block(prompt), *attached)
    alone, per_token = shared or context_of(spec, ()), spec.context.chars_per_token
    context = ContextState(
        estimate=alone.estimate + sum(estimate(block, per_token) for block in blocks),
        appended_bytes=alone.appended_bytes + sum(map(conversation.content_bytes, blocks)),
    )
    progress = Progress(context=context)
    if warms_cache:  # else as all new runs have it, which ``progress_to_json`` knows
        progress = replace(progress, model=ModelState(warms_cache=True))
    return (conversation.Message("user", blocks),), progress


def context_of(spec: JobSpec, sent: Sequence[conversation.Message]) -> ContextState:
    """Return the context state of a run that sends these messages first, without a measurement."""
    tokens = spec.shared_tokens + tokens_of(sent, spec.context.chars_per_token)
    return ContextState(estimate=tokens, appended_bytes=spec.request_bytes(sent))


def rested(progress: P) -> P:
    """Return the progress of an ended run for its resumption, without the cause of its end. A
    paused turn stays paused: its server tools have no results yet."""
    stop = progress.model.stop
    if stop is not None and stop.reason != "pause_turn":
        stop = None
    return replace(
        progress,
        model=replace(progress.model, stop=stop, failure=None, nudges=0, continuations=0),
        context=replace(progress.context, refusals=0, must_shrink=False, summary_failed=False),
        ending=replace(progress.ending, submitted=False, result_nudges=0, verify_failures=0),
        hooks=replace(progress.hooks, ended=progress.hooks.started),
    )


def _started(state: RunState, entry: entries.ModelCallStarted) -> RunState:
    model, money, call = state.model, state.money, entry.reservation
    is_turn = entry.purpose == "turn"
    return replace(
        state,
        model=replace(
            model,
            open_call=OpenCall(entry.number, state.attempt, call, entry.purpose, entry.last),
            calls=entry.number,
            tries=model.tries + is_turn,
            pace=model.pace.after(entry.at) if is_turn else model.pace,
        ),
        money=replace(
            money,
            budget_waits=0,
            budget=money.budget and money.budget.with_reserved(call),
            cap=money.cap and money.cap.with_reserved(call),
        ),
        context=replace(state.context, checked_window=state.context.window),
        ending=replace(state.ending, delivered=None),
    )


def _replied(state: RunState, entry: entries.ModelReplied) -> RunState:
    reply, call = entry.reply, state.model.open_call
    blocks = conversation.message_blocks(reply)
    stop = Stop(reply.stop_reason, lowered=False, empty=not blocks)
    if call is not None:
        lowered, lowered_by = call.reservation.lowered, call.reservation.lowered_by
        stop = replace(stop, lowered=lowered, lowered_by=lowered_by)
    state = _charged_for(state, reply, state.spec.model)
    model, hooks = state.model, state.hooks
    calls = (
        Call(index, block["id"], block["name"], block["input"], tool_context)
        for index, (block, tool_context) in enumerate(
            zip(conversation.tool_uses(blocks), entry.tool_contexts or repeat(None), strict=False)
        )
    )
    state = replace(
        state,
        turns=state.turns + 1,
        messages=(*state.messages, conversation.Message("assistant", blocks))
        if blocks
        else state.messages,
        calls=tuple(calls),
        model=replace(
            model,
            stop=stop,
            tries=0,
            continuations=model.continuations if reply.stop_reason == "max_tokens" else 0,
            nudges=0 if blocks else model.nudges,
            warms_cache=False,
        ),
        context=_measured(state.context, reply),
        ending=replace(state.ending, submitted=False),
        hooks=replace(hooks, past=hooks.started, decided=(), runs=()),
    )
    return _appended(state, blocks)


def _measured(context: ContextState, reply: conversation.ModelReply) -> ContextState:
    """Return the state after a reply that counts its prompt; the count may be implausible."""
    too_long, real = reply.stop_reason == conversation.CONTEXT_EXCEEDED, reply.usage.prompt_tokens
    context = replace(
        context,
        last_prompt_tokens=real,
        appended_bytes=0,
        refusals=context.refusals + 1 if too_long else 0,
        must_shrink=too_long,
    )
    if not is_measurement(real, context.estimate):
        return context
    correction = corrected(context.correction, real, context.estimate)
    return replace(context, measured=real, estimate_since=0, correction=correction)


def _charged_for(state: RunState, reply: conversation.ModelReply, model: str) -> RunState:
    call, tariff = state.model.open_call, state.money.tariffs.get(model)
    hour_cache = call is not None and call.reservation.hour_cache
    if tariff is not None and call is not None:
        tariff = tariff.in_lane(batch=call.reservation.batch)
    cost = tariff.cost(reply.usage, hour_cache=hour_cache) if tariff else 0
    return _charged(state, reply.usage.total, cost, reply.usage)


def _charged(state: RunState, tokens: int, cost: int, usage: conversation.Usage) -> RunState:
    """Return the state after the open call, which used ``usage`` and is charged tokens and a cost."""
    money, call = state.money, state.model.open_call
    if call is not None and money.budget is not None:
        money = replace(money, budget=money.budget.with_spent(call.reservation, tokens, cost))
    if call is not None and money.cap is not None:
        money = replace(money, cap=money.cap.with_spent(call.reservation, cost))
    money = replace(
        money,
        usage=money.usage + usage,
        charged_tokens=money.charged_tokens + tokens,
        charged_cost=money.charged_cost + cost,
    )
    model = replace(state.model, open_call=None, failure=None)
    return replace(state, money=money, model=model, batch_result=None)


def _failed(state: RunState, entry: entries.ModelCallFailed) -> RunState:
    before, call = state.model.failure, state.model.open_call
    cost = entry.cost
    if cost is None:
        cost = call.reservation.worst_cost if call is not None and entry.charged else 0
    state = _charged(state, entry.charged, cost, entry.counted)
    failure: Failure | None = Failure(
        count=before.count + 1 if before else 1,
        first_at=before.first_at if before else entry.at,
        retry_at=entry.retry_at,
        kind=entry.kind,
        message=entry.message,
        request_id=entry.request_id,
    )
    too_long, is_turn = entry.kind == PROMPT_TOO_LONG, call is not None and call.purpose == "turn"
    if call is not None and call.purpose == "summary" and (too_long or entry.retry_at is None):
        state, failure = _set_context(state, summary_failed=True), None
    elif too_long:
        state, failure = replace(state, context=_too_long(state.context, entry.message)), None
    elif entry.kind == MEDIA_REFUSED and is_turn and without_newest_media(state, entry.message):
        state, failure = _set_context(state, refused_media=entry.message), None
    elif entry.kind in OUR_OWN_FAILURES or (entry.kind in OF_KEY and entry.retry_at is not None):
        failure = before
    warms = state.model.warms_cache or entry.kind == WARMS_CACHE
    return replace(state, model=replace(state.model, failure=failure, warms_cache=warms))


# "prompt is too long: 205119 tokens > 200000 maximum"
_LENGTHS = re.compile(r"prompt is too long: (\d+) tokens > (\d+) maximum", re.ASCII)


def _too_long(context: ContextState, message: str) -> ContextState:
    """Return the state after the API found a prompt too long. If it states the window, that counts
    from then on; and so does the prompt's length, if it is plausible."""
    context = replace(context, refusals=context.refusals + 1, must_shrink=True)
    if (stated := _LENGTHS.search(message)) is None:
        return context
    real, window = map(int, stated.groups())
    context = replace(context, stated_window=window, window=min(window, context.window))
    if not is_measurement(real, context.estimate):
        return context
    return replace(context, measured=real, estimate_since=0)


def _compacted(state: RunState, compaction: Compaction) -> RunState:
    context, per_token = state.context, state.spec.context.chars_per_token
    texts = [compaction.text, *(result.text for result in compaction.truncated)]
    added = sum(conversation.content_bytes(conversation.text_block(text)) for text in texts)
    change = difference(state.messages, context.compacted, compaction, per_token)
    if compaction.kind != "clip" and 0 < state.files.followed_in <= compaction.last:
        state = replace(state, files=replace(state.files, followed=None))
    return _set_context(
        state,
        compacted=context.compacted.after(compaction),
        appended_bytes=context.appended_bytes + added,
        estimate=context.estimate + change,
        measured=compaction.tokens_after,
        estimate_since=0,
        must_shrink=False,
        refused_media="",
        summary_failed=False,
    )


def _appended(state: RunState, blocks: Iterable[conversation.Block]) -> RunState:
    context, blocks = state.context, tuple(blocks)
    tokens = sum(estimate(block, state.spec.context.chars_per_token) for block in blocks)
    return _set_context(
        state,
        appended_bytes=context.appended_bytes + sum(map(conversation.content_bytes, blocks)),
        estimate=context.estimate + tokens,
        estimate_since=context.estimate_since + tokens,
    )


def _set_context(state: RunState, **changes: Any) -> RunState:
    return replace(state, context=replace(state.context, **changes))


def _set_calls(state: RunState, indexes: Collection[int | None], **changes: Any) -> RunState:
    changed = (replace(c, **changes) if c.index in indexes else c for c in state.calls)
    return replace(state, calls=tuple(changed))


def _decided(state: RunState, indexes: Collection[int]) -> RunState:
    if not any(hooks_of(state.spec, "PreToolUse")):
        return state
    hooks = state.hooks
    at = (hooks.started if c.index in indexes else decided_at(state, c) for c in state.calls)
    return replace(state, hooks=replace(hooks, decided=tuple(at)))


def _finished(state: RunState, entry: entries.ToolFinished) -> RunState:
    """Return the state after a call's result. An invalid first split is asked for again."""
    result, call = entry.result, state.calls[entry.index]
    block, source = conversation.result_block(call.id, result), state.spec.source_of(call.name)
    changes = {"result": block, "outcome": result.outcome, "details": result.details}
    state = _set_calls(state, [entry.index], **changes)
    if source == SPLIT_SOURCE and result.is_error and state.children.split == "asked":
        state = replace(state, children=replace(state.children, split="asked_again"))
    if source == RESULT_SOURCE and not result.is_error:
        state = replace(state, ending=replace(state.ending, submitted=True, result_nudges=0))
    if entry.snapshot is not None:
        state = replace(state, files=replace(state.files, tree=entry.snapshot))
    state = _appended(state, [block])
    if end_turns(state.spec) or any(c.result is None for c in state.calls):
        return state
    return _turn_ended(state)


def _turn_ended(state: RunState) -> RunState:
    stop = state.model.stop
    if stop is not None and stop.reason not in conversation.CUT_REASONS:
        stop = None
    results = tuple(call.result for call in state.calls if call.result is not None)
    return replace(
        state,
        calls=(),
        children=replace(state.children, current=()),
        messages=(*state.messages, conversation.Message("user", results)),
        model=replace(state.model, stop=stop),
        hooks=replace(state.hooks, closed=state.turns),
    )


def _children_started(state: RunState, started: tuple[NewChild, ...]) -> RunState:
    indexes = {child.index for child in started}
    new = tuple(
        Child(child.number, child.index, child.agent_type, Charged(child.tokens, child.cost or 0))
        for child in started
    )
    children, split = state.children, state.children.split
    if None in indexes:
        split = "whole"
    elif any(state.spec.splits(call.name) for call in state.calls if call.index in indexes):
        split = "done"
    children = replace(
        children,
        started=children.started + len(new),
        current=(*children.current, *new),
        reserved=sum((child.reserved for child in new), children.reserved),
        tree_size=children.tree_size + len(new),
        split=split,
    )
    state = replace(state, files=replace(state.files, shared_snapshot=None), children=children)
    return _set_calls(state, indexes, started_by=state.attempt)


def _hook(state: RunState, entry: entries.HookEntry) -> RunState:
    """Return the state after a hook started or ended. A hook that starts again keeps its number."""
    runs = {run.number: run for run in state.hooks.runs}
    if isinstance(entry, entries.HookStarted):
        run = HookRun(entry.number, entry.hook, entry.event, entry.index, state.attempt)
    else:
        run = replace(runs[entry.number], answer=entry.result.answer)
    runs[entry.number] = run
    in_order = tuple(runs[number] for number in sorted(runs))
    started = max(state.hooks.started, entry.number)
    state = replace(state, hooks=replace(state.hooks, runs=in_order, started=started))
    if isinstance(entry, entries.HookStarted):
        return state
    if entry.snapshot is not None:
        state = replace(state, files=replace(state.files, tree=entry.snapshot))
    if entry.result.updated_output is not None and run.index is not None:
        state = _replaced(state, state.calls[run.index], entry.result.updated_output)
    if (updated := entry.result.updated_input) is None:
        return state
    # With another input, the call's paths are resolved again before it is decided.
    return _set_calls(state, [run.index], updated_input=updated, tool_context=None)


def _replaced(state: RunState, call: Call, text: str) -> RunState:
    """Return the state after a hook gave the model another text for a result."""
    before, (block, original) = call.result, replaced(call, text)
    state = _set_calls(state, [call.index], result=block, original=original)
    return _without_counted(_appended(state, [block]), before)


def _without_counted(state: RunState, block: conversation.Block | None) -> RunState:
    """Return the state without a block that was counted in its context."""
    block, context = block or {}, state.context
    tokens = estimate(block, state.spec.context.chars_per_token)
    return _set_context(
        state,
        appended_bytes=context.appended_bytes - conversation.content_bytes(block),
        estimate=context.estimate - tokens,
        estimate_since=context.estimate_since - tokens,
    )


def _instructed(state: RunState, read: Sequence[Instructions]) -> RunState:
    system = with_instructions(state.spec.system, read)
    context, per_token = state.context, state.spec.context.chars_per_token
    before, after = state.spec.system or "", system or ""
    tokens = estimate_text(after, per_token) - estimate_text(before, per_token)
    size = conversation.text_bytes(after) - conversation.text_bytes(before)
    files = replace(state.files, instructed=True, in_prompt=digests_of(read))
    state = replace(state, spec=replace(state.spec, system=system), files=files)
    return _set_context(
        state, appended_bytes=context.appended_bytes + size, estimate=context.estimate + tokens
    )


def _listed(state: RunState, tools: tuple[conversation.Tool, ...]) -> RunState:
    spec, model, context = state.spec, state.model, state.context
    now = replace(spec, tools=tools)
    added = {*now.shared_texts} - {*spec.shared_texts}
    tokens = now.shared_tokens - spec.shared_tokens
    state = replace(state, spec=now, model=replace(model, tool_lists=model.tool_lists + 1))
    return _set_context(
        state,
        # Nothing is taken off for tools that are gone: this limits the tokens from above.
        appended_bytes=context.appended_bytes + sum(map(conversation.text_bytes, added)),
        estimate=context.estimate + tokens,
        estimate_since=context.estimate_since + tokens,
    )


def _in_workspace(state: RunState, entry: entries.WorkspaceEntry) -> RunState:
    ending, files = state.ending, state.files
    match entry:
        case entries.InstructionsRead(read):
            if not files.instructed:
                return _instructed(state, read)
            files = replace(files, followed=digests_of(read), followed_in=len(state.messages) - 1)
        case entries.SnapshotRecorded(snapshot):
            delivered = ending.delivered if snapshot == files.tree else None
            ending, files = replace(ending, delivered=delivered), replace(files, tree=snapshot)
        case entries.VerificationStarted(number):
            verification = Verification(number, state.turns, tree=files.tree)
            ending = replace(ending, verification=verification)
        case entries.Verified(_, command, result):
            assert ending.verification is not None, "a verification has begun before it ends"
            verification = replace(ending.verification, passed=not result.is_error)
            if result.is_error:
                verification = replace(verification, command=command, output=result.content)
            ending = replace(ending, verification=verification)
        case entries.Delivered(commit):
            ending = replace(ending, delivered=commit)
    return replace(state, ending=ending, files=files)


def _user_message(state: RunState, entry: entries.UserMessageAdded) -> RunState:
    """Return the state after a new message: the run continues, a verification's result is told."""
    blocks, cause = tuple(map(conversation.text_block, entry.texts)), entry.cause
    model, ending, hooks, children = state.model, state.ending, state.hooks, state.children
    before, tail = state.messages, state.messages[-1]
    messages = (*before, conversation.Message("user", blocks))
    if tail.role == "user":
        messages = (*before[:-1], conversation.Message("user", tail.blocks + blocks))
    if cause == "split":
        children = replace(children, split="asked_again" if children.split else "asked")
    elif cause == "children":
        children = replace(children, current=(), split="done")
    queued = (each for each in state.inbox.messages if each.id not in entry.queued_ids)
    state = replace(
        state,
        messages=messages,
        inbox=replace(state.inbox, messages=tuple(queued)),
        model=replace(
            model,
            stop=None,
            continuations=model.continuations + (cause == "continue"),
            nudges=model.nudges + (cause == "nudge"),
        ),
        ending=replace(
            ending,
            submitted=False,
            delivered=None,
            result_nudges=ending.result_nudges + (cause == "result"),
            verify_failures=ending.verify_failures + (cause == "verify"),
            verification=ending.verification and replace(ending.verification, output=""),
        ),
        children=children,
        hooks=replace(hooks, told=hooks.started) if cause == "hook" else hooks,
    )
    return _appended(state, blocks)


def _settled(state: RunState, outcome: Outcome) -> RunState:
    match outcome:
        case Ended():
            calls = (
                replace(c, interrupted=True) if interrupted_by(outcome, c) else c
                for c in state.calls
            )
            inbox = replace(state.inbox, pause_requested=False)
            return replace(rested(state), calls=tuple(calls), inbox=inbox)
        case Waiting("batch"):  # the tries of its call go on
            return state
        case Waiting():
            inbox = replace(state.inbox, pause_requested=False)
            return replace(state, model=replace(state.model, failure=None), inbox=inbox)
        case Requeued(reason="not_before" | "window" | "spend_limit" | "cap" | "rate_limit"):
            return replace(state, model=replace(state.model, failure=None))
        case Requeued(reason="budget"):
            waits = state.money.budget_waits + 1
            return replace(state, money=replace(state.money, budget_waits=waits))
        case _:
            return state

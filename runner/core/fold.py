"""How the run state changes with each entry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

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
    Children,
    ContextState,
    EndingState,
    Failure,
    HookState,
    ModelState,
    OpenCall,
    Pace,
    Progress,
    RunState,
    Stop,
)
from runner.core.workspace import RESULT_SOURCE, Verification, with_instructions
from runner.permissions import ToolContext

P = TypeVar("P", bound=Progress)


@dataclass(frozen=True, slots=True)
class Applied:
    """An entry, and the state before and after it."""

    before: RunState
    entry: Entry
    after: RunState


def fold(state: RunState, entries: Iterable[Entry]) -> list[Applied]:
    """The entries, each with the state before and after it."""
    applied: list[Applied] = []
    for entry in entries:
        after = apply(state, entry)
        applied.append(Applied(state, entry, after))
        state = after
    return applied


def apply(state: RunState, entry: Entry) -> RunState:
    """The state after one entry."""
    match entry:
        case ModelCallStarted():
            return _started(state, entry)
        case ModelReplied(reply, tool_contexts):
            return _replied(state, reply, tool_contexts)
        case ModelCallFailed():
            return _failed(state, entry)
        case SummaryReplied():
            return _summarised(state, entry)
        case ContextCompacted(compaction):
            return _compacted(state, compaction)
        case TimeWorked(seconds):
            return replace(state, worked=state.worked + seconds)
        case CallsDecided() | OutcomeAsked():
            return _hooks_decided(_with_calls(state, entry), entry)
        case ToolsStarted():
            return _with_calls(state, entry)
        case ChildrenStarted():
            return _children_started(state, entry)
        case ToolFinished():
            return _finished(state, entry)
        case HookStarted():
            return _hook_started(state, entry)
        case HookFinished():
            return _hook_finished(state, entry)
        case TurnEnded():
            return _turn_ended(state)
        case InstructionsRead():
            return _instructed(state, entry)
        case TreeRecorded() | VerificationStarted() | Verified() | Delivered():
            return _in_workspace(state, entry)
        case UserMessageAdded():
            return _user_message(state, entry)
        case RunSettled(outcome):
            return _settled(state, outcome)


def opening(
    spec: JobSpec, prompt: str, *, warms_cache: bool = False
) -> tuple[tuple[Message, ...], Progress]:
    """How a run begins: its first message, and a progress that counts what the first call sends."""
    message = Message("user", (text_block(prompt),))
    model = ModelState(warms_cache=warms_cache)
    return (message,), Progress(context=context_of(spec, [message]), model=model)


def context_of(spec: JobSpec, sent: Sequence[Message]) -> ContextState:
    """The estimates of a run whose next call sends these messages, and that has measured none."""
    tokens = spec.shared_tokens + tokens_of(sent, spec.context.chars_per_token)
    return ContextState(estimate=tokens, appended_bytes=spec.request_bytes(sent))


def rested(progress: P) -> P:
    """The progress of a run that ended, so that it can be resumed: what ended it is no longer to be
    answered. A paused turn stays paused: its server tools have no results yet."""
    stop = progress.model.stop
    return replace(
        progress,
        model=replace(
            progress.model,
            stop=stop if stop is not None and stop.reason == "pause_turn" else None,
            failure=None,
            nudges=0,
            continuations=0,
        ),
        context=replace(progress.context, refusals=0, must_shrink=False, summary_failed=False),
        ending=replace(progress.ending, submitted=False, result_nudges=0, verify_failures=0),
        hooks=replace(progress.hooks, ended=progress.hooks.started),
    )


def _started(state: RunState, entry: ModelCallStarted) -> RunState:
    model, budget = state.model, state.money.budget
    is_turn = entry.purpose == "turn"
    return replace(
        state,
        model=replace(
            model,
            open_call=OpenCall(entry.number, state.attempt, entry.reservation, entry.purpose),
            calls=entry.number,
            tries=model.tries + is_turn,
            pace=Pace(*paced(model.pace.last_at, model.pace.slow, entry.at))
            if is_turn
            else model.pace,
        ),
        money=replace(
            state.money, budget_waits=0, budget=budget and budget.with_reserved(entry.reservation)
        ),
        context=replace(state.context, checked_window=state.context.window),
        ending=replace(state.ending, delivered=None),
    )


def _replied(
    state: RunState, reply: ModelReply, tool_contexts: tuple[ToolContext, ...]
) -> RunState:
    blocks, call = message_blocks(reply), state.model.open_call
    state = _charged_for(state, reply, state.spec.model)
    model, hooks = state.model, state.hooks
    stop = Stop(
        reply.stop_reason,
        call is not None and call.reservation.lowered,
        empty=not blocks,
        lowered_by=call.reservation.lowered_by if call is not None else "token_ceiling",
    )
    state = replace(
        state,
        turns=state.turns + 1,
        messages=(*state.messages, Message("assistant", blocks)) if blocks else state.messages,
        calls=_calls_of(blocks, tool_contexts),
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


def _calls_of(blocks: Iterable[Block], tool_contexts: tuple[ToolContext, ...]) -> tuple[Call, ...]:
    return tuple(
        Call(
            index,
            block["id"],
            block["name"],
            block["input"],
            tool_context=tool_contexts[index] if tool_contexts else None,
        )
        for index, block in enumerate(tool_uses(blocks))
    )


def _measured(context: ContextState, reply: ModelReply) -> ContextState:
    """After a reply that says how long its prompt really was; what it says may be no measurement."""
    too_long, real = reply.stop_reason == CONTEXT_EXCEEDED, reply.usage.prompt_tokens
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


def _charged_for(state: RunState, reply: ModelReply, model: str) -> RunState:
    """After a reply that is charged by its real usage: the model answers again."""
    call, tariff = state.model.open_call, state.money.tariffs.get(model)
    hour_cache = call is not None and call.reservation.hour_cache
    cost = tariff.cost(reply.usage, hour_cache=hour_cache) if tariff else 0
    state = _charged(state, reply.usage.total, cost)
    return replace(
        state,
        money=replace(state.money, usage=state.money.usage + reply.usage),
        model=replace(state.model, failure=None),
    )


def _charged(state: RunState, tokens: int, cost: int) -> RunState:
    """After a model call that ended and is charged so much."""
    money, call = state.money, state.model.open_call
    if call is not None and money.budget is not None:
        money = replace(money, budget=money.budget.with_spent(call.reservation, tokens, cost))
    money = replace(
        money, charged_tokens=money.charged_tokens + tokens, charged_cost=money.charged_cost + cost
    )
    return replace(state, money=money, model=replace(state.model, open_call=None))


def _failed(state: RunState, entry: ModelCallFailed) -> RunState:
    before, call = state.model.failure, state.model.open_call
    cost = call.reservation.worst_cost if call is not None and entry.charged else 0
    state = _charged(state, entry.charged, cost)
    failure: Failure | None = Failure(
        count=before.count + 1 if before else 1,
        first_at=before.first_at if before else entry.at,
        retry_at=entry.retry_at,
        kind=entry.kind,
        message=entry.message,
        request_id=entry.request_id,
    )
    too_long = entry.kind == PROMPT_TOO_LONG
    if call is not None and call.purpose == "summary" and (too_long or entry.retry_at is None):
        state, failure = _context(state, summary_failed=True), None
    elif too_long:
        refusals = state.context.refusals + 1
        state, failure = _context(state, refusals=refusals, must_shrink=True), None
    elif entry.kind in OUR_OWN_FAILURES:
        failure = before
    return replace(state, model=replace(state.model, failure=failure))


def _summarised(state: RunState, entry: SummaryReplied) -> RunState:
    state = _charged_for(state, entry.reply, state.spec.summary_model)
    if entry.compaction is not None:
        return _compacted(state, entry.compaction)
    return _context(state, summary_failed=True)


def _compacted(state: RunState, compaction: Compaction) -> RunState:
    """For the bound of the next prompt, what is sent instead of messages counts as appended."""
    context = state.context
    texts = [compaction.text, *(clip.text for clip in compaction.truncated)]
    added = sum(text_bytes(content_text(text_block(text))) for text in texts)
    per_token = state.spec.context.chars_per_token
    change = difference(state.messages, context.compacted, compaction, per_token)
    return _context(
        state,
        compacted=context.compacted.after(compaction),
        appended_bytes=context.appended_bytes + added,
        estimate=context.estimate + change,
        measured=compaction.tokens_after,
        estimate_since=0,
        must_shrink=False,
        summary_failed=False,
    )


def _appended(state: RunState, blocks: Iterable[Block]) -> RunState:
    """With the size of blocks that joined the conversation counted, once and for all."""
    context, per_token = state.context, state.spec.context.chars_per_token
    size, tokens = 0, 0
    for block in blocks:
        text = content_text(block)
        size += text_bytes(text)
        tokens += estimate_text(text, per_token)
    return _context(
        state,
        appended_bytes=context.appended_bytes + size,
        estimate=context.estimate + tokens,
        estimate_since=context.estimate_since + tokens,
    )


def _context(state: RunState, **changes: Any) -> RunState:
    return replace(state, context=replace(state.context, **changes))


def _with_calls(state: RunState, entry: CallsDecided | ToolsStarted | OutcomeAsked) -> RunState:
    return replace(state, calls=tuple(_changed(state, call, entry) for call in state.calls))


def _changed(
    state: RunState, call: Call, entry: CallsDecided | ToolsStarted | OutcomeAsked
) -> Call:
    match entry:
        case CallsDecided(decisions) if call.index in decisions:
            return replace(call, decision=decisions[call.index].shortened())
        case ToolsStarted(indexes) if call.index in indexes:
            return replace(call, started_by=state.attempt, asked_again=False)
        case OutcomeAsked(index, unrecorded) if call.index == index:
            question = outcome_question(state, unrecorded)
            return replace(call, decision=question, answer=None, asked_again=True)
        case _:
            return call


def _finished(state: RunState, entry: ToolFinished) -> RunState:
    call = state.calls[entry.index]
    block = result_block(call.id, entry.result)
    finished = replace(call, result=block, outcome=entry.result.outcome)
    state = replace(
        state,
        calls=tuple(finished if c.index == entry.index else c for c in state.calls),
        children=_split_after_result(state, entry),
    )
    tool = state.spec.tool(call.name)
    if tool is not None and tool.source == RESULT_SOURCE and not entry.result.is_error:
        state = replace(state, ending=replace(state.ending, submitted=True, result_nudges=0))
    if entry.tree is not None:
        state = replace(state, files=replace(state.files, tree=entry.tree))
    state = _appended(state, [block])
    if end_turns(state.spec) or any(c.result is None for c in state.calls):
        return state
    return _turn_ended(state)


def _turn_ended(state: RunState) -> RunState:
    """With the results of the last reply's calls in the conversation: all have theirs."""
    stop = state.model.stop
    results = tuple(call.result for call in state.calls if call.result is not None)
    answered = stop is not None and stop.reason not in CUT_REASONS
    return replace(
        state,
        calls=(),
        children=replace(state.children, current=()),
        messages=(*state.messages, Message("user", results)),
        model=replace(state.model, stop=None if answered else stop),
        hooks=replace(state.hooks, closed=state.turns),
    )


def _children_started(state: RunState, entry: ChildrenStarted) -> RunState:
    """The state after children were started: each counts all that it may use from here on."""
    indexes = {child.index for child in entry.children}
    new = tuple(
        Child(child.number, child.index, child.agent_type, Charged(child.tokens, child.cost or 0))
        for child in entry.children
    )
    children = state.children
    return replace(
        state,
        calls=tuple(
            replace(call, started_by=state.attempt) if call.index in indexes else call
            for call in state.calls
        ),
        files=replace(state.files, shared_tree=None),
        children=replace(
            children,
            started=children.started + len(new),
            current=(*children.current, *new),
            reserved=sum((child.reserved for child in new), children.reserved),
            tree_size=children.tree_size + len(new),
            split=_split_by(state, indexes),
        ),
    )


def _split_by(state: RunState, indexes: set[int | None]) -> Split:
    if None in indexes:
        return "whole"
    split = any(state.spec.splits(call.name) for call in state.calls if call.index in indexes)
    return "done" if split else state.children.split


def _split_after_result(state: RunState, entry: ToolFinished) -> Children:
    """The children after a call has its result: a split that was no good is asked for again."""
    is_split = state.spec.splits(state.calls[entry.index].name)
    if is_split and entry.result.is_error and state.children.split == "asked":
        return replace(state.children, split="asked_again")
    return state.children


def _children_after_message(children: Children, entry: UserMessageAdded) -> Children:
    """The children after the model was told to split its task, or what came of the whole of it."""
    match entry.cause:
        case "split":
            return replace(children, split="asked_again" if children.split else "asked")
        case "children":
            return replace(children, current=(), split="done")
        case _:
            return children


def _hooks_decided(state: RunState, entry: CallsDecided | OutcomeAsked) -> RunState:
    """After a decision that is of the hooks so far: those that follow look at what a person makes of the
    call."""
    if not any(hooks_of(state.spec, "PreToolUse")):
        return state
    indexes = entry.decisions if isinstance(entry, CallsDecided) else (entry.index,)
    at = (
        state.hooks.started if call.index in indexes else decided_at(state, call)
        for call in state.calls
    )
    return replace(state, hooks=replace(state.hooks, decided=tuple(at)))


def _hooks_after_message(hooks: HookState, entry: UserMessageAdded) -> HookState:
    """After a message that may tell what hooks have said so far."""
    return replace(hooks, told=hooks.started) if entry.cause == "hook" else hooks


def _hook_started(state: RunState, entry: HookStarted) -> RunState:
    """One that was started before begins again under its number."""
    run = HookRun(entry.number, entry.hook, entry.event, entry.index, state.attempt)
    others = (other for other in state.hooks.runs if other.number != entry.number)
    runs = tuple(sorted((*others, run), key=lambda one: one.number))
    started = max(state.hooks.started, entry.number)
    return replace(state, hooks=replace(state.hooks, runs=runs, started=started))


def _hook_finished(state: RunState, entry: HookFinished) -> RunState:
    result = entry.result
    runs = tuple(
        replace(run, answer=result.answer) if run.number == entry.number else run
        for run in state.hooks.runs
    )
    (run,) = (run for run in runs if run.number == entry.number)
    state = replace(state, hooks=replace(state.hooks, runs=runs))
    if entry.tree is not None:
        state = replace(state, files=replace(state.files, tree=entry.tree))
    if result.updated_input is None:
        return state
    # Where the call leads with another input is looked up before it is decided on.
    calls = tuple(
        replace(call, updated_input=result.updated_input, tool_context=None)
        if call.index == run.index
        else call
        for call in state.calls
    )
    return replace(state, calls=calls)


def _instructed(state: RunState, entry: InstructionsRead) -> RunState:
    """The instructions that join the system prompt are counted like all that is sent."""
    system = with_instructions(state.spec.system, entry.files)
    before, after = state.spec.system or "", system or ""
    per_token = state.spec.context.chars_per_token
    tokens = estimate_text(after, per_token) - estimate_text(before, per_token)
    size = text_bytes(after) - text_bytes(before)
    context = state.context
    return replace(
        state,
        spec=replace(state.spec, system=system),
        files=replace(state.files, instructed=True),
        context=replace(
            context,
            appended_bytes=context.appended_bytes + size,
            estimate=context.estimate + tokens,
        ),
    )


def _in_workspace(
    state: RunState, entry: TreeRecorded | VerificationStarted | Verified | Delivered
) -> RunState:
    """The state after one entry."""
    ending, files = state.ending, state.files
    match entry:
        case TreeRecorded(tree):
            delivered = ending.delivered if tree == files.tree else None
            ending, files = replace(ending, delivered=delivered), replace(files, tree=tree)
        case VerificationStarted(number):
            verification = Verification(number, state.turns, tree=files.tree)
            ending = replace(ending, verification=verification)
        case Verified():
            ending = replace(ending, verification=_verified(ending.verification, entry))
        case Delivered(commit):
            ending = replace(ending, delivered=commit)
    return replace(state, ending=ending, files=files)


def _verified(begun: Verification | None, entry: Verified) -> Verification:
    assert begun is not None, "a verification has begun before it ends"
    if not entry.result.is_error:
        return replace(begun, passed=True)
    return replace(begun, passed=False, command=entry.command, output=entry.result.content)


def _ending_after_message(ending: EndingState, message: UserMessageAdded) -> EndingState:
    """After the model is told more: the run goes on. What it was told of a verification is in the
    conversation now."""
    verification = ending.verification
    return replace(
        ending,
        submitted=False,
        delivered=None,
        result_nudges=ending.result_nudges + (message.cause == "result"),
        verify_failures=ending.verify_failures + (message.cause == "verify"),
        verification=replace(verification, output="") if verification else None,
    )


def _user_message(state: RunState, entry: UserMessageAdded) -> RunState:
    blocks = tuple(map(text_block, entry.texts))
    tail = state.messages[-1]
    if tail.role == "user":
        messages = (*state.messages[:-1], Message("user", tail.blocks + blocks))
    else:
        messages = (*state.messages, Message("user", blocks))
    delivered = frozenset(entry.queued_ids)
    queued = tuple(message for message in state.inbox.messages if message.id not in delivered)
    state = replace(
        state,
        messages=messages,
        inbox=replace(state.inbox, messages=queued),
        model=replace(
            state.model,
            stop=None,
            continuations=state.model.continuations + (entry.cause == "continue"),
            nudges=state.model.nudges + (entry.cause == "nudge"),
        ),
        ending=_ending_after_message(state.ending, entry),
        children=_children_after_message(state.children, entry),
        hooks=_hooks_after_message(state.hooks, entry),
    )
    return _appended(state, blocks)


def _settled(state: RunState, outcome: Outcome) -> RunState:
    state = replace(state, outcome=outcome)
    match outcome:
        case Ended():
            calls = (c if c.result else replace(c, interrupted=True) for c in state.calls)
            inbox = replace(state.inbox, pause_requested=False)
            return replace(rested(state), calls=tuple(calls), inbox=inbox)
        case Waiting():
            inbox = replace(state.inbox, pause_requested=False)
            return replace(state, model=replace(state.model, failure=None), inbox=inbox)
        case Requeued(reason="budget"):
            waits = state.money.budget_waits + 1
            return replace(state, money=replace(state.money, budget_waits=waits))
        case _:
            return state

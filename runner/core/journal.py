"""What a run's journal holds (entries), and what it amounts to (a view).

``apply`` folds one entry into a view. The store writes an entry as rows and reads the rows back as
a view; a test holds that both ways give the same value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from runner.core.budget import Limits, Reservation
from runner.core.conversation import (
    Block,
    Message,
    ModelReply,
    ToolResult,
    Usage,
    content_bytes,
    message_blocks,
    result_block,
    text_block,
    tool_uses,
)
from runner.core.entries import (
    OUR_OWN_FAILURES,
    CallsDecided,
    Entry,
    ModelCallFailed,
    ModelCallStarted,
    ModelReplied,
    RunSettled,
    ToolFinished,
    ToolsStarted,
    UserMessageAdded,
)
from runner.core.permissions import Answer, Decision, Policy, Setting
from runner.core.run import Ended, Outcome, Waiting
from runner.core.spec import JobSpec


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of the last reply. ``answer`` is a person's to a decision to ask; ``started_by`` is
    the attempt that started it; ``interrupted`` says that a cancel cut it off; ``result`` is its
    ``tool_result`` block. ``setting`` is not stored: where the call would run, until it is decided."""

    index: int
    id: str
    name: str
    input: Any
    setting: Setting | None = field(default=None, compare=False)
    decision: Decision | None = None
    answer: Answer | None = None
    started_by: int | None = None
    interrupted: bool = False
    result: Block | None = None

    @property
    def input_to_run(self) -> Any:
        """The input as the model gave it, or as the person who approved the call changed it."""
        edited = self.answer.input if self.answer is not None else None
        return self.input if edited is None else dict(edited)

    @property
    def is_edited(self) -> bool:
        return self.answer is not None and self.answer.input is not None


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A model call that has started and not ended."""

    number: int
    attempt: int
    reservation: Reservation


@dataclass(frozen=True, slots=True)
class Stop:
    """How the last reply ended, until it is answered."""

    reason: str
    lowered: bool
    empty: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """The model failures in a row since the last reply."""

    count: int
    first_at: float
    retry_at: float | None
    kind: str
    message: str
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Progress:
    """The loop's own state beside the conversation: small, and stored with the run's row. ``tries``
    counts the model calls since the last reply."""

    turns: int = 0
    usage: Usage = field(default_factory=Usage)
    charged_tokens: int = 0
    model_calls: int = 0
    tries: int = 0
    last_prompt_tokens: int | None = None
    appended_bytes: int = 0
    continuations: int = 0
    nudges: int = 0
    stop: Stop | None = None
    failure: Failure | None = None
    open_call: OpenCall | None = None


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as its journal tells it. ``messages`` is the conversation so far; ``calls`` are the last
    reply's until each has its result, then they join ``messages`` as one user message.
    ``policy`` are the rules of the newest snapshot. ``submitted_at`` is in seconds since the epoch;
    ``answer_count`` counts the answers to its questions, and ``revision`` the transactions that the
    run's attempts have stored."""

    run_id: str
    item_key: str
    attempt: int
    spec: JobSpec
    policy: Policy
    limits: Limits
    submitted_at: float
    messages: tuple[Message, ...]
    progress: Progress = field(default_factory=Progress)
    calls: tuple[Call, ...] = ()
    queued: tuple[QueuedMessage, ...] = ()
    pause_requested: bool = False
    outcome: Outcome | None = None
    answer_count: int = 0
    revision: int = 0

    @property
    def ends_at(self) -> float | None:
        """The run's deadline in seconds since the epoch; None without one."""
        limit = self.limits.deadline
        return None if limit is None else self.submitted_at + limit


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
            return _progress(
                view,
                open_call=OpenCall(entry.number, view.attempt, entry.reservation),
                model_calls=entry.number,
                tries=view.progress.tries + 1,
            )
        case ModelReplied(reply, settings):
            return _replied(view, reply, settings)
        case ModelCallFailed():
            return _failed(view, entry)
        case CallsDecided(decisions):
            return _with_calls(
                view,
                (
                    replace(c, decision=decisions[c.index].in_short())
                    if c.index in decisions
                    else c
                    for c in view.calls
                ),
            )
        case ToolsStarted(indexes):
            return _with_calls(
                view,
                (
                    replace(c, started_by=view.attempt) if c.index in indexes else c
                    for c in view.calls
                ),
            )
        case ToolFinished(index, result):
            return _finished(view, index, result)
        case UserMessageAdded():
            return _user_message(view, entry)
        case RunSettled(outcome):
            return _settled(view, outcome)


def opening(spec: JobSpec, prompt: str) -> tuple[tuple[Message, ...], Progress]:
    """How a run begins: its first message, and a progress that counts what the first call sends."""
    message = Message("user", (text_block(prompt),))
    sent = len((spec.system or "").encode("utf-8", "surrogatepass"))
    sent += sum(content_bytes(tool.definition()) for tool in spec.tools)
    sent += content_bytes(dict(spec.model_options))
    sent += sum(map(content_bytes, message.blocks))
    return (message,), Progress(appended_bytes=sent)


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
    )


def _progress(view: RunView, **changes: Any) -> RunView:
    return replace(view, progress=replace(view.progress, **changes))


def _with_calls(view: RunView, calls: Iterable[Call]) -> RunView:
    return replace(view, calls=tuple(calls))


def _replied(view: RunView, reply: ModelReply, settings: tuple[Setting, ...]) -> RunView:
    progress = view.progress
    lowered = progress.open_call is not None and progress.open_call.reservation.lowered
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
                setting=settings[index] if settings else None,
            )
            for index, block in enumerate(tool_uses(blocks))
        ),
    )
    return _progress(
        view,
        turns=progress.turns + 1,
        usage=progress.usage + reply.usage,
        charged_tokens=progress.charged_tokens + reply.usage.total,
        last_prompt_tokens=reply.usage.prompt_tokens,
        appended_bytes=sum(map(content_bytes, blocks)),
        continuations=progress.continuations if reply.stop_reason == "max_tokens" else 0,
        nudges=0 if blocks else progress.nudges,
        stop=Stop(reply.stop_reason, lowered, empty=not blocks),
        failure=None,
        open_call=None,
        tries=0,
    )


def _failed(view: RunView, entry: ModelCallFailed) -> RunView:
    before = view.progress.failure
    failure = Failure(
        count=before.count + 1 if before else 1,
        first_at=before.first_at if before else entry.at,
        retry_at=entry.retry_at,
        kind=entry.kind,
        message=entry.message,
        request_id=entry.request_id,
    )
    return _progress(
        view,
        charged_tokens=view.progress.charged_tokens + entry.charged,
        failure=before if entry.kind in OUR_OWN_FAILURES else failure,
        open_call=None,
    )


def _finished(view: RunView, index: int, result: ToolResult) -> RunView:
    call = view.calls[index]
    block = result_block(call.id, result)
    calls = tuple(replace(c, result=block) if c.index == index else c for c in view.calls)
    view = _progress(view, appended_bytes=view.progress.appended_bytes + content_bytes(block))
    results = tuple(c.result for c in calls if c.result is not None)
    if len(results) < len(calls):
        return replace(view, calls=calls)
    view = replace(view, calls=(), messages=(*view.messages, Message("user", results)))
    stop = view.progress.stop
    answered = stop is not None and stop.reason != "max_tokens"
    return _progress(view, stop=None) if answered else view


def _user_message(view: RunView, entry: UserMessageAdded) -> RunView:
    blocks = tuple(map(text_block, entry.texts))
    tail = view.messages[-1]
    if tail.role == "user":
        messages = (*view.messages[:-1], Message("user", tail.blocks + blocks))
    else:
        messages = (*view.messages, Message("user", blocks))
    progress = view.progress
    delivered = frozenset(entry.queued_ids)
    return replace(
        view,
        messages=messages,
        queued=tuple(message for message in view.queued if message.id not in delivered),
        progress=replace(
            progress,
            appended_bytes=progress.appended_bytes + sum(map(content_bytes, blocks)),
            continuations=progress.continuations + (entry.cause == "continue"),
            nudges=progress.nudges + (entry.cause == "nudge"),
            stop=None,
        ),
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
        case _:
            return view

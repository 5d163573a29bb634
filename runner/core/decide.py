"""What a run does next: a pure function of its state."""

from __future__ import annotations

from dataclasses import replace

from runner.core.calls import answer_calls, given_by_children
from runner.core.children import coordinate
from runner.core.conversation import CONTEXT_EXCEEDED, CUT_REASONS
from runner.core.entries import ModelCallFailed, RunSettled, UserMessageAdded
from runner.core.finish import deliver, finish
from runner.core.fold import Applied, apply
from runner.core.hook_decisions import (
    continue_hook,
    end_run,
    objects,
    start_run,
    stop_for_hook,
    tell_of_hooks,
)
from runner.core.model_calls import IN_HAND_SECONDS, fit_context, start_turn, stopped_by
from runner.core.run import Ended, Requeued, Waiting
from runner.core.state import RunView, Stop
from runner.core.steps import (
    CallModel,
    Done,
    Effect,
    EndChildren,
    Record,
    RunTools,
    Sleep,
    Step,
    leave,
    settle,
    stop_at_deadline,
)
from runner.core.text import (
    CONTINUE_TEXT,
    NUDGE_TEXT,
    RESUME_TEXT,
    SMALLER_STEPS_TEXT,
)

MOST_CONTINUATIONS = 2


def advance(view: RunView, now: float, draining: bool) -> tuple[list[Applied], Effect | Done]:
    """Decide until there is an effect to carry out, or the attempt is over.

    Args:
        now: seconds since the epoch.
        draining: the worker is shutting down: stop at this step boundary.

    Returns:
        The entries that were decided, each with the run before and after it, and the effect
        that comes next once they are stored, or the end of the attempt.
    """
    decided: list[Applied] = []
    view = replace(view, now=now, draining=draining)
    while isinstance(step := decide(view), Record):
        after = apply(view, step.entry)
        decided.append(Applied(view, step.entry, after))
        view = after
    return decided, step


def decide(view: RunView) -> Step:
    """The next step of a run. What the rules decide is done, but an end only after its stages."""
    if view.outcome is not None:
        return Done(view.outcome)
    step = _by_rules(view)
    match step:
        case Record(RunSettled(Ended() as end)):
            return _before_end(view, end) or step
        case _:
            return step


def _by_rules(view: RunView) -> Step:
    """The step of the first rule that applies; the last one always does."""
    return (
        _continue_model_call(view)
        or _continue_tools(view)
        or continue_hook(view)
        or stop_for_hook(view)
        or _leave_calls(view)
        or answer_calls(view)
        or coordinate(view)
        or _end_with_result(view)
        or _answer_stop(view)
        or tell_of_hooks(view)
        or leave(view)
        or start_run(view)
        or _deliver_queued(view)
        or _after_failure(view)
        or _speak_first(view)
        or _check_limits(view)
        or fit_context(view)
        or start_turn(view)
    )


def _before_end(view: RunView, end: Ended) -> Step | None:
    """The step of the first stage before an end that is not through: sub-agents stop and give their
    results, the files are committed, RunEnd hooks see what is left."""
    return _end_children(view) or deliver(view, end) or end_run(view, end)


def _continue_model_call(view: RunView) -> Step | None:
    call = view.progress.open_call
    if call is None:
        return None
    if call.attempt == view.attempt:
        return CallModel(call)
    return Record(
        ModelCallFailed(
            kind="worker_lost",
            message="the worker was gone before the reply was stored",
            status=None,
            request_id=None,
            charged=call.reservation.worst_case,
            at=view.now,
            retry_at=view.now,
        )
    )


def _continue_tools(view: RunView) -> Step | None:
    """Only an attempt that appends a result while others of its group are running sees these."""
    mine = tuple(
        call
        for call in view.calls
        if call.result is None
        and call.started_by == view.attempt
        and not view.spec.starts_children(call.name)
    )
    return RunTools(mine) if mine else None


def _leave_calls(view: RunView) -> Step | None:
    return leave(view) if view.calls else None


def _end_with_result(view: RunView) -> Step | None:
    if not view.progress.submitted or view.queued or objects(view):
        return None
    return finish(view, "submitted")


def _answer_stop(view: RunView) -> Step | None:
    stop = view.progress.stop
    if stop is None:
        return None
    if stop.reason == "max_tokens" and stop.lowered:
        return stopped_by(view, stop.lowered_by)
    if stop.reason == "refusal":
        return settle(Ended("failed", "refused", "the model refused to go on"))
    if view.queued and stop.reason != "pause_turn":
        return _deliver(view)
    if stop.empty and stop.reason == CONTEXT_EXCEEDED:
        return Record(UserMessageAdded((SMALLER_STEPS_TEXT,), "continue"))
    if stop.empty:
        if view.progress.nudges:
            return settle(Ended("failed", "empty_reply", "the model replied twice with nothing"))
        text = SMALLER_STEPS_TEXT if stop.reason in CUT_REASONS else NUDGE_TEXT
        return Record(UserMessageAdded((text,), "nudge"))
    if stop.reason in ("end_turn", "stop_sequence"):
        return finish(view, stop.reason)
    return _answer_whole_reply(view, stop)


def _answer_whole_reply(view: RunView, stop: Stop) -> Step | None:
    match stop.reason:
        case "max_tokens":
            if view.progress.continuations >= MOST_CONTINUATIONS:
                detail = "the reply was cut at max_output_tokens three times in a row"
                return settle(Ended("stopped", "max_tokens", detail))
            return Record(UserMessageAdded((CONTINUE_TEXT,), "continue"))
        case "model_context_window_exceeded":
            # How often is for ``fit_context`` to say: it makes room first.
            return Record(UserMessageAdded((CONTINUE_TEXT,), "continue"))
        case "pause_turn":
            return None
        case "tool_use":
            detail = "the model stopped for a tool call and made none"
            return settle(Ended("failed", "no_tool_call", detail))
        case _:
            detail = f"stop_reason {stop.reason!r} is not one that Runner knows"
            return settle(Ended("failed", "unknown_stop_reason", detail))


def _end_children(view: RunView) -> Step | None:
    """No sub-agent works any more when the run's files are committed; what each gave is a result."""
    if not view.awaits_children:
        return None
    if all(child.result is not None for child in view.children):
        return given_by_children(view)
    return leave(view) or (settle(Waiting("children")) if view.children_told else EndChildren())


def _deliver_queued(view: RunView) -> Step | None:
    paused = view.progress.stop is not None  # a paused turn goes back as it is
    return _deliver(view) if view.queued and not paused else None


def _deliver(view: RunView) -> Step:
    return Record(
        UserMessageAdded(
            tuple(message.text for message in view.queued),
            "queued",
            tuple(message.id for message in view.queued),
        )
    )


def _speak_first(view: RunView) -> Step | None:
    """A run taken up again after its last reply was answered by its end: someone must speak."""
    if view.messages[-1].role == "assistant" and view.progress.stop is None:
        return Record(UserMessageAdded((RESUME_TEXT,), "resume"))
    return None


def _after_failure(view: RunView) -> Step | None:
    failure = view.progress.failure
    if failure is None:
        return None
    if failure.retry_at is None:
        request = f" (request {failure.request_id})" if failure.request_id else ""
        return settle(Ended("failed", failure.kind, failure.message + request))
    if failure.retry_at <= view.now:
        return None
    if (ends_at := view.ends_at) is not None and failure.retry_at >= ends_at:
        return stop_at_deadline(view)
    if failure.retry_at - view.now <= IN_HAND_SECONDS:
        return Sleep(failure.retry_at)
    return settle(Requeued(failure.retry_at, "backoff"))


def _check_limits(view: RunView) -> Step | None:
    limits, progress = view.limits, view.progress
    if progress.turns >= limits.max_turns:
        return settle(Ended("stopped", "max_turns", f"the limit of {limits.max_turns} turns"))
    if limits.working_time is not None and progress.worked >= limits.working_time:
        detail = f"the working time of {limits.working_time:g} s"
        return settle(Ended("stopped", "working_time", detail))
    if (ends_at := view.ends_at) is not None and view.now >= ends_at:
        return stop_at_deadline(view)
    return None

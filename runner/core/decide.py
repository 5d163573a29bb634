"""What to do next in a run: a pure function of what its journal says."""

from __future__ import annotations

from collections.abc import Callable

from runner.core.agents.split import coordinate
from runner.core.calls import answer_calls, given_by_children
from runner.core.context.plan import fit_context
from runner.core.conversation import CONTEXT_EXCEEDED, CUT_REASONS
from runner.core.ending.finish import deliver_first, finish, leave
from runner.core.hooks.due import hook_in_hand, start_run, stop_run
from runner.core.hooks.verdict import objects, tell
from runner.core.journal.entries import ModelCallFailed, RunSettled, UserMessageAdded
from runner.core.journal.fold import Applied, apply
from runner.core.journal.view import RunView, Stop
from runner.core.money.spending import start_turn, stopped_by
from runner.core.retry import IN_HAND_SECONDS
from runner.core.run import Ended, Requeued, Waiting
from runner.core.steps import (
    CallModel,
    Done,
    Effect,
    EndChildren,
    Record,
    RunTools,
    Sleep,
    Step,
    settle,
    stop_at_deadline,
)
from runner.core.text.prompts import CONTINUE_TEXT, NUDGE_TEXT, RESUME_TEXT, SMALLER_STEPS_TEXT

MOST_CONTINUATIONS = 2


def advance(view: RunView, now: float, draining: bool) -> tuple[list[Applied], Effect]:
    """Decide until there is something to do.

    Returns:
        The entries that could be decided, each with the run before and after it, and the effect that
        is next once they are stored.
    """
    decided: list[Applied] = []
    while isinstance(step := decide(view, now, draining), Record):
        after = apply(view, step.entry)
        decided.append(Applied(view, step.entry, after))
        view = after
    return decided, step


def decide(view: RunView, now: float, draining: bool = False) -> Step:
    """The next step of a run.

    Args:
        now: seconds since the epoch.
        draining: the worker is shutting down: stop at this step boundary.
    """
    if view.outcome is not None:
        return Done(view.outcome)
    step = next(step for rule in _RULES if (step := rule(view, now, draining)) is not None)
    step = _children_first(view, step, now, draining)
    return deliver_first(view, step, now, draining=draining)


def _open_model_call(view: RunView, now: float, draining: bool) -> Step | None:
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
            at=now,
            retry_at=now,
        )
    )


def _tools_in_hand(view: RunView, now: float, draining: bool) -> Step | None:
    """Only an attempt that appends a result while others of its group are running sees these."""
    mine = tuple(
        call
        for call in view.calls
        if call.result is None
        and call.started_by == view.attempt
        and not view.spec.starts_children(call.name)
    )
    return RunTools(mine) if mine else None


def _hook_in_hand(view: RunView, now: float, draining: bool) -> Step | None:
    return hook_in_hand(view)


def _stop_for_hook(view: RunView, now: float, draining: bool) -> Step | None:
    return stop_run(view)


def _leave_calls(view: RunView, now: float, draining: bool) -> Step | None:
    return _leave(view, now, draining) if view.calls else None


def _answer_calls(view: RunView, now: float, draining: bool) -> Step | None:
    return answer_calls(view, now)


def _coordinate(view: RunView, now: float, draining: bool) -> Step | None:
    if view.progress.split == "whole" and (step := _leave(view, now, draining)) is not None:
        return step
    return coordinate(view)


def _leave(view: RunView, now: float, draining: bool) -> Step | None:
    return leave(view, now, draining=draining)


def _end_with_result(view: RunView, now: float, draining: bool) -> Step | None:
    if not view.progress.submitted or view.queued or objects(view):
        return None
    return finish(view, "submitted", now, draining=draining)


def _answer_stop(view: RunView, now: float, draining: bool) -> Step | None:
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
        return finish(view, stop.reason, now, draining=draining)
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


def _tell_of_hooks(view: RunView, now: float, draining: bool) -> Step | None:
    return tell(view)


def _children_first(view: RunView, step: Step, now: float, draining: bool) -> Step:
    """``step``, or what comes before an end: no sub-agent works any more in what is delivered and looked
    at then, and what each gave is a result."""
    match step:
        case Record(RunSettled(Ended())) if view.awaits_children:
            if all(child.result is not None for child in view.children):
                return given_by_children(view) or step
            if (left := _leave(view, now, draining)) is not None:
                return left
            return settle(Waiting("children")) if view.children_told else EndChildren()
        case _:
            return step


def _start_run(view: RunView, now: float, draining: bool) -> Step | None:
    return start_run(view)


def _deliver_queued(view: RunView, now: float, draining: bool) -> Step | None:
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


def _speak_first(view: RunView, now: float, draining: bool) -> Step | None:
    """A run taken up again after its last reply was answered by its end: someone must speak."""
    if view.messages[-1].role == "assistant" and view.progress.stop is None:
        return Record(UserMessageAdded((RESUME_TEXT,), "resume"))
    return None


def _after_failure(view: RunView, now: float, draining: bool) -> Step | None:
    failure = view.progress.failure
    if failure is None:
        return None
    if failure.retry_at is None:
        request = f" (request {failure.request_id})" if failure.request_id else ""
        return settle(Ended("failed", failure.kind, failure.message + request))
    if failure.retry_at <= now:
        return None
    if (ends_at := view.ends_at) is not None and failure.retry_at >= ends_at:
        return stop_at_deadline(view)
    if failure.retry_at - now <= IN_HAND_SECONDS:
        return Sleep(failure.retry_at)
    return settle(Requeued(failure.retry_at, "backoff"))


def _check_limits(view: RunView, now: float, draining: bool) -> Step | None:
    limits, progress = view.limits, view.progress
    if progress.turns >= limits.max_turns:
        return settle(Ended("stopped", "max_turns", f"the limit of {limits.max_turns} turns"))
    if limits.working_time is not None and progress.worked >= limits.working_time:
        detail = f"the working time of {limits.working_time:g} s"
        return settle(Ended("stopped", "working_time", detail))
    if (ends_at := view.ends_at) is not None and now >= ends_at:
        return stop_at_deadline(view)
    return None


def _fit_context(view: RunView, now: float, draining: bool) -> Step | None:
    return fit_context(view, now)


def _start_turn(view: RunView, now: float, draining: bool) -> Step | None:
    return start_turn(view, now)


_Rule = Callable[[RunView, float, bool], Step | None]

# In this order: the first rule that has a step for the run decides.
_RULES: tuple[_Rule, ...] = (
    _open_model_call,
    _tools_in_hand,
    _hook_in_hand,
    _stop_for_hook,
    _leave_calls,
    _answer_calls,
    _coordinate,
    _end_with_result,
    _answer_stop,
    _tell_of_hooks,
    _leave,
    _start_run,
    _deliver_queued,
    _after_failure,
    _speak_first,
    _check_limits,
    _fit_context,
    _start_turn,
)

"""The next step of a run: a pure function of its state."""

from __future__ import annotations

from dataclasses import replace

from runner.core import entries, hook_decisions, steps, text
from runner.core.batches import awaits_batch
from runner.core.children import coordinate, split_first
from runner.core.compaction import without_newest_media
from runner.core.conversation import CONTEXT_EXCEEDED, CUT_REASONS
from runner.core.fold import Applied, fold
from runner.core.media import media_blocks, media_line
from runner.core.model_calls import fit_context, start_turn, stopped_by
from runner.core.retries import IN_HAND_SECONDS
from runner.core.run import Ended, Requeued, Waiting
from runner.core.state import RunState
from runner.core.steps import Action, Step, end, leave, stop_at_deadline, tell
from runner.core.times import Times
from runner.core.tool_calls import answer_calls, given_by_children

MOST_CONTINUATIONS = 2
MOST_RESULT_NUDGES = 2
# By then the worker has paused the job. If it died before that, the run meets the limit again.
SPEND_LIMIT_SECONDS = 60.0


def advance(
    state: RunState,
    now: float,
    draining: bool,
    yields: bool = False,
    permit_at: float | None = None,
) -> tuple[list[Applied], Action]:
    """Return the entries to store, and the effect to carry out then or the attempt's end."""
    decided: list[Applied] = []
    state = replace(state, now=now, draining=draining, yields=yields, permit_at=permit_at)
    while isinstance(step := decide(state), entries.Entry):
        decided += fold(state, [step])
        state = decided[-1].after
    return decided, step


def wait_at_once(state: RunState, now: float) -> list[entries.Entry]:
    """Return the entries of a run that can only wait for the times of its job's model calls; none if it
    has something to do first, because that needs its workspace."""
    if state.finish_by is None and state.spec.times == Times():
        return []
    decided, step = advance(state, now, draining=False)
    match step:
        case steps.Done(Requeued(reason="not_before" | "window") | Waiting("finish_by")):
            return [each.entry for each in decided]
    return []


def decide(state: RunState) -> Step:
    """Return the next step of a run by the rules; an end only after the steps before it."""
    if state.outcome is not None:
        return steps.Done(state.outcome)
    match step := _by_rules(state):
        case entries.RunSettled(Ended() as outcome):
            # Sub-agents stop and give their results, the files are committed, RunEnd hooks run.
            before = _end_children(state) or _deliver_files(state, outcome)
            return before or hook_decisions.end_run(state, outcome) or step
    return step


def _by_rules(state: RunState) -> Step:
    return (
        _continue_model_call(state)
        or _continue_tools(state)
        or hook_decisions.continue_hook(state)
        or hook_decisions.stop_for_hook(state)
        or (leave(state) if state.calls else None)
        or answer_calls(state)
        or coordinate(state)
        or _end_with_result(state)
        or _answer_stop(state)
        or hook_decisions.tell_of_hooks(state)
        or leave(state)
        or _yield_slot(state)
        or _wait_to_begin(state)
        or hook_decisions.start_run(state)
        or _deliver_queued(state)
        or _after_failure(state)
        or _speak_first(state)
        or _check_limits(state)
        or _wait_for_times(state)
        or _follow_instructions(state)
        or _leave_out_refused_media(state)
        or fit_context(state)
        or start_turn(state)
    )


def _continue_model_call(state: RunState) -> Step | None:
    call = state.model.open_call
    if call is None:
        return None
    if awaits_batch(state):
        is_paused = state.inbox.pause_requested
        return entries.RunSettled(Waiting("paused" if is_paused else "batch"))
    if call.attempt == state.attempt or call.reservation.batch:
        return steps.CallModel(call)
    return entries.ModelCallFailed(
        kind="worker_lost",
        message="the worker was gone before the reply was stored",
        status=None,
        request_id=None,
        charged=call.reservation.worst_case,
        at=state.now,
        retry_at=state.now,
    )


def _continue_tools(state: RunState) -> Step | None:
    """Continue the tool calls that this attempt has started and that have no result yet, or return
    None."""
    mine = tuple(
        call
        for call in state.calls
        if call.result is None
        and call.started_by == state.attempt
        and not state.spec.starts_children(call.name)
    )
    return steps.RunTools(mine) if mine else None


def _end_with_result(state: RunState) -> Step | None:
    goes_on = state.inbox.messages or hook_decisions.objects(state)
    return _finish(state, "submitted") if state.ending.submitted and not goes_on else None


def _answer_stop(state: RunState) -> Step | None:
    """Return the step after the last reply's stop reason. A paused turn goes back unchanged."""
    stop = state.model.stop
    if stop is None:
        return None
    if stop.reason == "max_tokens" and stop.lowered:
        return stopped_by(state, stop.lowered_by)
    if stop.reason == "refusal":
        return end("failed", "refused", "the model refused to go on")
    if state.inbox.messages and stop.reason != "pause_turn":
        return _tell_queued(state)
    if stop.empty and stop.reason == CONTEXT_EXCEEDED:
        return tell("continue", text.SMALLER_STEPS_TEXT)
    if stop.empty:
        if state.model.nudges:
            return end("failed", "empty_reply", "the model replied twice with nothing")
        is_cut = stop.reason in CUT_REASONS
        return tell("nudge", text.SMALLER_STEPS_TEXT if is_cut else text.NUDGE_TEXT)
    match stop.reason:
        case "end_turn" | "stop_sequence":
            return _finish(state, stop.reason)
        case "max_tokens" if state.spec.on_max_tokens == "accept" and _speaks_last(state):
            return _finish(state, stop.reason)
        case "max_tokens" if state.model.continuations >= MOST_CONTINUATIONS:
            detail = "the reply was cut at max_output_tokens three times in a row"
            return end("stopped", "max_tokens", detail)
        case "max_tokens" | "model_context_window_exceeded":
            # How often the window may be exceeded is for ``fit_context`` to say: it makes room first.
            return tell("continue", text.CONTINUE_TEXT)
        case "pause_turn":
            return None
        case "tool_use":
            detail = "the model stopped for a tool call and made none"
            return end("failed", "no_tool_call", detail)
        case _:
            detail = f"stop_reason {stop.reason!r} is not one that Runner knows"
            return end("failed", "unknown_stop_reason", detail)


def _speaks_last(state: RunState) -> bool:
    """True if the last reply had no tool calls, whose results the model has yet to read."""
    return state.messages[-1].role == "assistant"


def _end_children(state: RunState) -> Step | None:
    """Stop the sub-agents before the files are committed, and record their results."""
    if not state.awaits_children:
        return None
    if not state.children.running:
        return given_by_children(state)
    wait = entries.RunSettled(Waiting("children"))
    return leave(state) or (wait if state.children.cancelled else steps.EndChildren())


def _yield_slot(state: RunState) -> Step | None:
    """Another job has waited for its share of the slots."""
    return entries.RunSettled(Requeued(state.now, "yielded")) if state.yields else None


def _deliver_queued(state: RunState) -> Step | None:
    is_paused = state.model.stop is not None
    return _tell_queued(state) if state.inbox.messages and not is_paused else None


def _tell_queued(state: RunState) -> Step:
    messages = state.inbox.messages
    ids = tuple(message.id for message in messages)
    return entries.UserMessageAdded(tuple(message.text for message in messages), "queued", ids)


def _speak_first(state: RunState) -> Step | None:
    """A resumed run ends with an assistant message, so append a user message."""
    is_answered = state.messages[-1].role == "user" or state.model.stop is not None
    return None if is_answered else tell("resume", text.RESUME_TEXT)


def _after_failure(state: RunState) -> Step | None:
    failure = state.model.failure
    if failure is None:
        return None
    if failure.kind == entries.SPEND_LIMIT:
        return entries.RunSettled(Requeued(state.now + SPEND_LIMIT_SECONDS, "spend_limit"))
    if failure.retry_at is None:
        request = f" (request {failure.request_id})" if failure.request_id else ""
        detail, begin = failure.message + request, state.messages[0].blocks
        if failure.kind == entries.MEDIA_REFUSED and len(state.messages) == 1:  # the item's own
            names = " or ".join(media_line(each) for block in begin for each in media_blocks(block))
            why = f"the API refused {names} of the item; correct the file and submit it again: {detail}"
            return end("failed", "media_refused", why)
        return end("failed", failure.kind, detail)
    if failure.retry_at <= state.now:
        return None
    if state.ends_at is not None and failure.retry_at >= state.ends_at:
        return stop_at_deadline(state)
    if failure.retry_at - state.now <= IN_HAND_SECONDS:
        return steps.Sleep(failure.retry_at)
    return entries.RunSettled(Requeued(failure.retry_at, "backoff"))


def _check_limits(state: RunState) -> Step | None:
    limits = state.limits
    if state.turns >= limits.max_turns:
        return end("stopped", "max_turns", f"the limit of {limits.max_turns} turns")
    if limits.working_time is not None and state.worked >= limits.working_time:
        return end("stopped", "working_time", f"the working time of {limits.working_time:g} s")
    return stop_at_deadline(state) if state.is_overdue else None


def _wait_to_begin(state: RunState) -> Step | None:
    """The wait of a run that has called no model: its hooks wait too."""
    return None if state.model.calls or state.is_overdue else _wait_for_times(state)


def _wait_for_times(state: RunState) -> Step | None:
    """The wait for the times at which the job's model calls may begin; None if they may now."""
    if state.finish_by is not None and state.finish_by <= state.now:
        return entries.RunSettled(Waiting("finish_by"))
    start = state.spec.times.next_start(state.now)
    if start is None:
        return None
    if state.ends_at is not None and start[0] >= state.ends_at:
        return stop_at_deadline(state)
    return entries.RunSettled(Requeued(*start))


def _follow_instructions(state: RunState) -> Step | None:
    """Read the instructions before each turn, once per attempt; a paused turn goes on without."""
    is_read = state.files.reread_at == state.turns or state.model.stop is not None
    follows = state.spec.instructions == "follow" and not is_read
    return steps.ReadInstructions() if follows else None


def _leave_out_refused_media(state: RunState) -> Step | None:
    why = state.context.refused_media
    made = without_newest_media(state, why) if why else None
    return entries.ContextCompacted(made) if made is not None else None


def _finish(state: RunState, reason: str) -> Step:
    """Return the end of a run whose task is split, result submitted and work verified."""
    return (
        split_first(state) or _ask_for_result(state) or _verify(state) or end("succeeded", reason)
    )


def _deliver_files(state: RunState, outcome: Ended) -> Step | None:
    workspace = state.spec.workspace
    if workspace is None or workspace.mode != "git" or state.ending.delivered:
        return None
    later = entries.RunSettled(Requeued(state.now, "shutdown"))
    return later if state.draining else steps.Deliver(outcome)


def _ask_for_result(state: RunState) -> Step | None:
    if state.spec.result_tool is None or state.ending.submitted:
        return None
    if state.ending.result_nudges >= MOST_RESULT_NUDGES:
        detail = f"the model was asked {MOST_RESULT_NUDGES} times for its result and gave none"
        return end("failed", "no_result", detail)
    return tell("result", text.RESULT_TEXT)


def _verify(state: RunState) -> Step | None:
    verify, verification = state.spec.verify, state.current_verification
    if verify is None:
        return None
    if verification is None:
        before = state.ending.verification
        return leave(state) or entries.VerificationStarted(before.number + 1 if before else 1)
    if verification.passed is None:
        return leave(state) or steps.RunVerify(verification.number)
    if verification.passed:
        return None
    if verify.on_failure == "fail" or state.ending.verify_failures >= verify.rounds:
        return end("failed", "verify", f"`{verification.command}` failed")
    command, output = verification.command, verification.output
    return tell("verify", text.VERIFY_TEXT.format(command=command, output=output))

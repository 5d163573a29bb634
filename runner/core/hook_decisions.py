"""Which hook is next: each runs once, and what an attempt left in the middle is not run again unless
it may be.

Which of a job's hooks there are, what has run of them, and which calls they are about.

What hooks said, put together: whether a call may run, and what the model is told.

What a hook is told, as JSON on its standard input.

The names are Claude Code's where it has the same thing (https://code.claude.com/docs/en/hooks), and
Runner's own words for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from runner.core.agents import SPLIT_SOURCE, item_of, lineage
from runner.core.conversation import ToolOutcome
from runner.core.entries import HookFinished, HookStarted, TurnEnded, UserMessageAdded
from runner.core.hooks import Hook, HookAnswer, HookEvent, HookResult, HookRun
from runner.core.run import Ended
from runner.core.spec import JobSpec
from runner.core.state import Call, RunView
from runner.core.steps import LocateCalls, Record, RunHook, Step, leave, settle
from runner.core.text import shorten
from runner.core.workspace import RESULT_SOURCE
from runner.permissions import Decision, Request, Rule
from runner.permissions.decisions import any_rule_matches

# A call with one of these has not run: it was refused before, or as it was about to begin.
_NEVER_RAN: frozenset[ToolOutcome] = frozenset({"denied", "unknown_tool", "invalid_input"})
# Tools that are part of how a run goes on: nothing is run for them, and no rule is asked.
_OWN_SOURCES = frozenset({RESULT_SOURCE, SPLIT_SOURCE})


def hooks_of(spec: JobSpec, event: HookEvent) -> Iterator[tuple[int, Hook]]:
    """The job's hooks of an event with their places among all, in order."""
    return ((place, hook) for place, hook in enumerate(spec.hooks) if hook.event == event)


def end_turns(spec: JobSpec) -> bool:
    """Whether there are hooks to run once the calls of a turn have their results."""
    return any(hook.event in ("PostToolUse", "TurnEnd") for hook in spec.hooks)


def is_matched(hook: Hook, call: Call) -> bool:
    """Whether a hook is about a call, which has been located, as it would run."""
    if not hook.matcher:
        return True
    if not isinstance(call.input_to_run, Mapping) or call.tool_context is None:
        return False
    rules = tuple(Rule("ask", text) for text in hook.matcher)
    return any_rule_matches(rules, Request(call.name, call.input_to_run, call.tool_context))


def may_be_hooked(view: RunView, call: Call) -> bool:
    """Whether there can be hooks around a call at all."""
    tool = view.spec.tool(call.name)
    return tool is not None and tool.source not in _OWN_SOURCES


def has_run(view: RunView, call: Call) -> bool:
    """Whether a call has run and has its result, whatever that says."""
    started = call.started_by is not None and call.result is not None
    return started and call.outcome not in _NEVER_RAN and may_be_hooked(view, call)


def run_of(
    view: RunView, place: int, index: int | None = None, *, since: int = 0
) -> HookRun | None:
    """The newest run of a hook in this turn, about this call or none; of those after number ``since``."""
    for run in reversed(view.hook_runs):
        if run.hook == place and run.index == index and run.number > since:
            return run
    return None


def decided_at(view: RunView, call: Call) -> int:
    """The number of the last hook that was started before a call was decided on, or a person was asked
    about it again; 0 while it is not decided on."""
    decided = view.progress.hooked.decided
    return decided[call.index] if decided else 0


def in_hand(view: RunView) -> HookRun | None:
    """The hook that this attempt has started and that has not ended."""
    mine = (run for run in view.hook_runs if run.answer is None and run.started_by == view.attempt)
    return next(mine, None)


def undoes_hook(view: RunView) -> bool:
    """Whether what a hook has changed that an earlier attempt left in the middle is put back: it is run
    again, or was one of RunEnd, which only look."""
    return any(
        run.event == "RunEnd"
        or (view.spec.hooks[run.hook].repeatable and not _looked_at_what_is_over(view, run))
        for run in _left_in_the_middle(view)
    )


def left_at_end(view: RunView) -> HookRun | None:
    """A hook that was left in the middle when the run was ended from outside, and that nothing waits for:
    the start and the end to come have their own, and its call does not run any more."""
    ended = view.progress.hooked.ended
    return next(
        (
            run
            for run in _left_in_the_middle(view)
            if (run.event in ("RunStart", "RunEnd") and run.number <= ended)
            or _looked_at_what_is_over(view, run)
        ),
        None,
    )


def _looked_at_what_is_over(view: RunView, run: HookRun) -> bool:
    """Whether a hook was to say if a call may run that has its result, or gets one without running."""
    if run.event != "PreToolUse":
        return False
    return all(
        call.interrupted or call.result is not None
        for call in view.calls
        if call.index == run.index
    )


def _left_in_the_middle(view: RunView) -> Iterator[HookRun]:
    return (run for run in view.hook_runs if run.answer is None and run.started_by != view.attempt)


def name_of(hook: Hook) -> str:
    """What a hook is called: its command or its function."""
    return hook.command or (hook.function or "").partition("@")[0]


_LONGEST_NAME = 100
_LONGEST_REASON = 1_000

_CONTEXT = "The {event} hook `{name}`{about} says:\n{text}"
_WOULD_CHANGE = "it would have another input run than the person who approved this call"
_OBJECTION = "The {event} hook `{name}`{about} objects:\n{text}"


def tightened(view: RunView, call: Call, decision: Decision) -> Decision:
    """The rules' decision on a call, or what its PreToolUse hooks make of it: never a looser one."""
    if decision.effect == "deny":
        return decision
    for run, answer in _said_before(view, call):
        if _denies(view, run, answer):
            return Decision("deny", (), decision.snapshot, objection(view, run))
    if (asking := _asking(view, call)) is None:
        return decision
    reason = objection(view, asking)
    if decision.effect == "ask":
        reason = "; ".join(filter(None, (decision.reason, reason)))
        return replace(decision, reason=reason)
    return Decision("ask", (), decision.snapshot, reason)


def refuses(view: RunView, call: Call) -> bool:
    """Whether one of the PreToolUse hooks of a call denies it, as it would run."""
    return _refusing(view, call) is not None


def refused_edit(view: RunView, call: Call) -> str | None:
    """Why a call does not run that a person has approved with another input; None while no hook is
    against that."""
    run = _refusing(view, call) if call.is_edited else None
    return None if run is None else f"denied as a person has edited it: {objection(view, run)}"


def kept_as_edited(view: RunView, run: HookRun, result: HookResult) -> HookResult:
    """What came of a hook that looked at what a person made of a call: it has no say in what that is, so
    the call is denied where the hook would have another input run."""
    updated, answer = result.updated_input, result.answer
    if updated is None or run.index is None or not view.calls[run.index].is_edited:
        return result
    if answer.decision != "deny" and updated != view.calls[run.index].input_to_run:
        answer = replace(answer, decision="deny", reason=_WOULD_CHANGE)
    return replace(result, answer=answer, updated_input=None)


def asks(view: RunView, call: Call) -> bool:
    """Whether a person is asked about a call because a hook wants it: no rule answers that."""
    return _asking(view, call) is not None


def objection(view: RunView, run: HookRun) -> str:
    """In one line, what a hook has against something."""
    answer = run.answer
    name = shorten(name_of(view.spec.hooks[run.hook]), _LONGEST_NAME)
    if answer is None or answer.outcome == "succeeded":
        verb = "asks" if answer is not None and answer.decision == "ask" else "objects"
        if answer is not None and answer.stops:
            verb = "stops the run"
    else:
        verb = "gave no answer"
    reason = shorten(answer.reason, _LONGEST_REASON) if answer is not None else ""
    return f"the {run.event} hook `{name}` {verb}{f': {reason}' if reason else ''}"


def tell_of_hooks(view: RunView) -> Step | None:
    """The message with what hooks have said since the last one; None when there is nothing to tell, or
    nobody to tell it: what is no objection holds up no end."""
    untold = [run for run in view.hook_runs if run.number > view.progress.hooked.told]
    texts = tuple(text for run in untold for text in _texts(view, run))
    if not texts or view.progress.stop is not None:
        return None
    if view.progress.submitted and not view.queued and not objects(view):
        return None
    return Record(UserMessageAdded(texts, "hook"))


def objects(view: RunView) -> bool:
    """Whether a hook has an objection that the model has not been told."""
    return any(
        run.answer is not None and run.answer.decision == "block" and run.event != "RunEnd"
        for run in view.hook_runs
        if run.number > view.progress.hooked.told
    )


def _texts(view: RunView, run: HookRun) -> Iterator[str]:
    answer = run.answer
    if answer is None or run.event == "RunEnd":
        return
    about = ""
    if run.index is not None:
        about = f" of call {run.index + 1} of the last turn"
    name = shorten(name_of(view.spec.hooks[run.hook]), _LONGEST_NAME)
    told = {"event": run.event, "name": name, "about": about}
    if answer.decision == "block":
        yield _OBJECTION.format(**told, text=answer.reason or "it gave no reason")
    if answer.context.strip():
        yield _CONTEXT.format(**told, text=answer.context)


def _said_before(view: RunView, call: Call) -> Iterator[tuple[HookRun, HookAnswer]]:
    """What hooks say of a call that is to be decided on, or has been edited since it was."""
    since = decided_at(view, call)
    for run in view.hook_runs:
        is_of_it = run.event == "PreToolUse" and run.index == call.index and run.number > since
        if is_of_it and run.answer is not None:
            yield run, run.answer


def _refusing(view: RunView, call: Call) -> HookRun | None:
    refusing = (run for run, answer in _said_before(view, call) if _denies(view, run, answer))
    return next(refusing, None)


def _denies(view: RunView, run: HookRun, answer: HookAnswer) -> bool:
    if answer.outcome == "succeeded":
        return answer.decision == "deny"
    return view.spec.hooks[run.hook].on_failure == "deny"


def _asking(view: RunView, call: Call) -> HookRun | None:
    asking = (run for run, answer in _said_before(view, call) if answer.decision == "ask")
    return next(asking, None)


def payload(view: RunView, run: HookRun, outcome: Ended | None = None) -> dict[str, Any]:
    """All that a hook is told but the folder that it runs in.

    Args:
        outcome: how the run is about to end, for RunEnd.
    """
    above = lineage(view.run_id)[:-1]
    told: dict[str, Any] = {
        "session_id": view.run_id,
        "hook_event_name": run.event,
        "item": item_of(view.run_id, view.item_key),
        "run": view.run_id,
        "root": above[0] if above else view.run_id,
        "parent": above[-1] if above else None,
        "depth": view.depth,
        "agent_type": view.agent_type,
        "turn": view.progress.turns,
    }
    if run.index is not None:
        told |= _call(view.calls[run.index])
    if outcome is not None:
        told |= {"state": outcome.state, "reason": outcome.reason, "detail": outcome.detail}
    return told


def _call(call: Call) -> dict[str, Any]:
    told = {"tool_name": call.name, "tool_input": call.input_to_run, "tool_use_id": call.id}
    if call.result is None:
        return told
    response = {
        "content": call.result["content"],
        "is_error": bool(call.result.get("is_error")),
        "outcome": call.outcome,
    }
    return told | {"tool_response": response}


_UNKNOWN = HookResult(HookAnswer("unknown", reason="its worker died while it ran"))


def continue_hook(view: RunView) -> Step | None:
    """The hook that has just been started, or the end of one that nobody comes back to. One of RunEnd is
    found where the run ends."""
    if (left := left_at_end(view)) is not None:
        return _gave_up(view, left)
    run = in_hand(view)
    if run is None or run.event == "RunEnd":
        return None
    return RunHook(run, payload(view, run))


def before_call(view: RunView, call: Call) -> Step | None:
    """The next PreToolUse hook of a call that the rules allow or ask about, and which is located; None
    when all that are about it have answered, or one of them denies it. Of one that a person has
    approved, those that look at what they made of it."""
    if not may_be_hooked(view, call) or refuses(view, call):
        return None
    since = decided_at(view, call)
    for place, hook in hooks_of(view.spec, "PreToolUse"):
        run = run_of(view, place, call.index, since=since)
        if run is None and not is_matched(hook, call):
            continue
        if (step := _next_of(view, place, hook, call.index, since=since)) is not None:
            return step
    return None


def after_calls(view: RunView) -> Step | None:
    """The next PostToolUse hook of the calls that have run, in the order of the calls and against that of
    the hooks. None while sub-agents are waited for: they change files of the same folder, which would be
    recorded half done, or taken back with what a hook that was cut off has left."""
    if view.awaits_children:
        return None
    hooks = [*hooks_of(view.spec, "PostToolUse")][::-1]
    ran = [call for call in view.calls if has_run(view, call)] if hooks else []
    if unlocated := tuple(call for call in ran if call.tool_context is None):
        return LocateCalls(unlocated)
    for call in ran:
        for place, hook in hooks:
            if run_of(view, place, call.index) is None and not is_matched(hook, call):
                continue
            if (step := _next_of(view, place, hook, call.index)) is not None:
                return step
    return None


def end_turn(view: RunView) -> Step | None:
    """What comes when all calls of the last reply have their results, and PostToolUse hooks are through:
    the TurnEnd hooks, then the end of the turn. None where the results end it."""
    if not end_turns(view.spec):
        return None
    for place, hook in hooks_of(view.spec, "TurnEnd"):
        if (step := _next_of(view, place, hook)) is not None:
            return step
    return Record(TurnEnded())


def start_run(view: RunView) -> Step | None:
    """The next RunStart hook, before the run's first model call; one that objects ends the run."""
    if view.progress.model_calls:
        return None
    since = view.progress.hooked.ended
    for place, hook in hooks_of(view.spec, "RunStart"):
        if (step := _next_of(view, place, hook, since=since)) is not None:
            return step
        run = run_of(view, place, since=since)
        if run is not None and run.answer is not None and run.answer.decision == "block":
            return settle(Ended("failed", "hook", objection(view, run)))
    return None


def stop_for_hook(view: RunView) -> Step | None:
    """The end of a run that a hook wants stopped."""
    for run in view.hook_runs:
        stops = run.answer is not None and run.answer.stops and run.event != "RunEnd"
        if stops and run.number > view.progress.hooked.ended:
            return settle(Ended("failed", "hook", objection(view, run)))
    return None


def end_run(view: RunView, outcome: Ended) -> Step | None:
    """The next RunEnd hook of a run that is about to end so; None when all have run."""
    since = view.progress.hooked.ended
    for place, hook in hooks_of(view.spec, "RunEnd"):
        run = run_of(view, place, since=since)
        if run is not None and run.answer is None and run.started_by == view.attempt:
            return RunHook(run, payload(view, run, outcome))
        if (step := _next_of(view, place, hook, since=since)) is not None:
            return leave(view) or step
    return None


def _next_of(
    view: RunView, place: int, hook: Hook, index: int | None = None, *, since: int = 0
) -> Step | None:
    """What is next of one hook; None when it has run. One that is in hand is not looked at here."""
    run = run_of(view, place, index, since=since)
    if run is None:
        number = view.progress.hooked.count + 1
        return Record(HookStarted(number, place, hook.event, index))
    if run.answer is not None:
        return None
    if hook.repeatable:
        return Record(HookStarted(run.number, place, hook.event, index))
    return _gave_up(view, run)


def _gave_up(view: RunView, run: HookRun) -> Step:
    """The end of a hook that was left in the middle. It may have changed files: the tree after it is the
    one that was found, but a RunEnd hook leaves none."""
    is_recorded = view.spec.is_recorded and run.event != "RunEnd" and not view.awaits_children
    return Record(HookFinished(run.number, _UNKNOWN, view.progress.tree if is_recorded else None))

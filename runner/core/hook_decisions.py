"""Which hook runs next, what hooks are told, and what follows from their answers.

The payload uses Claude Code's names where it has the same thing (https://code.claude.com/docs/en/hooks).
A hook that an attempt left unfinished runs again only if it is repeatable.
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
from runner.core.state import Call, RunState
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


def may_be_hooked(state: RunState, call: Call) -> bool:
    """Whether there can be hooks around a call at all."""
    tool = state.spec.tool(call.name)
    return tool is not None and tool.source not in _OWN_SOURCES


def has_run(state: RunState, call: Call) -> bool:
    """Whether a call has run and has its result, whatever that says."""
    started = call.started_by is not None and call.result is not None
    return started and call.outcome not in _NEVER_RAN and may_be_hooked(state, call)


def run_of(
    state: RunState, place: int, index: int | None = None, *, since: int = 0
) -> HookRun | None:
    """The newest run of a hook in this turn, about this call or none; of those after number ``since``."""
    for run in reversed(state.hooks.runs):
        if run.hook == place and run.index == index and run.number > since:
            return run
    return None


def decided_at(state: RunState, call: Call) -> int:
    """The number of the last hook that was started before a call was decided on, or a person was asked
    about it again; 0 while it is not decided on."""
    decided = state.hooks.decided
    return decided[call.index] if decided else 0


def in_hand(state: RunState) -> HookRun | None:
    """The hook that this attempt has started and that has not ended."""
    mine = (
        run for run in state.hooks.runs if run.answer is None and run.started_by == state.attempt
    )
    return next(mine, None)


def undoes_hook(state: RunState) -> bool:
    """Whether what a hook has changed that an earlier attempt left in the middle is put back: it is run
    again, or was one of RunEnd, which only look."""
    return any(
        run.event == "RunEnd"
        or (state.spec.hooks[run.hook].repeatable and not _looked_at_what_is_over(state, run))
        for run in _left_in_the_middle(state)
    )


def left_at_end(state: RunState) -> HookRun | None:
    """A hook that was left in the middle when the run was ended from outside, and that nothing waits for:
    the start and the end to come have their own, and its call does not run any more."""
    ended = state.hooks.ended
    return next(
        (
            run
            for run in _left_in_the_middle(state)
            if (run.event in ("RunStart", "RunEnd") and run.number <= ended)
            or _looked_at_what_is_over(state, run)
        ),
        None,
    )


def _looked_at_what_is_over(state: RunState, run: HookRun) -> bool:
    """Whether a hook was to say if a call may run that has its result, or gets one without running."""
    if run.event != "PreToolUse":
        return False
    return all(
        call.interrupted or call.result is not None
        for call in state.calls
        if call.index == run.index
    )


def _left_in_the_middle(state: RunState) -> Iterator[HookRun]:
    return (
        run for run in state.hooks.runs if run.answer is None and run.started_by != state.attempt
    )


def name_of(hook: Hook) -> str:
    """What a hook is called: its command or its function."""
    return hook.command or (hook.function or "").partition("@")[0]


_LONGEST_NAME = 100
_LONGEST_REASON = 1_000

_CONTEXT = "The {event} hook `{name}`{about} says:\n{text}"
_WOULD_CHANGE = "it would have another input run than the person who approved this call"
_OBJECTION = "The {event} hook `{name}`{about} objects:\n{text}"


def tightened(state: RunState, call: Call, decision: Decision) -> Decision:
    """The rules' decision on a call, or what its PreToolUse hooks make of it: never a looser one."""
    if decision.effect == "deny":
        return decision
    for run, answer in _said_before(state, call):
        if _denies(state, run, answer):
            return Decision("deny", (), decision.snapshot, objection(state, run))
    if (asking := _asking(state, call)) is None:
        return decision
    reason = objection(state, asking)
    if decision.effect == "ask":
        reason = "; ".join(filter(None, (decision.reason, reason)))
        return replace(decision, reason=reason)
    return Decision("ask", (), decision.snapshot, reason)


def refuses(state: RunState, call: Call) -> bool:
    """Whether one of the PreToolUse hooks of a call denies it, as it would run."""
    return _refusing(state, call) is not None


def refused_edit(state: RunState, call: Call) -> str | None:
    """Why a call does not run that a person has approved with another input; None while no hook is
    against that."""
    run = _refusing(state, call) if call.is_edited else None
    return None if run is None else f"denied as a person has edited it: {objection(state, run)}"


def kept_as_edited(state: RunState, run: HookRun, result: HookResult) -> HookResult:
    """What came of a hook that looked at what a person made of a call: it has no say in what that is, so
    the call is denied where the hook would have another input run."""
    updated, answer = result.updated_input, result.answer
    if updated is None or run.index is None or not state.calls[run.index].is_edited:
        return result
    if answer.decision != "deny" and updated != state.calls[run.index].input_to_run:
        answer = replace(answer, decision="deny", reason=_WOULD_CHANGE)
    return replace(result, answer=answer, updated_input=None)


def asks(state: RunState, call: Call) -> bool:
    """Whether a person is asked about a call because a hook wants it: no rule answers that."""
    return _asking(state, call) is not None


def objection(state: RunState, run: HookRun) -> str:
    """In one line, what a hook has against something."""
    answer = run.answer
    name = shorten(name_of(state.spec.hooks[run.hook]), _LONGEST_NAME)
    if answer is None or answer.outcome == "succeeded":
        verb = "asks" if answer is not None and answer.decision == "ask" else "objects"
        if answer is not None and answer.stops:
            verb = "stops the run"
    else:
        verb = "gave no answer"
    reason = shorten(answer.reason, _LONGEST_REASON) if answer is not None else ""
    return f"the {run.event} hook `{name}` {verb}{f': {reason}' if reason else ''}"


def tell_of_hooks(state: RunState) -> Step | None:
    """The message with what hooks have said since the last one; None when there is nothing to tell, or
    nobody to tell it: what is no objection holds up no end."""
    untold = [run for run in state.hooks.runs if run.number > state.hooks.told]
    texts = tuple(text for run in untold for text in _texts(state, run))
    if not texts or state.model.stop is not None:
        return None
    if state.ending.submitted and not state.inbox.messages and not objects(state):
        return None
    return Record(UserMessageAdded(texts, "hook"))


def objects(state: RunState) -> bool:
    """Whether a hook has an objection that the model has not been told."""
    return any(
        run.answer is not None and run.answer.decision == "block" and run.event != "RunEnd"
        for run in state.hooks.runs
        if run.number > state.hooks.told
    )


def _texts(state: RunState, run: HookRun) -> Iterator[str]:
    answer = run.answer
    if answer is None or run.event == "RunEnd":
        return
    about = ""
    if run.index is not None:
        about = f" of call {run.index + 1} of the last turn"
    name = shorten(name_of(state.spec.hooks[run.hook]), _LONGEST_NAME)
    told = {"event": run.event, "name": name, "about": about}
    if answer.decision == "block":
        yield _OBJECTION.format(**told, text=answer.reason or "it gave no reason")
    if answer.context.strip():
        yield _CONTEXT.format(**told, text=answer.context)


def _said_before(state: RunState, call: Call) -> Iterator[tuple[HookRun, HookAnswer]]:
    """What hooks say of a call that is to be decided on, or has been edited since it was."""
    since = decided_at(state, call)
    for run in state.hooks.runs:
        is_of_it = run.event == "PreToolUse" and run.index == call.index and run.number > since
        if is_of_it and run.answer is not None:
            yield run, run.answer


def _refusing(state: RunState, call: Call) -> HookRun | None:
    refusing = (run for run, answer in _said_before(state, call) if _denies(state, run, answer))
    return next(refusing, None)


def _denies(state: RunState, run: HookRun, answer: HookAnswer) -> bool:
    if answer.outcome == "succeeded":
        return answer.decision == "deny"
    return state.spec.hooks[run.hook].on_failure == "deny"


def _asking(state: RunState, call: Call) -> HookRun | None:
    asking = (run for run, answer in _said_before(state, call) if answer.decision == "ask")
    return next(asking, None)


def payload(state: RunState, run: HookRun, outcome: Ended | None = None) -> dict[str, Any]:
    """All that a hook is told but the folder that it runs in.

    Args:
        outcome: how the run is about to end, for RunEnd.
    """
    above = lineage(state.run_id)[:-1]
    told: dict[str, Any] = {
        "session_id": state.run_id,
        "hook_event_name": run.event,
        "item": item_of(state.run_id, state.item_key),
        "run": state.run_id,
        "root": above[0] if above else state.run_id,
        "parent": above[-1] if above else None,
        "depth": state.depth,
        "agent_type": state.agent_type,
        "turn": state.turns,
    }
    if run.index is not None:
        told |= _call(state.calls[run.index])
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


def continue_hook(state: RunState) -> Step | None:
    """The hook that has just been started, or the end of one that nobody comes back to. One of RunEnd is
    found where the run ends."""
    if (left := left_at_end(state)) is not None:
        return _gave_up(state, left)
    run = in_hand(state)
    if run is None or run.event == "RunEnd":
        return None
    return RunHook(run, payload(state, run))


def before_call(state: RunState, call: Call) -> Step | None:
    """The next PreToolUse hook of a call that the rules allow or ask about, and which is located; None
    when all that are about it have answered, or one of them denies it. Of one that a person has
    approved, those that look at what they made of it."""
    if not may_be_hooked(state, call) or refuses(state, call):
        return None
    since = decided_at(state, call)
    for place, hook in hooks_of(state.spec, "PreToolUse"):
        run = run_of(state, place, call.index, since=since)
        if run is None and not is_matched(hook, call):
            continue
        if (step := _next_of(state, place, hook, call.index, since=since)) is not None:
            return step
    return None


def after_calls(state: RunState) -> Step | None:
    """The next PostToolUse hook of the calls that have run, in the order of the calls and against that of
    the hooks. None while sub-agents are waited for: they change files of the same folder, which would be
    recorded half done, or taken back with what a hook that was cut off has left."""
    if state.awaits_children:
        return None
    hooks = [*hooks_of(state.spec, "PostToolUse")][::-1]
    ran = [call for call in state.calls if has_run(state, call)] if hooks else []
    if unlocated := tuple(call for call in ran if call.tool_context is None):
        return LocateCalls(unlocated)
    for call in ran:
        for place, hook in hooks:
            if run_of(state, place, call.index) is None and not is_matched(hook, call):
                continue
            if (step := _next_of(state, place, hook, call.index)) is not None:
                return step
    return None


def end_turn(state: RunState) -> Step | None:
    """What comes when all calls of the last reply have their results, and PostToolUse hooks are through:
    the TurnEnd hooks, then the end of the turn. None where the results end it."""
    if not end_turns(state.spec):
        return None
    for place, hook in hooks_of(state.spec, "TurnEnd"):
        if (step := _next_of(state, place, hook)) is not None:
            return step
    return Record(TurnEnded())


def start_run(state: RunState) -> Step | None:
    """The next RunStart hook, before the run's first model call; one that objects ends the run."""
    if state.model.calls:
        return None
    since = state.hooks.ended
    for place, hook in hooks_of(state.spec, "RunStart"):
        if (step := _next_of(state, place, hook, since=since)) is not None:
            return step
        run = run_of(state, place, since=since)
        if run is not None and run.answer is not None and run.answer.decision == "block":
            return settle(Ended("failed", "hook", objection(state, run)))
    return None


def stop_for_hook(state: RunState) -> Step | None:
    """The end of a run that a hook wants stopped."""
    for run in state.hooks.runs:
        stops = run.answer is not None and run.answer.stops and run.event != "RunEnd"
        if stops and run.number > state.hooks.ended:
            return settle(Ended("failed", "hook", objection(state, run)))
    return None


def end_run(state: RunState, outcome: Ended) -> Step | None:
    """The next RunEnd hook of a run that is about to end so; None when all have run."""
    since = state.hooks.ended
    for place, hook in hooks_of(state.spec, "RunEnd"):
        run = run_of(state, place, since=since)
        if run is not None and run.answer is None and run.started_by == state.attempt:
            return RunHook(run, payload(state, run, outcome))
        if (step := _next_of(state, place, hook, since=since)) is not None:
            return leave(state) or step
    return None


def _next_of(
    state: RunState, place: int, hook: Hook, index: int | None = None, *, since: int = 0
) -> Step | None:
    """What is next of one hook; None when it has run. One that is in hand is not looked at here."""
    run = run_of(state, place, index, since=since)
    if run is None:
        number = state.hooks.started + 1
        return Record(HookStarted(number, place, hook.event, index))
    if run.answer is not None:
        return None
    if hook.repeatable:
        return Record(HookStarted(run.number, place, hook.event, index))
    return _gave_up(state, run)


def _gave_up(state: RunState, run: HookRun) -> Step:
    """The end of a hook that was left in the middle. It may have changed files: the tree after it is the
    one that was found, but a RunEnd hook leaves none."""
    is_recorded = state.spec.is_recorded and run.event != "RunEnd" and not state.awaits_children
    return Record(HookFinished(run.number, _UNKNOWN, state.files.tree if is_recorded else None))

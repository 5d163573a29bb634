"""Which hook runs next, what hooks are told, and what follows from their answers.

The payload uses Claude Code's names where it has the same thing (https://code.claude.com/docs/en/hooks).
A hook that an attempt left unfinished runs again only if it is repeatable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from runner.core.agents import SPLIT_SOURCE, item_of, lineage
from runner.core.conversation import ToolOutcome
from runner.core.entries import HookFinished, HookStarted, TurnEnded
from runner.core.hooks import Hook, HookAnswer, HookEvent, HookResult, HookRun
from runner.core.run import Ended
from runner.core.spec import JobSpec
from runner.core.state import Call, RunState
from runner.core.steps import RunHook, Step, end, leave, locate, tell
from runner.core.text import shorten
from runner.core.workspace import RESULT_SOURCE
from runner.permissions import Decision, Effect, Request, Rule
from runner.permissions.decisions import any_rule_matches

# A call with one of these has not run: it was refused before, or as it was about to begin.
_NEVER_RAN: frozenset[ToolOutcome] = frozenset({"denied", "unknown_tool", "invalid_input"})
# Unknown tools, and those that are part of how a run goes on: nothing runs for them, and no rule is asked.
_NEVER_HOOKED = frozenset({"", RESULT_SOURCE, SPLIT_SOURCE})

_LONGEST_NAME = 100
_LONGEST_REASON = 1_000

_WOULD_CHANGE = "it would have another input run than the person who approved this call"
_UNKNOWN = HookResult(HookAnswer("unknown", reason="its worker died while it ran"))


def hooks_of(spec: JobSpec, event: HookEvent) -> Iterator[tuple[int, Hook]]:
    """The job's hooks of an event with their places among all, in order."""
    return ((place, hook) for place, hook in enumerate(spec.hooks) if hook.event == event)


def end_turns(spec: JobSpec) -> bool:
    """True if there are hooks to run once the calls of a turn have their results."""
    return any(hook.event in ("PostToolUse", "TurnEnd") for hook in spec.hooks)


def is_matched(hook: Hook, call: Call) -> bool:
    """True if a hook is about a call, which has been located, as it would run."""
    if not hook.matcher:
        return True
    if not isinstance(call.input_to_run, Mapping) or call.tool_context is None:
        return False
    rules = tuple(Rule("ask", text) for text in hook.matcher)
    return any_rule_matches(rules, Request(call.name, call.input_to_run, call.tool_context))


def has_run(state: RunState, call: Call) -> bool:
    """True if a call has run and has its result, whatever that says."""
    started = call.started_by is not None and call.result is not None
    is_hooked = state.spec.source_of(call.name) not in _NEVER_HOOKED
    return started and call.outcome not in _NEVER_RAN and is_hooked


def run_of(
    state: RunState, place: int, index: int | None = None, *, since: int = 0
) -> HookRun | None:
    """The newest run of a hook in this turn, about this call or none; of those after number ``since``."""
    runs = (run for run in reversed(state.hooks.runs) if run.number > since)
    return next((run for run in runs if (run.hook, run.index) == (place, index)), None)


def decided_at(state: RunState, call: Call) -> int:
    """The number of the last hook that was started before a call was decided on, or a person was asked
    about it again; 0 while it is not decided on."""
    decided = state.hooks.decided
    return decided[call.index] if decided else 0


def name_of(hook: Hook) -> str:
    """What a hook is called: its command or its function."""
    return hook.command or (hook.function or "").partition("@")[0]


def undoes_hook(state: RunState) -> bool:
    """True if what a hook has changed that an earlier attempt left in the middle is put back: it is run
    again, or was one of RunEnd, which only look."""
    return any(
        run.event == "RunEnd"
        or (state.spec.hooks[run.hook].repeatable and not _looked_at_what_is_over(state, run))
        for run in _left_in_the_middle(state)
    )


def _left_in_the_middle(state: RunState) -> Iterator[HookRun]:
    return (
        run for run in state.hooks.runs if run.answer is None and run.started_by != state.attempt
    )


def _looked_at_what_is_over(state: RunState, run: HookRun) -> bool:
    """True if a hook was to say if a call may run that has its result, or gets one without running."""
    calls = (call for call in state.calls if call.index == run.index)
    return run.event == "PreToolUse" and all(c.interrupted or c.result is not None for c in calls)


def tightened(state: RunState, call: Call, decision: Decision) -> Decision:
    """The rules' decision on a call, or what its PreToolUse hooks make of it: never a looser one."""
    effect, run = _objecting(state, call)
    if run is None or decision.effect == "deny":
        return decision
    reason = objection(state, run)
    if effect == decision.effect:
        return replace(decision, reason="; ".join(filter(None, (decision.reason, reason))))
    return Decision(effect, (), decision.snapshot, reason)


def refuses(state: RunState, call: Call) -> bool:
    """True if one of the PreToolUse hooks of a call denies it, as it would run."""
    return _objecting(state, call)[0] == "deny"


def refused_edit(state: RunState, call: Call) -> str | None:
    """Why a call does not run that a person has approved with another input; None if no hook objects."""
    effect, run = _objecting(state, call)
    if run is None or effect != "deny" or not call.is_edited:
        return None
    return f"denied as a person has edited it: {objection(state, run)}"


def asks(state: RunState, call: Call) -> bool:
    """True if a person is asked about a call because a hook wants it: no rule answers that."""
    return _objecting(state, call)[0] == "ask"


def _objecting(state: RunState, call: Call) -> tuple[Effect, HookRun | None]:
    """The first hook that denies a call that is to be decided on, or was edited since it was; or else the
    first that wants a person asked."""
    asking, since = None, decided_at(state, call)
    for run in state.hooks.runs:
        if run.event != "PreToolUse" or run.index != call.index:
            continue
        if run.number <= since or run.answer is None:
            continue
        denies = run.answer.decision == "deny"
        if run.answer.outcome != "succeeded":
            denies = state.spec.hooks[run.hook].on_failure == "deny"
        if denies:
            return "deny", run
        if run.answer.decision == "ask":
            asking = asking or run
    return ("ask" if asking is not None else "allow"), asking


def kept_as_edited(state: RunState, run: HookRun, result: HookResult) -> HookResult:
    """What came of a hook that looked at an edited call. It cannot change the input again: the call is
    denied where the hook would have another input run."""
    updated, answer = result.updated_input, result.answer
    if updated is None or run.index is None or not state.calls[run.index].is_edited:
        return result
    if answer.decision != "deny" and updated != state.calls[run.index].input_to_run:
        answer = replace(answer, decision="deny", reason=_WOULD_CHANGE)
    return replace(result, answer=answer, updated_input=None)


def objection(state: RunState, run: HookRun) -> str:
    """In one line, what a hook has against something."""
    answer, verb = run.said, "objects"
    if answer.outcome != "succeeded":
        verb = "gave no answer"
    elif answer.stops:
        verb = "stops the run"
    elif answer.decision == "ask":
        verb = "asks"
    name = shorten(name_of(state.spec.hooks[run.hook]), _LONGEST_NAME)
    reason = shorten(answer.reason, _LONGEST_REASON)
    return f"the {run.event} hook `{name}` {verb}{f': {reason}' if reason else ''}"


def tell_of_hooks(state: RunState) -> Step | None:
    """The message with what hooks have said since the last one; None when there is nothing to tell, or
    nobody to tell it: what is no objection holds up no end."""
    untold = [run for run in state.hooks.runs if run.number > state.hooks.told]
    texts = [text for run in untold for text in _texts(state, run)]
    if not texts or state.model.stop is not None:
        return None
    if state.ending.submitted and not state.inbox.messages and not objects(state):
        return None
    return tell("hook", *texts)


def objects(state: RunState) -> bool:
    """True if a hook has an objection that the model has not been told."""
    return any(
        run.said.decision == "block" and run.event != "RunEnd"
        for run in state.hooks.runs
        if run.number > state.hooks.told
    )


def _texts(state: RunState, run: HookRun) -> Iterator[str]:
    if run.event == "RunEnd":
        return
    about = "" if run.index is None else f" of call {run.index + 1} of the last turn"
    name = shorten(name_of(state.spec.hooks[run.hook]), _LONGEST_NAME)
    hook = f"The {run.event} hook `{name}`{about}"
    if run.said.decision == "block":
        yield f"{hook} objects:\n{run.said.reason or 'it gave no reason'}"
    if run.said.context.strip():
        yield f"{hook} says:\n{run.said.context}"


def payload(state: RunState, run: HookRun, outcome: Ended | None = None) -> dict[str, Any]:
    """All that a hook is told but the folder that it runs in. ``outcome``: how the run is about to end."""
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
        call = state.calls[run.index]
        told |= {"tool_name": call.name, "tool_input": call.input_to_run, "tool_use_id": call.id}
        if call.result is not None:
            told["tool_response"] = {
                "content": call.result["content"],
                "is_error": bool(call.result.get("is_error")),
                "outcome": call.outcome,
            }
    if outcome is not None:
        told |= {"state": outcome.state, "reason": outcome.reason, "detail": outcome.detail}
    return told


def continue_hook(state: RunState) -> Step | None:
    """The hook that has just been started, or the end of one that nobody comes back to: the run was ended
    from outside, and the start and the end to come have their own hooks, or the call does not run any
    more. A hook of RunEnd is found where the run ends."""
    for run in _left_in_the_middle(state):
        is_past = run.event in ("RunStart", "RunEnd") and run.number <= state.hooks.ended
        if is_past or _looked_at_what_is_over(state, run):
            return _gave_up(state, run)
    mine = _in_hand(state)
    return None if mine is None or mine.event == "RunEnd" else RunHook(mine, payload(state, mine))


def _in_hand(state: RunState) -> HookRun | None:
    """The hook that this attempt has started and that has not ended."""
    unanswered = (run for run in state.hooks.runs if run.answer is None)
    return next((run for run in unanswered if run.started_by == state.attempt), None)


def before_call(state: RunState, call: Call) -> Step | None:
    """The next PreToolUse hook of a located call that the rules allow or ask about; None when all that are
    about it have answered, or one denies it. After an approval: of those that look at what was approved."""
    if state.spec.source_of(call.name) in _NEVER_HOOKED or refuses(state, call):
        return None
    hooks = hooks_of(state.spec, "PreToolUse")
    return _next_of(state, hooks, call, since=decided_at(state, call))


def after_calls(state: RunState) -> Step | None:
    """The next PostToolUse hook of the calls that have run, in the order of the calls and against that of
    the hooks. None while sub-agents are waited for: they change files of the same folder, which would be
    recorded half done, or taken back with what a hook that was cut off has left."""
    hooks = [*hooks_of(state.spec, "PostToolUse")][::-1]
    if state.awaits_children or not hooks:
        return None
    ran = [call for call in state.calls if has_run(state, call)]
    steps = (_next_of(state, hooks, call) for call in ran)
    return locate(ran) or next((step for step in steps if step is not None), None)


def end_turn(state: RunState) -> Step | None:
    """The next TurnEnd hook, or the end of the turn; None where the last result ends it."""
    if not end_turns(state.spec):
        return None
    return _next_of(state, hooks_of(state.spec, "TurnEnd")) or TurnEnded()


def start_run(state: RunState) -> Step | None:
    """The next RunStart hook, before the run's first model call; one that objects ends the run."""
    if state.model.calls:
        return None
    since = state.hooks.ended
    for run in state.hooks.runs:
        if run.event == "RunStart" and run.number > since and run.said.decision == "block":
            return end("failed", "hook", objection(state, run))
    return _next_of(state, hooks_of(state.spec, "RunStart"), since=since)


def stop_for_hook(state: RunState) -> Step | None:
    """The end of a run that a hook wants stopped."""
    for run in state.hooks.runs:
        if run.said.stops and run.event != "RunEnd" and run.number > state.hooks.ended:
            return end("failed", "hook", objection(state, run))
    return None


def end_run(state: RunState, outcome: Ended) -> Step | None:
    """The next RunEnd hook of a run that is about to end so; None when all have run."""
    since, run = state.hooks.ended, _in_hand(state)
    if run is not None and run.event == "RunEnd" and run.number > since:
        return RunHook(run, payload(state, run, outcome))
    step = _next_of(state, hooks_of(state.spec, "RunEnd"), since=since)
    return None if step is None else leave(state) or step


def _next_of(
    state: RunState, hooks: Iterable[tuple[int, Hook]], call: Call | None = None, *, since: int = 0
) -> Step | None:
    """The next step of these hooks, about a call or none; None when all have run. ``continue_hook`` takes
    care of a hook in hand."""
    index = None if call is None else call.index
    for place, hook in hooks:
        run = run_of(state, place, index, since=since)
        if run is None and (call is None or is_matched(hook, call)):
            return HookStarted(state.hooks.started + 1, place, hook.event, index)
        if run is not None and run.answer is None:
            if hook.repeatable:
                return HookStarted(run.number, place, hook.event, index)
            return _gave_up(state, run)
    return None


def _gave_up(state: RunState, run: HookRun) -> Step:
    """The end of a hook that was left in the middle. It may have changed files: the snapshot after it is
    the one that was found, but a RunEnd hook leaves none."""
    is_recorded = state.spec.is_recorded and run.event != "RunEnd" and not state.awaits_children
    return HookFinished(run.number, _UNKNOWN, state.files.tree if is_recorded else None)

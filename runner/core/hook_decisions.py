"""Decisions about hooks: the next hook to run, its payload, and the effects of its answer.

The payload uses Claude Code's names where it has the same thing (https://code.claude.com/docs/en/hooks).
A hook that an attempt left unfinished runs again only if it is repeatable.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from runner.core.agents import SPLIT_SOURCE, item_of, lineage
from runner.core.conversation import Block, ToolOutcome
from runner.core.entries import HookFinished, HookStarted, TurnEnded
from runner.core.hooks import (
    UNUSABLE_INPUT,
    WITHHELD,
    Hook,
    HookAnswer,
    HookEvent,
    HookResult,
    HookRun,
    is_rule,
    name_pattern,
)
from runner.core.media import shown_text
from runner.core.run import Ended
from runner.core.spec import JobSpec
from runner.core.state import Call, RunState
from runner.core.steps import RunHook, Step, end, leave, locate, tell
from runner.core.text import plain, shorten
from runner.core.tool_responses import response_of
from runner.core.workspace import RESULT_SOURCE
from runner.permissions import Decision, Effect, Request, Rule, ToolContext
from runner.permissions.decisions import any_rule_matches
from runner.permissions.modes import permission_mode
from runner.permissions.rules import READING, WRITING

# Outcomes of calls that have not run: refused earlier, or at their start.
_NEVER_RAN: frozenset[ToolOutcome] = frozenset({"denied", "unknown_tool", "invalid_input"})
# Unknown tools, and tools that control the run: nothing runs for them, and no rule applies.
_NEVER_HOOKED = frozenset({"", RESULT_SOURCE, SPLIT_SOURCE})

_LONGEST_NAME = 100
_LONGEST_REASON = 1_000

# The first line of a result is about the change of its call's input; it ends like this.
EDIT_TOLD = "What follows is of that.\n\n"
_WOULD_CHANGE = "it would have another input run than the person who approved this call"
_UNKNOWN = HookAnswer("unknown", reason="its worker died while it ran")


def hooks_of(spec: JobSpec, event: HookEvent) -> Iterator[tuple[int, Hook]]:
    """The job's hooks of an event with their places among all, in order."""
    return ((place, hook) for place, hook in enumerate(spec.hooks) if hook.event == event)


def end_turns(spec: JobSpec) -> bool:
    """True if the job has hooks that run after the results of a turn."""
    return any(hook.event in ("PostToolUse", "TurnEnd") for hook in spec.hooks)


def is_matched(hook: Hook, call: Call) -> bool:
    """True if a hook matches a located call with its current input."""
    return all(_is_one_of(call, matchers) for matchers in (hook.matcher, hook.condition))


def _is_one_of(call: Call, matchers: tuple[str, ...]) -> bool:
    """True if one of these matchers matches a call, or there are none."""
    if not matchers:
        return True
    rules = tuple(Rule("ask", text) for text in matchers if is_rule(text))
    if any(name_pattern(text).search(call.name) for text in matchers if not is_rule(text)):
        return True
    if not isinstance(call.input_to_run, Mapping) or call.tool_context is None:
        return False
    return any_rule_matches(rules, Request(call.name, call.input_to_run, call.tool_context))


def has_run(state: RunState, call: Call) -> bool:
    """True if a call has run and has its result, whatever that says."""
    started = call.started_by is not None and call.result is not None
    is_hooked = state.spec.source_of(call.name) not in _NEVER_HOOKED
    return started and call.outcome not in _NEVER_RAN and is_hooked


def run_of(
    state: RunState, place: int, index: int | None = None, *, since: int = 0
) -> HookRun | None:
    """Return the newest run of a hook in this turn after ``since``, about this call or none."""
    runs = (run for run in reversed(state.hooks.runs) if run.number > since)
    return next((run for run in runs if (run.hook, run.index) == (place, index)), None)


def decided_at(state: RunState, call: Call) -> int:
    """Return the number of the last hook before a call was decided or asked about, or 0."""
    decided = state.hooks.decided
    return decided[call.index] if decided else 0


def undoes_hook(state: RunState) -> bool:
    """True if an unfinished hook's changes are undone: it runs again, or is a RunEnd hook."""
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
    """True if a hook was to decide on a call that has its result, or gets one without running."""
    calls = (call for call in state.calls if call.index == run.index)
    return run.event == "PreToolUse" and all(c.interrupted or c.result is not None for c in calls)


def tightened(state: RunState, call: Call, decision: Decision) -> Decision:
    """Return the decision of the rules on a call, tightened by its PreToolUse hooks."""
    effect, run = _objecting(state, call)
    if run is None or decision.effect == "deny":
        return decision
    reason = objection(state, run)
    if effect == decision.effect:
        return replace(decision, reason="; ".join(filter(None, (decision.reason, reason))))
    return Decision(effect, (), decision.snapshot, reason)


def refuses(state: RunState, call: Call) -> bool:
    """True if one of a call's PreToolUse hooks denies it with its current input."""
    return _objecting(state, call)[0] == "deny"


def refused_edit(state: RunState, call: Call) -> str | None:
    """Return why a call that a person edited and approved does not run; None if no hook objects."""
    effect, run = _objecting(state, call)
    if run is None or effect != "deny" or not call.is_edited:
        return None
    return f"denied as a person has edited it: {objection(state, run)}"


def asks(state: RunState, call: Call) -> bool:
    """True if a hook wants a person asked about a call; no rule can answer that."""
    return _objecting(state, call)[0] == "ask"


def _objecting(state: RunState, call: Call) -> tuple[Effect, HookRun | None]:
    """Return the first hook that denies an undecided or edited call, else the first that asks."""
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
    """Return a hook's result on an edited call: a hook that edits it again denies it."""
    updated, answer = result.updated_input, result.answer
    if updated is None or run.index is None or not state.calls[run.index].is_edited:
        return result
    if answer.decision != "deny" and updated != state.calls[run.index].input_to_run:
        answer = replace(answer, decision="deny", reason=_WOULD_CHANGE)
    return replace(result, answer=answer, updated_input=None)


def with_unusable_input(result: HookResult, problem: str) -> HookResult:
    """Return the result of a hook whose changed input does not fit the tool: it has failed."""
    sent = json.dumps(result.updated_input, ensure_ascii=False)
    reason = f"{UNUSABLE_INPUT}usable: {problem}; it sent {shorten(sent, _LONGEST_REASON)}"
    return replace(result, answer=HookAnswer("failed", reason=reason), updated_input=None)


def objection(state: RunState, run: HookRun) -> str:
    """Return a hook's objection in one line, for the model too."""
    answer, verb = run.said, "objects"
    if answer.outcome != "succeeded":
        verb = "gave no answer"
    elif answer.stops:
        verb = "stops the run"
    elif answer.decision == "ask":
        verb = "asks"
    name = shorten(state.spec.hooks[run.hook].name, _LONGEST_NAME)
    reason = shorten(answer.reason, _LONGEST_REASON)
    if answer.outcome == "failed" and reason.startswith(UNUSABLE_INPUT):
        reason = "its updatedInput cannot be used"
    return f"the {run.event} hook `{name}` {verb}{f': {reason}' if reason else ''}"


def tell_of_hooks(state: RunState) -> Step | None:
    """Return the message with hooks' texts since the last one; None without any, or if the run ends
    and there is no objection."""
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
    name = shorten(state.spec.hooks[run.hook].name, _LONGEST_NAME)
    hook = f"The {run.event} hook `{name}`{about}"
    if run.said.decision == "block":
        yield f"{hook} objects:\n{run.said.reason or 'it gave no reason'}"
    if run.said.context.strip():
        yield f"{hook} says:\n{run.said.context}"


def payload(state: RunState, run: HookRun, outcome: Ended | None = None) -> dict[str, Any]:
    """Return a hook's payload without its folder. ``outcome``: the coming end of the run."""
    above = lineage(state.run_id)[:-1]
    told: dict[str, Any] = {
        "session_id": state.run_id,
        "hook_event_name": run.event,
        "permission_mode": permission_mode(state.policy),
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
            told["tool_response"] = _response(state, call, call.result)
    if outcome is not None:
        told |= {"state": outcome.state, "reason": outcome.reason, "detail": outcome.detail}
    return told


def replaced(call: Call, text: str) -> tuple[Block, str]:
    """Return a call's result with another text, and the original text, which any database can store. A
    note about a changed input stays at the beginning."""
    assert call.result is not None, "a hook looks at a call that has its result"
    content = shown_text(call.result["content"])
    told = "".join(content.partition(EDIT_TOLD)[:2]) if call.input_to_run != call.input else ""
    original = plain(content) if call.original is None else call.original
    return {**call.result, "content": told + text}, original


def in_folder(told: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return a payload with absolute paths where the model gave relative ones: Claude Code's file tools
    take no others, and scripts look for ``/tests/`` in them."""

    def absolute(given: Any, name: str) -> Any:
        if not isinstance(given, Mapping) or not isinstance(given.get(name), str):
            return given
        return {**given, name: posixpath.join(folder, given[name])}

    if told.get("tool_name") not in READING | WRITING:
        return dict(told)
    given = absolute(absolute(told["tool_input"], "file_path"), "path")
    changed = {"tool_input": given}
    if "tool_response" in told:
        response = absolute(told["tool_response"], "filePath")
        file = absolute(response.get("file"), "filePath")
        changed["tool_response"] = response | ({"file": file} if file else {})
    return {**told, **changed}


def _response(state: RunState, call: Call, result: Block) -> dict[str, Any]:
    """Return the result of a call: Runner's fields, and Claude Code's where the tool is one of its."""
    content = shown_text(result["content"])
    if call.input_to_run != call.input:  # the model is told of the change first
        content = content.partition(EDIT_TOLD)[2] or content
    told = {"content": content, "is_error": bool(result.get("is_error")), "outcome": call.outcome}
    tool, given = state.spec.tool(call.name), call.input_to_run
    shape = response_of(tool, given, content, call.outcome, call.details)
    return told | (shape or {})


def continue_hook(state: RunState) -> Step | None:
    """Return the step for a hook in hand: run it, or end it because it no longer matters: the run
    was ended from outside, or the call does not run any more. ``end_run`` handles hooks of
    RunEnd."""
    for run in _left_in_the_middle(state):
        is_past = run.event in ("RunStart", "RunEnd") and run.number <= state.hooks.ended
        if is_past or _looked_at_what_is_over(state, run):
            return _gave_up(state, run)
    mine = _in_hand(state)
    return None if mine is None or mine.event == "RunEnd" else RunHook(mine, payload(state, mine))


def _in_hand(state: RunState) -> HookRun | None:
    unanswered = (run for run in state.hooks.runs if run.answer is None)
    return next((run for run in unanswered if run.started_by == state.attempt), None)


def before_call(state: RunState, call: Call) -> Step | None:
    """Return the next PreToolUse hook of a located call that the rules allow or ask about; None if
    all have answered or one denies it. After an approval, only hooks that check the approved
    input."""
    if state.spec.source_of(call.name) in _NEVER_HOOKED or refuses(state, call):
        return None
    hooks = hooks_of(state.spec, "PreToolUse")
    return _next_of(state, hooks, call, since=decided_at(state, call))


def after_calls(state: RunState) -> Step | None:
    """Return the next PostToolUse hook, by call and then in reverse order of the hooks. None while
    the run waits for sub-agents: their half-done changes in the same folder would be recorded, or
    undone with a hook that was cut off."""
    hooks = [*hooks_of(state.spec, "PostToolUse")][::-1]
    if state.awaits_children or not hooks:
        return None
    ran = [call for call in state.calls if has_run(state, call)]
    steps = (_next_of(state, hooks, call) for call in ran)
    return locate(ran) or next((step for step in steps if step is not None), None)


def awaits_hook(state: RunState, call: Call) -> bool:
    """True if a call has its result and a PostToolUse hook is still to see it: if a sub-agent has ended
    while others work. Other calls do not run beside them, so no place of theirs is looked at."""
    if not has_run(state, call):
        return False
    located = replace(call, tool_context=call.tool_context or ToolContext())
    matching = (
        run_of(state, place, call.index)
        for place, hook in hooks_of(state.spec, "PostToolUse")
        if is_matched(hook, located)
    )
    return any(run is None or run.answer is None for run in matching)


def end_turn(state: RunState) -> Step | None:
    """Return the next TurnEnd hook or the end of the turn; None if the last result ends it."""
    if not end_turns(state.spec):
        return None
    return _next_of(state, hooks_of(state.spec, "TurnEnd")) or TurnEnded()


def start_run(state: RunState) -> Step | None:
    """Return the next RunStart hook before the first model call; an objection ends the run."""
    if state.model.calls:
        return None
    since = state.hooks.ended
    for run in state.hooks.runs:
        if run.event == "RunStart" and run.number > since and run.said.decision == "block":
            return end("failed", "hook", objection(state, run))
    return _next_of(state, hooks_of(state.spec, "RunStart"), since=since)


def stop_for_hook(state: RunState) -> Step | None:
    """Return the end of a run that a hook stops."""
    for run in state.hooks.runs:
        if run.said.stops and run.event != "RunEnd" and run.number > state.hooks.ended:
            return end("failed", "hook", objection(state, run))
    return None


def end_run(state: RunState, outcome: Ended) -> Step | None:
    """Return the next RunEnd hook of a run about to end; None if all have run."""
    since, run = state.hooks.ended, _in_hand(state)
    if run is not None and run.event == "RunEnd" and run.number > since:
        return RunHook(run, payload(state, run, outcome))
    step = _next_of(state, hooks_of(state.spec, "RunEnd"), since=since)
    return None if step is None else leave(state) or step


def _next_of(
    state: RunState, hooks: Iterable[tuple[int, Hook]], call: Call | None = None, *, since: int = 0
) -> Step | None:
    """Return the next step of these hooks; None if all have run. None of them is in hand."""
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
    """Return the end of an unfinished hook. It may have changed files: the snapshot after it is the
    one found, except for RunEnd hooks."""
    is_recorded = state.spec.is_recorded and run.event != "RunEnd" and not state.awaits_children
    shown = WITHHELD if run.event == "PostToolUse" else None
    result = HookResult(_UNKNOWN, updated_output=shown)
    return HookFinished(run.number, result, state.files.tree if is_recorded else None)

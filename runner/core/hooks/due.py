"""Which hook is next: each runs once, and what an attempt left in the middle is not run again unless
it may be."""

from __future__ import annotations

from runner.core.hooks.hook import Hook
from runner.core.hooks.lookup import (
    decided_at,
    end_turns,
    has_run,
    hooks_of,
    in_hand,
    is_matched,
    left_at_end,
    may_be_hooked,
    run_of,
)
from runner.core.hooks.payload import payload
from runner.core.hooks.run import HookAnswer, HookResult, HookRun
from runner.core.hooks.verdict import objection, refuses
from runner.core.journal.entries import HookFinished, HookStarted, TurnEnded
from runner.core.journal.view import Call, RunView
from runner.core.run import Ended
from runner.core.steps import LocateCalls, Record, RunHook, Step, leave, settle

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

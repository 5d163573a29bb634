"""Which of a job's hooks there are, what has run of them, and which calls they are about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from runner.core.agents.agent import SPLIT_SOURCE
from runner.core.conversation import ToolOutcome
from runner.core.ending.result import RESULT_SOURCE
from runner.core.hooks.hook import Hook, HookEvent
from runner.core.hooks.run import HookRun
from runner.core.journal.view import Call, RunView
from runner.core.spec import JobSpec
from runner.permissions import Request, Rule
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

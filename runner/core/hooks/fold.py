"""How a run changes with what is recorded of its hooks and of its workspace's instructions."""

from __future__ import annotations

from dataclasses import replace

from runner.core.context.window import estimate_text
from runner.core.conversation import CUT_REASONS, Message, text_bytes
from runner.core.files.instructions import with_instructions
from runner.core.hooks.lookup import decided_at, hooks_of
from runner.core.hooks.run import HookRun
from runner.core.journal.entries import (
    CallsDecided,
    HookFinished,
    HookStarted,
    InstructionsRead,
    OutcomeAsked,
    TurnEnded,
    UserMessageAdded,
)
from runner.core.journal.view import Progress, RunView


def after(
    view: RunView, entry: HookStarted | HookFinished | TurnEnded | InstructionsRead
) -> RunView:
    """The view after one entry."""
    match entry:
        case HookStarted():
            return _started(view, entry)
        case HookFinished():
            return _finished(view, entry)
        case TurnEnded():
            return joined(view)
        case InstructionsRead():
            return _instructed(view, entry)


def joined(view: RunView) -> RunView:
    """With the results of the last reply's calls in the conversation: all have theirs."""
    progress = view.progress
    results = tuple(call.result for call in view.calls if call.result is not None)
    answered = progress.stop is not None and progress.stop.reason not in CUT_REASONS
    return replace(
        view,
        calls=(),
        children=(),
        messages=(*view.messages, Message("user", results)),
        progress=replace(
            progress,
            stop=None if answered else progress.stop,
            hooked=replace(progress.hooked, closed=progress.turns),
        ),
    )


def decided(view: RunView, entry: CallsDecided | OutcomeAsked) -> RunView:
    """After a decision that is of the hooks so far: those that follow look at what a person makes of the
    call."""
    if not any(hooks_of(view.spec, "PreToolUse")):
        return view
    indexes = entry.decisions if isinstance(entry, CallsDecided) else (entry.index,)
    hooked = view.progress.hooked
    at = (hooked.count if call.index in indexes else decided_at(view, call) for call in view.calls)
    return replace(view, progress=replace(view.progress, hooked=replace(hooked, decided=tuple(at))))


def told(progress: Progress, entry: UserMessageAdded) -> Progress:
    """The progress after a message that may tell what hooks have said so far."""
    if entry.cause != "hook":
        return progress
    return replace(progress, hooked=replace(progress.hooked, told=progress.hooked.count))


def _started(view: RunView, entry: HookStarted) -> RunView:
    """One that was started before begins again under its number."""
    run = HookRun(entry.number, entry.hook, entry.event, entry.index, view.attempt)
    before = tuple(other for other in view.hook_runs if other.number != entry.number)
    runs = tuple(sorted((*before, run), key=lambda one: one.number))
    hooked = view.progress.hooked
    hooked = replace(hooked, count=max(hooked.count, entry.number))
    return replace(view, hook_runs=runs, progress=replace(view.progress, hooked=hooked))


def _finished(view: RunView, entry: HookFinished) -> RunView:
    result = entry.result
    runs = tuple(
        replace(run, answer=result.answer) if run.number == entry.number else run
        for run in view.hook_runs
    )
    (run,) = (run for run in runs if run.number == entry.number)
    if entry.tree is not None:
        view = replace(view, progress=replace(view.progress, tree=entry.tree))
    if result.updated_input is None:
        return replace(view, hook_runs=runs)
    # Where the call leads with another input is to be looked up before it is decided on.
    calls = tuple(
        replace(call, updated_input=result.updated_input, tool_context=None)
        if call.index == run.index
        else call
        for call in view.calls
    )
    return replace(view, hook_runs=runs, calls=calls)


def _instructed(view: RunView, entry: InstructionsRead) -> RunView:
    """What the system prompt goes on with is counted as all that is sent."""
    system = with_instructions(view.spec.system, entry.files)
    before, after = view.spec.system or "", system or ""
    progress, per_token = view.progress, view.spec.context.chars_per_token
    tokens = estimate_text(after, per_token) - estimate_text(before, per_token)
    progress = replace(
        progress,
        instructed=True,
        appended_bytes=progress.appended_bytes + text_bytes(after) - text_bytes(before),
        fullness=replace(progress.fullness, sent=progress.fullness.sent + tokens),
    )
    return replace(view, spec=replace(view.spec, system=system), progress=progress)

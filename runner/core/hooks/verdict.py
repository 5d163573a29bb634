"""What hooks said, put together: whether a call may run, and what the model is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from runner.core.hooks.lookup import decided_at, name_of
from runner.core.hooks.run import HookAnswer, HookResult, HookRun
from runner.core.journal.entries import UserMessageAdded
from runner.core.journal.view import Call, RunView
from runner.core.steps import Record, Step
from runner.core.text.plain import shorten
from runner.permissions import Decision

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

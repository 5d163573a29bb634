"""How a run that has done its work comes to its end: its result is there, it is verified, what it
leaves is committed."""

from __future__ import annotations

from runner.core.agents.split import split_first
from runner.core.ending.verify import Verification
from runner.core.hooks.due import end_run
from runner.core.journal.entries import RunSettled, UserMessageAdded, VerificationStarted
from runner.core.journal.view import RunView
from runner.core.run import Ended, Requeued, Waiting
from runner.core.steps import Deliver, Record, RunHook, RunVerify, Step, settle
from runner.core.text.prompts import RESULT_TEXT, VERIFY_TEXT

MOST_RESULT_NUDGES = 2


def finish(view: RunView, reason: str, now: float, *, draining: bool) -> Step:
    """The next step of a run whose agent says that it is done.

    Args:
        reason: of the end, if nothing stands in its way.
        now: seconds since the epoch. draining: the worker is shutting down.
    """
    if (step := split_first(view, now)) is not None:
        return step
    if view.spec.result_tool is not None and not view.progress.submitted:
        return _ask_for_result(view)
    if (step := _verify(view, now, draining=draining)) is not None:
        return step
    return settle(Ended("succeeded", reason))


def deliver_first(view: RunView, step: Step, now: float, *, draining: bool) -> Step:
    """``step``, or what comes before it: a run that ends on a branch of its own ends with a commit, and
    last of all come the hooks of its end."""
    match step:
        case Record(RunSettled(Ended() as outcome)):
            workspace = view.spec.workspace
            if workspace is not None and workspace.mode == "git" and not view.progress.delivered:
                return settle(Requeued(now, "shutdown")) if draining else Deliver(outcome)
            return _hooks_first(view, step, outcome, now, draining=draining)
        case _:
            return step


def _hooks_first(view: RunView, step: Step, outcome: Ended, now: float, *, draining: bool) -> Step:
    hook = end_run(view, outcome)
    if hook is None or isinstance(hook, RunHook):
        return hook or step
    return leave(view, now, draining=draining) or hook


def leave(view: RunView, now: float, *, draining: bool) -> Step | None:
    """The step that ends the attempt at this boundary, when someone wants it to."""
    if view.pause_requested:
        return settle(Waiting("paused"))
    return settle(Requeued(now, "shutdown")) if draining else None


def _ask_for_result(view: RunView) -> Step:
    if view.progress.result_nudges >= MOST_RESULT_NUDGES:
        detail = f"the model was asked {MOST_RESULT_NUDGES} times for its result and gave none"
        return settle(Ended("failed", "no_result", detail))
    return Record(UserMessageAdded((RESULT_TEXT,), "result"))


def _verify(view: RunView, now: float, *, draining: bool) -> Step | None:
    verify = view.spec.verify
    if verify is None:
        return None
    verification = _current(view)
    if verification is None or verification.passed is None:
        if (step := leave(view, now, draining=draining)) is not None:
            return step
        if verification is not None:
            return RunVerify(verification.number)
        before = view.progress.verification
        return Record(VerificationStarted(before.number + 1 if before else 1))
    if verification.passed:
        return None
    if verify.on_failure == "fail" or view.progress.verify_failures >= verify.rounds:
        return settle(Ended("failed", "verify", f"`{verification.command}` failed"))
    text = VERIFY_TEXT.format(command=verification.command, output=verification.output)
    return Record(UserMessageAdded((text,), "verify"))


def _current(view: RunView) -> Verification | None:
    """The verification of the run as it stands; None when there was none since its last turn, or when
    someone has changed the workspace since."""
    progress = view.progress
    verification = progress.verification
    if verification is None or not verification.is_of(progress.turns, progress.tree):
        return None
    return verification

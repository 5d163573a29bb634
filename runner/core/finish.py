"""How a run that has done its work comes to its end: its result is there, it is verified, what it
leaves is committed.
"""

from __future__ import annotations

from runner.core.children import split_first
from runner.core.entries import UserMessageAdded, VerificationStarted
from runner.core.run import Ended, Requeued
from runner.core.state import RunView
from runner.core.steps import Deliver, Record, RunVerify, Step, leave, settle
from runner.core.text import RESULT_TEXT, VERIFY_TEXT
from runner.core.workspace import Verification

MOST_RESULT_NUDGES = 2


def finish(view: RunView, reason: str) -> Step:
    """The next step of a run whose agent says that it is done.

    Args:
        reason: of the end, if nothing stands in its way.
    """
    return (
        split_first(view)
        or _ask_for_result(view)
        or _verify(view)
        or settle(Ended("succeeded", reason))
    )


def deliver(view: RunView, outcome: Ended) -> Step | None:
    """The commit on the run's own branch, which comes before its end; None when there is none to make."""
    workspace = view.spec.workspace
    if workspace is None or workspace.mode != "git" or view.progress.delivered:
        return None
    return settle(Requeued(view.now, "shutdown")) if view.draining else Deliver(outcome)


def _ask_for_result(view: RunView) -> Step | None:
    if view.spec.result_tool is None or view.progress.submitted:
        return None
    if view.progress.result_nudges >= MOST_RESULT_NUDGES:
        detail = f"the model was asked {MOST_RESULT_NUDGES} times for its result and gave none"
        return settle(Ended("failed", "no_result", detail))
    return Record(UserMessageAdded((RESULT_TEXT,), "result"))


def _verify(view: RunView) -> Step | None:
    verify = view.spec.verify
    if verify is None:
        return None
    verification = _current(view)
    if verification is None or verification.passed is None:
        if (step := leave(view)) is not None:
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

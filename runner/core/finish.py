"""What comes before a run succeeds: its result, its verification, the commit of its files."""

from __future__ import annotations

from runner.core.children import split_first
from runner.core.entries import UserMessageAdded, VerificationStarted
from runner.core.run import Ended, Requeued
from runner.core.state import RunState
from runner.core.steps import Deliver, Record, RunVerify, Step, leave, settle
from runner.core.text import RESULT_TEXT, VERIFY_TEXT
from runner.core.workspace import Verification

MOST_RESULT_NUDGES = 2


def finish(state: RunState, reason: str) -> Step:
    """The next step of a run whose agent says that it is done.

    Args:
        reason: of the end, if nothing stands in its way.
    """
    return (
        split_first(state)
        or _ask_for_result(state)
        or _verify(state)
        or settle(Ended("succeeded", reason))
    )


def deliver(state: RunState, outcome: Ended) -> Step | None:
    """The commit on the run's own branch, which comes before its end; None when there is none to make."""
    workspace = state.spec.workspace
    if workspace is None or workspace.mode != "git" or state.ending.delivered:
        return None
    return settle(Requeued(state.now, "shutdown")) if state.draining else Deliver(outcome)


def _ask_for_result(state: RunState) -> Step | None:
    if state.spec.result_tool is None or state.ending.submitted:
        return None
    if state.ending.result_nudges >= MOST_RESULT_NUDGES:
        detail = f"the model was asked {MOST_RESULT_NUDGES} times for its result and gave none"
        return settle(Ended("failed", "no_result", detail))
    return Record(UserMessageAdded((RESULT_TEXT,), "result"))


def _verify(state: RunState) -> Step | None:
    verify = state.spec.verify
    if verify is None:
        return None
    verification = _current(state)
    if verification is None or verification.passed is None:
        if (step := leave(state)) is not None:
            return step
        if verification is not None:
            return RunVerify(verification.number)
        before = state.ending.verification
        return Record(VerificationStarted(before.number + 1 if before else 1))
    if verification.passed:
        return None
    if verify.on_failure == "fail" or state.ending.verify_failures >= verify.rounds:
        return settle(Ended("failed", "verify", f"`{verification.command}` failed"))
    text = VERIFY_TEXT.format(command=verification.command, output=verification.output)
    return Record(UserMessageAdded((text,), "verify"))


def _current(state: RunState) -> Verification | None:
    """The verification of the run as it stands; None when there was none since its last turn, or when
    someone has changed the workspace since."""
    verification = state.ending.verification
    if verification is None or not verification.is_of(state.turns, state.files.tree):
        return None
    return verification

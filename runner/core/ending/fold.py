"""How a run's progress changes with what is recorded of its workspace and of its end."""

from __future__ import annotations

from dataclasses import replace

from runner.core.ending.verify import Verification
from runner.core.journal.entries import (
    Delivered,
    TreeRecorded,
    UserMessageAdded,
    VerificationStarted,
    Verified,
)
from runner.core.journal.view import Progress


def after(
    progress: Progress, entry: TreeRecorded | VerificationStarted | Verified | Delivered
) -> Progress:
    """The progress after one entry."""
    match entry:
        case TreeRecorded(tree):
            delivered = progress.delivered if tree == progress.tree else None
            return replace(progress, tree=tree, delivered=delivered)
        case VerificationStarted(number):
            verification = Verification(number, progress.turns, tree=progress.tree)
            return replace(progress, verification=verification)
        case Verified():
            return replace(progress, verification=_verified(progress, entry))
        case Delivered(commit):
            return replace(progress, delivered=commit)


def answered(progress: Progress, message: UserMessageAdded) -> Progress:
    """The progress after the model is told more: it has not ended. What it was told of a verification
    is in the conversation now."""
    told = message.cause == "verify"
    verification = progress.verification
    return replace(
        progress,
        submitted=False,
        delivered=None,
        result_nudges=progress.result_nudges + (message.cause == "result"),
        verify_failures=progress.verify_failures + told,
        verification=replace(verification, output="") if verification else None,
    )


def _verified(progress: Progress, entry: Verified) -> Verification:
    begun = progress.verification
    assert begun is not None, "a verification has begun before it ends"
    if not entry.result.is_error:
        return replace(begun, passed=True)
    return replace(begun, passed=False, command=entry.command, output=entry.result.content)

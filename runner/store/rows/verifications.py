"""Verifications as rows: when each began, of what, and what it gave."""

from __future__ import annotations

import zlib
from typing import Any

from runner.core.journal.entries import VerificationStarted, Verified
from runner.core.journal.view import RunView
from runner.core.text.plain import visible


def started_row(
    view: RunView, entry: VerificationStarted, attempt: int, now: float
) -> dict[str, Any]:
    """A verification as it begins. ``now`` is in seconds since the epoch."""
    return {
        "run_id": view.run_id,
        "number": entry.number,
        "turn": view.progress.turns,
        "tree": view.progress.tree,
        "attempt": attempt,
        "started_at": now,
    }


def verified_changes(entry: Verified, attempt: int, now: float) -> dict[str, Any]:
    """What its end changes in its row: the attempt is the one that saw it end."""
    result = entry.result
    changes: dict[str, Any] = {
        "attempt": attempt,
        "ended_at": now,
        "duration": result.duration,
        "outcome": result.outcome,
        "command": visible(entry.command),
        "content": result.content,
    }
    if result.output is not None:
        changes |= {"size": len(result.output), "compressed": zlib.compress(result.output)}
    return changes

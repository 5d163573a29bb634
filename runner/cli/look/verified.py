"""What a verification said, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.cli.display import duration, first_line

if TYPE_CHECKING:
    from runner.store.look.verifications import Verified


def verdict(verification: Verified | None) -> str:
    """``passed``, ``failed``, ``not ended``; nothing without one."""
    if verification is None:
        return ""
    if verification["ended_at"] is None:
        return "not ended"
    return "passed" if verification["outcome"] == "succeeded" else "failed"


def verified(verification: Verified) -> str:
    """The verdict with what failed and how long that took: ``failed: `pytest -q`, 2.1s``."""
    said, outcome = verdict(verification), verification["outcome"]
    if said == "failed":
        how = f" {outcome}" if outcome != "failed" else ""
        said += f": `{first_line(verification['command'] or '')}`{how}"
    took = duration(verification["duration"])
    return f"{said}, {took}" if took else said

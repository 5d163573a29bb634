"""The first run of a job has the prefix that all share cached before its siblings send it.

The API keeps a prefix from when the reply to it begins
(https://docs.claude.com/en/docs/build-with-claude/prompt-caching): of runs that start together, each
would pay for writing it.
"""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from runner.core.spec import Submission
from runner.store.tables import runs

WARMING = "warming"  # why a sibling is queued
MOST_SECONDS = 5.0  # that it waits

# Shorter prefixes are not cached by any model.
_LEAST_CACHED_TOKENS = 1_024


def is_worth_it(submission: Submission) -> bool:
    """Whether the job's runs share a prefix that is worth the wait."""
    spec = submission.spec
    if spec.provider != "anthropic" or len(submission.runs) < 2:
        return False
    return spec.shared_tokens >= _LEAST_CACHED_TOKENS


def let_siblings_start(connection: Connection, job_id: str, now: float) -> None:
    """The runs that still wait for the first one's reply are due.

    Their rows are locked out of the order of ids, while that of the first is held: those that someone
    else holds are left out, and are due soon anyway.
    """
    waiting = select(runs.c.id).where(
        runs.c.job_id == job_id,
        runs.c.state == "queued",
        runs.c.reason == WARMING,
        runs.c.due_at > now,
    )
    connection.execute(
        update(runs)
        .where(runs.c.id.in_(waiting.with_for_update(skip_locked=True)))
        .values(due_at=now, rung_at=None)
    )

"""Retries of failed model calls: which failures are retried, and after how long.

Which are follows https://docs.claude.com/en/api/errors.
"""

from __future__ import annotations

from runner.core.entries import OUR_OWN_FAILURES, PROMPT_TOO_LONG, SPEND_LIMIT
from runner.core.spec import Patience
from runner.errors import ModelCallError

IN_HAND_SECONDS = 5.0  # a longer wait is stored, and the worker freed
FIRST_DELAY = 1.0
LONGEST_DELAY = 600.0

_OF_API = frozenset({"rate_limit_error", "overloaded_error", "api_error", "timeout_error"})
_OF_STREAM = frozenset({"connection", "stream_cut", "stream_stalled", "stream_broken"})
_OF_BATCH = frozenset({"batch_lost", "batch_expired", "batch_canceled"})
_RETRIED_KINDS = _OF_API | _OF_STREAM | _OF_BATCH | {"call_deadline"}


def is_retried(error: ModelCallError) -> bool:
    """True if the call may be tried again: by the status if there is one, else by the kind."""
    if error.status is not None and error.status >= 400:
        return error.status >= 500 or error.status in (408, 409, 424, 429)
    return error.kind in _RETRIED_KINDS


def delay(failures: int, retry_after: float | None, jitter: float) -> float:
    """Return the seconds to wait after the n-th failure in a row: exponential, at most ten minutes,
    times 50 to 100 % by ``jitter`` (0 to 1), and at least what the API asked for."""
    exponential = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(failures - 1, 20))
    wait = exponential * (0.5 + jitter / 2)
    return max(wait, (retry_after or 0.0) * (1.0 + jitter / 10))


def retry_at(
    error: ModelCallError,
    *,
    failures: int,
    first_failure_at: float,
    now: float,
    jitter: float,
    patience: Patience,
) -> float | None:
    """Return when to retry (seconds since the epoch), or None for never. A prompt that was too long
    is retried at once after compaction, and a call cut by a shutdown too; after a spend limit the run
    goes back to the queue first."""
    at_once = {PROMPT_TOO_LONG, SPEND_LIMIT, *OUR_OWN_FAILURES}
    if error.kind in at_once:
        return now
    if not is_retried(error) or failures >= patience.max_attempts:
        return None
    at = now + delay(failures, error.retry_after, jitter)
    return at if at - first_failure_at <= patience.max_seconds else None

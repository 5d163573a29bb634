"""Which failed model calls are tried again, and when.

Sources: the API's error types and statuses (https://docs.claude.com/en/api/errors).
"""

from __future__ import annotations

from dataclasses import dataclass

from runner.core.journal.entries import OUR_OWN_FAILURES, PROMPT_TOO_LONG
from runner.errors import ModelCallError

IN_HAND_SECONDS = 5.0  # a longer wait is stored, and the worker freed
FIRST_DELAY = 1.0
LONGEST_DELAY = 600.0

_RETRIED_STATUSES = frozenset({408, 409, 429})
_RETRIED_KINDS = frozenset(
    {
        "rate_limit_error",
        "overloaded_error",
        "api_error",
        "timeout_error",
        "connection",
        "stream_cut",
        "stream_stalled",
        "stream_broken",
        "call_deadline",
    }
)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a job bears with a model that does not answer: tries in a row, and seconds from the
    first failure in a row."""

    max_attempts: int = 1_000
    max_seconds: float = 6 * 3600.0


def is_retried(error: ModelCallError) -> bool:
    """Whether the call may be tried again: the status decides where there is one, else the kind."""
    if error.status is not None and error.status >= 400:
        return error.status >= 500 or error.status in _RETRIED_STATUSES
    return error.kind in _RETRIED_KINDS


def delay(failures: int, retry_after: float | None, jitter: float) -> float:
    """Seconds to wait after the n-th failure in a row: exponential with jitter, at most ten minutes,
    and never less than the API asked for.

    Args:
        failures: failures in a row, this one included (1 for the first).
        jitter: a random number from 0 to 1; the wait is 50 to 100 % of the exponential one.
    """
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
    """When to try again (seconds since the epoch), or None when that is the end of it. What was too
    long is tried again at once, shorter, and so is what a shutdown cut.

    Args:
        failures: failures in a row, this one included.
        first_failure_at: when the first of them was seen, in seconds since the epoch.
    """
    if error.kind == PROMPT_TOO_LONG or error.kind in OUR_OWN_FAILURES:
        return now
    if not is_retried(error) or failures >= patience.max_attempts:
        return None
    at = now + delay(failures, error.retry_after, jitter)
    return at if at - first_failure_at <= patience.max_seconds else None

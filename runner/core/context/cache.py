"""How long what a run writes to the prompt cache should live.

Source: https://docs.claude.com/en/docs/build-with-claude/prompt-caching: an entry lives for five
minutes after its last use, or for an hour at a higher price of writing.
"""

from __future__ import annotations

SHORT_SECONDS, LONG_SECONDS = 300.0, 3_600.0
NEWEST_WEIGHT = 0.25

# A gap that a short entry does not outlive writes the whole prefix again (1.25 times the price of
# input, where reading it would cost 0.1); the hour costs 0.75 more for each token that a turn adds.
# A turn adds about a tenth of the prefix: the hour is worth it from one slow gap in fifteen on.
WORTH_AN_HOUR = 0.07


def paced(last_at: float | None, slow: float, at: float) -> tuple[float, float]:
    """When the last call began and how many were slow, after one more.

    Args:
        last_at: when the call before began, in seconds since the epoch; None without any.
        slow: the moving average before it, from 0 to 1.
        at: when the new one begins.
    """
    if last_at is None:
        return at, slow
    is_slow = SHORT_SECONDS < at - last_at < LONG_SECONDS
    return at, slow + NEWEST_WEIGHT * (is_slow - slow)


def is_worth_an_hour(slow: float) -> bool:
    """Whether a run with so many slow gaps should have its cache live for an hour."""
    return slow > WORTH_AN_HOUR

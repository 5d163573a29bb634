"""Depth first: a new item begins only while what is left covers what the begun items still need.

The same holds for money, for tokens and for time. What an item needs is learned from finished items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, pvariance

LEARNED = 3  # finished items, from which on their costs say what others need
UNLEARNED = 4  # items that may be in progress before
_DEVIATIONS = 2.0  # by which the need of all may exceed what is expected


@dataclass(frozen=True, slots=True)
class Begun:
    """An item that has begun and not ended."""

    spent: float
    goes_on: bool = True  # by itself; False: it waits for a person


def may_begin(
    left: float, finished: Sequence[float], begun: Sequence[Begun], concurrency: int | None = None
) -> bool:
    """True if one more item may begin: always where none is in progress.

    Args:
        left: what the items in progress and the new one may still spend.
        finished: what each finished item spent.
        concurrency: how many runs of the job may be worked on at once; None: any number.
    """
    if not begun:
        return True
    if len(finished) < LEARNED:
        return sum(each.goes_on for each in begun) < min(concurrency or UNLEARNED, UNLEARNED)
    return covers(left, finished, [*(each.spent for each in begun), 0.0])


def covers(left: float, finished: Sequence[float], spent: Sequence[float]) -> bool:
    """True if ``left`` covers what items need that have ``spent`` so much each."""
    needs = [_need(finished, each) for each in spent]
    deviation = sqrt(sum(variance for _, variance in needs))
    return sum(mean for mean, _ in needs) + _DEVIATIONS * deviation <= left


def _need(finished: Sequence[float], spent: float) -> tuple[float, float]:
    """Return the mean and the variance of what an item still needs: what finished items needed that
    had spent as much, or where none has, as much as a whole one."""
    rest = [cost - spent for cost in finished if cost > spent] or finished
    return fmean(rest), pvariance(rest)

"""Keeps this process's memory and environment from other processes of the same user."""

from __future__ import annotations

import sys

_PR_SET_DUMPABLE = 4  # prctl(2)


def close_to_others() -> None:
    """Make ``/proc/PID/environ`` and ``mem`` of this process unreadable for the tools that it starts:
    they run as the same user, and the API key is in its environment. Linux only; root still can."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)

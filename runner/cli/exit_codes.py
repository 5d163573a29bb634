"""Exit codes, as ``docs/operations.md`` publishes them."""

from __future__ import annotations

from collections.abc import Iterable

from runner.core.run import RunStatus
from runner.errors import RunnerError, UnreachableError, UsageError

SUCCEEDED = 0
FAILED = 1
USAGE = 2
WAITING = 3
STOPPED = 4
UNREACHABLE = 5
INTERRUPTED = 130

_ENDED = {"succeeded": SUCCEEDED, "failed": FAILED, "cancelled": FAILED, "stopped": STOPPED}
_FIRST_THAT_APPLIES = (INTERRUPTED, UNREACHABLE, FAILED, STOPPED, WAITING)


def error_code(error: RunnerError) -> int:
    if isinstance(error, UnreachableError):
        return UNREACHABLE
    return USAGE if isinstance(error, UsageError) else FAILED


def exit_code(
    states: Iterable[RunStatus], *, interrupted: bool = False, unreachable: bool = False
) -> int:
    """Return the exit code for the states of all runs of a job: where several apply, the first of
    130 (ended by Ctrl-C or SIGTERM before the job had come to rest), 5 (database or queue did not
    answer), 1, 4, 3."""
    ends = {INTERRUPTED: interrupted, UNREACHABLE: unreachable}
    codes = {code for code in ends if ends[code]} | {_ENDED.get(each, WAITING) for each in states}
    return next((code for code in _FIRST_THAT_APPLIES if code in codes), SUCCEEDED)

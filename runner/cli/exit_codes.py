"""Exit codes, as ``docs/operations.md`` publishes them."""

from __future__ import annotations

from collections.abc import Iterable

from runner.core.run import RunStatus

SUCCEEDED = 0
FAILED = 1
USAGE = 2
WAITING = 3
STOPPED = 4
UNREACHABLE = 5
INTERRUPTED = 130

_CODES: dict[RunStatus, int] = {
    "succeeded": SUCCEEDED,
    "failed": FAILED,
    "cancelled": FAILED,
    "stopped": STOPPED,
    "waiting": WAITING,
    "queued": WAITING,
    "running": WAITING,
}
_FIRST_THAT_APPLIES = (INTERRUPTED, UNREACHABLE, FAILED, STOPPED, WAITING)


def exit_code(
    states: Iterable[RunStatus], *, interrupted: bool = False, unreachable: bool = False
) -> int:
    """The exit code of a job: where several apply, the first of 130, 5, 1, 4, 3.

    Args:
        states: of all of its runs.
        interrupted: Ctrl-C or SIGTERM ended the command before the job had come to rest.
        unreachable: a part (database, queue) did not answer.
    """
    codes = {_CODES[state] for state in states}
    if interrupted:
        codes.add(INTERRUPTED)
    if unreachable:
        codes.add(UNREACHABLE)
    return next((code for code in _FIRST_THAT_APPLIES if code in codes), SUCCEEDED)

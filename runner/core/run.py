"""A run's states, the legal transitions, and the outcomes of an attempt.

Who changes something, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

RunStatus = Literal["queued", "running", "waiting", "succeeded", "failed", "cancelled", "stopped"]
EndState = Literal["succeeded", "failed", "cancelled", "stopped"]

STATES: tuple[RunStatus, ...] = get_args(RunStatus)
ENDED: frozenset[RunStatus] = frozenset(get_args(EndState))
_SHOWN_STATES = ("queued", "interrupted", *STATES[1:])


def by_life(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the numbers of runs by state (or shown state) in the order of a run's life."""
    return sorted(counts.items(), key=lambda each: _SHOWN_STATES.index(each[0].split(" (")[0]))


# The table of legal transitions. ``docs/concepts.md`` draws it; a test compares the two.
#   queued -> running    a worker claims the run          waiting -> queued   what it waits for came
#   running -> queued    back-off, shutdown, lease lost   ended -> queued     said to, retried, raised
#   running -> waiting   paused, an answer, a budget   * -> cancelled      at any moment before the end
TRANSITIONS: dict[RunStatus, frozenset[RunStatus]] = {
    "queued": frozenset({"running", "waiting", "cancelled"}),
    "running": frozenset({"queued", "waiting", "succeeded", "failed", "cancelled", "stopped"}),
    "waiting": frozenset({"queued", "cancelled"}),
    **{ended: frozenset({"queued"}) for ended in get_args(EndState)},
}

# The rank of a run: of a job's queued runs, the lowest rank comes first. Interrupted runs come
# before the runs of all jobs.
INTERRUPTED, BEGUN, FRESH = 0, 1, 2

WaitReason = Literal["paused", "workspace", "approval", "budget", "children", "finish_by", "batch"]


LEASE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to append to a run, held by one attempt. ``attempt`` is the fencing token."""

    run_id: str
    attempt: int
    worker_id: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """The runs that a worker works, and whether it ends by itself."""

    burst: bool = False  # end when nothing is due and nothing runs
    only: str | None = None  # work this one run, without the queue, and end
    job_id: str | None = None  # work only this job, without the queue


ALL_RUNS = Assignment()


@dataclass(frozen=True, slots=True)
class Ended:
    state: EndState
    reason: str  # a word: ``end_turn``, ``max_turns``, ``refused`` …
    detail: str = ""  # one line for a reader that says more


@dataclass(frozen=True, slots=True)
class Waiting:
    """The run waits for something, without a worker; ``detail`` is one line that says more."""

    reason: WaitReason
    detail: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Requeued:
    """The run continues at ``due_at`` (seconds since the epoch), on any worker."""

    due_at: float
    reason: Literal[
        "backoff",
        "shutdown",
        "lease_lost",
        "budget",
        "yielded",
        "not_before",
        "window",
        "spend_limit",
        "cap",
        "rate_limit",
    ]

    @property
    def rank(self) -> int:
        return INTERRUPTED if self.reason in ("shutdown", "lease_lost") else BEGUN


Outcome = Ended | Waiting | Requeued


LONGEST_NAME = 100
LONGEST_WHY = 1_000

# By whom it is what Runner does by itself. No person has this name.
RUNNERS_NAME = "runner"


@dataclass(frozen=True, slots=True)
class Author:
    """The author of a change."""

    name: str | None = None  # a person's, or ``RUNNERS_NAME``; None where nobody said so
    why: str = ""  # in their words, and may be empty


RUNNER = Author(RUNNERS_NAME)
UNKNOWN = Author()

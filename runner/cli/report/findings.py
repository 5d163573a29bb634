"""What a report on a job is made of: a line for each run, and failures by what they have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runner.core.prices import Spending
from runner.core.run import ENDED
from runner.core.text import failure_signature

if TYPE_CHECKING:
    from runner.queries.files import RunSnapshots
    from runner.queries.jobs import RunSummary, Verification
    from runner.workspace.changes import DiffStat

_FAILED = ("failed", "stopped")


@dataclass(frozen=True, slots=True)
class Line:
    """A run in the report. ``stat`` is what it changed, None where that cannot be told; ``answers``
    counts the answers to its questions by answer and by what it came from; ``unrecorded`` names what is
    in its workspace and of which nothing is recorded."""

    run: RunSummary
    trees: RunSnapshots
    spending: Spending
    stat: DiffStat | None = None
    verified: Verification | None = None
    answers: Mapping[tuple[str, str], int] = field(default_factory=dict)
    waiting: int = 0
    unknown: int = 0
    unrecorded: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return self.run["id"]

    @property
    def has_failed(self) -> bool:
        return self.run["state"] in _FAILED

    @property
    def has_ended(self) -> bool:
        return self.run["state"] in ENDED

    @property
    def seconds(self) -> float | None:
        """From its first step to its end; None while it goes on."""
        started, ended = self.run["started_at"], self.run["ended_at"]
        return None if started is None or ended is None else ended - started

    @property
    def lines_changed(self) -> int:
        return 0 if self.stat is None else self.stat.added + self.stat.removed


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Runs that ended for the same reason, in the same words but for what differs from run to run.
    ``excerpt`` is what the first of them said, whole."""

    state: str
    reason: str
    signature: str
    lines: tuple[Line, ...]
    excerpt: str


def failure_groups(lines: Sequence[Line]) -> list[FailureGroup]:
    """The failures among runs by their signature, the most frequent first."""
    found: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        if line.has_failed:
            key = (line.run["state"], line.run["reason"], _signature(line))
            found.setdefault(key, []).append(line)
    groups = [
        FailureGroup(state, reason, told, tuple(members), _words(members[0]))
        for (state, reason, told), members in found.items()
    ]
    return sorted(groups, key=lambda group: -len(group.lines))


def _signature(line: Line) -> str:
    verified = line.verified if line.run["reason"] == "verify" else None
    output = verified["output"] if verified is not None else None
    return failure_signature(line.run["detail"], line.run["item_key"], output)


def _words(line: Line) -> str:
    if line.run["reason"] == "verify" and line.verified is not None:
        return line.verified["output"] or line.run["detail"]
    return line.run["detail"]

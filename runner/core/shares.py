"""Fair sharing of all workers' slots among the jobs that have work.

A job's share of the slots goes by its weight. A free slot goes to an interrupted run, of whatever job;
then to the job that uses the least for its weight, and among equals in weighted round robin. A job
that has waited below its share is given slots that the others give up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PRIORITIES: Mapping[str, float] = {"low": 1.0, "normal": 4.0, "high": 16.0}
NORMAL = PRIORITIES["normal"]
LEAST_PRIORITY, MOST_PRIORITY = 0.01, 1_000.0

PATIENCE_SECONDS = 10.0  # that a job waits below its share before others give slots up


@dataclass(frozen=True, slots=True)
class JobLoad:
    """The slots that a job uses and waits for. Counts of due runs may stop at a limit."""

    job_id: str
    weight: float = NORMAL
    running: int = 0
    notified: int = 0  # due runs that workers were notified of
    interrupted: int = 0  # due runs that had begun and were interrupted
    due: int = 0  # other due runs
    room: int | None = None  # how many more of its runs may be worked on; None: any number
    fresh: int = 0  # of ``due``: have not begun
    finish_by: float | None = None  # from then on none of its model calls begins

    @property
    def waiting(self) -> int:
        """Return how many of its due runs could be worked on."""
        found = self.interrupted + self.due
        return found if self.room is None else min(found, self.room)


@dataclass(frozen=True, slots=True)
class Pick:
    """The next run is one of this job: an interrupted one, or another."""

    job_id: str
    interrupted: bool


class Shares:
    """Chooses jobs, and remembers for one worker who was served and who has waited."""

    def __init__(self) -> None:
        # Start-time fair queueing: a job's tag is where its next turn begins. ``_reached`` is where
        # the last one began, so that no job saves up turns while it has no work.
        self._tags: dict[str, float] = {}
        self._reached = 0.0
        self._below_since: dict[str, float] = {}
        self._late: frozenset[str] = frozenset()
        self._was_interrupted = False

    def choose(self, loads: Sequence[JobLoad], most: int) -> list[Pick]:
        """The jobs of the next ``most`` runs, in order."""
        picks: list[Pick] = []
        chosen: Counter[Pick] = Counter()

        def taken(load: JobLoad) -> int:
            return chosen[Pick(load.job_id, True)] + chosen[Pick(load.job_id, False)]

        def with_more(interrupted: bool) -> list[JobLoad]:
            return [
                load
                for load in loads
                if taken(load) < load.waiting
                and chosen[Pick(load.job_id, interrupted)]
                < (load.interrupted if interrupted else load.due)
            ]

        while len(picks) < most:
            first, rest = with_more(True), with_more(False)
            if not (first or rest):
                break
            late = [load for load in rest if load.job_id in self._late]
            if first and late and self._was_interrupted:
                first, rest = (
                    [],
                    late,
                )  # however many were interrupted, a job that is late has a turn
            load = min(first or rest, key=lambda load: self._place(load, taken(load)))
            self._serve(load)
            self._was_interrupted = bool(first)
            pick = Pick(load.job_id, bool(first))
            chosen[pick] += 1
            picks.append(pick)
        self._tags = {job_id: tag for job_id, tag in self._tags.items() if tag > self._reached}
        return picks

    def _place(self, load: JobLoad, taken: int) -> tuple[float, float, str]:
        in_hand = load.running + load.notified + taken
        return in_hand / load.weight, self._start(load), load.job_id

    def _start(self, load: JobLoad) -> float:
        return max(self._reached, self._tags.get(load.job_id, 0.0))

    def _serve(self, load: JobLoad) -> None:
        start = self._start(load)
        self._reached, self._tags[load.job_id] = start, start + 1 / load.weight

    def surplus(self, loads: Sequence[JobLoad], now: float) -> dict[str, int]:
        """Return how many of all workers' runs of each job should give their slots up, because
        other jobs have waited below their shares. To be asked every second while no slot is free;
        ``now`` never goes back."""
        shares = fair_shares(loads)
        lacks = {
            load.job_id: (lack, load.waiting)
            for load in loads
            if load.waiting and (lack := shares[load.job_id] - load.running) > 0
        }
        self._below_since = {job_id: self._below_since.get(job_id, now) for job_id in lacks}
        self._late = frozenset(
            job_id
            for job_id, (lack, _) in lacks.items()
            if now - self._below_since[job_id] >= _patience(lack, len(lacks))
        )
        wanted = sum(min(math.ceil(lacks[each][0]), lacks[each][1]) for each in self._late)
        above = {load.job_id: load.running - shares[load.job_id] for load in loads}
        found: dict[str, int] = {}
        for job_id in sorted(above, key=lambda job_id: -above[job_id]):
            if wanted > 0 and above[job_id] > 0:
                found[job_id] = min(wanted, math.ceil(above[job_id]))
                wanted -= found[job_id]
        return found


def _patience(lack: float, waiting: int) -> float:
    """Return the seconds that a job waits while it lacks part of its share. A job with less than
    half a slot takes turns on one, and waits longer, so that turns have a fitting length."""
    return PATIENCE_SECONDS * max(1.0, (1 - lack) / lack / waiting)


def fair_shares(loads: Sequence[JobLoad]) -> dict[str, float]:
    """The slots in use, shared among the jobs by weight. What a job cannot use goes to the others."""
    shares: dict[str, float] = {}
    slots = float(sum(load.running for load in loads))
    weights = sum(load.weight for load in loads)
    for load in sorted(loads, key=lambda load: (load.running + load.waiting) / load.weight):
        share = min(load.running + load.waiting, slots * load.weight / weights)
        shares[load.job_id] = round(share, 9)
        slots, weights = slots - share, weights - load.weight
    return shares

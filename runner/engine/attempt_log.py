"""A line in the log for each claim and each end of an attempt; never what was said or done in it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from runner.core.run import Ended, Lease, Outcome, Requeued, Waiting
from runner.core.state import RunState
from runner.logs import log_event
from runner.ports import Claimed, NoOutcome, Observer, Stored

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Attempt:
    run: dict[str, object]  # the fields that name it
    began: float
    state: RunState | None = None  # as stored last


class AttemptLog(Observer):
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[Lease, _Attempt] = {}

    def claimed(self, claimed: Claimed) -> None:
        lease = claimed.lease
        run: dict[str, object] = {"run": lease.run_id, "job": claimed.job_id}
        run |= {"item": claimed.item_key, "attempt": lease.attempt}
        self._open[lease] = _Attempt(run, self._clock())
        log_event(logger, "attempt began", **run)

    def stored(self, stored: Stored) -> None:
        if stored.lease in self._open:
            self._open[stored.lease].state = stored.applied[-1].after

    def released(self, lease: Lease, outcome: Outcome | NoOutcome) -> None:
        attempt = self._open.pop(lease)
        fields, state = attempt.run | _in_words(outcome), attempt.state
        if state is not None:  # else it stored nothing
            fields |= {"turns": state.turns, "tokens": state.money.usage.total}
            fields |= {"cost_usd": round(state.money.charged_cost / 1e9, 6)}
        fields |= {"seconds": round(self._clock() - attempt.began, 3)}
        log_event(logger, "attempt ended", **fields)

    def reaped(self, count: int) -> None:
        log_event(logger, "took over the runs of dead workers", runs=count)


def _in_words(outcome: Outcome | NoOutcome) -> dict[str, object]:
    match outcome:
        case Ended(state, reason):
            return {"state": state, "reason": reason}
        case Waiting(reason):
            return {"state": "waiting", "reason": reason}
        case Requeued(_, reason):
            return {"state": "queued", "reason": reason}
        case _:
            return {"state": "released", "reason": outcome}

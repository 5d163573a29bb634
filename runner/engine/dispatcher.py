"""The dispatcher thread of every worker.

In each pass it takes over the runs of dead workers, continues runs whose wait is over, expires,
answers and announces questions, and notifies workers of due runs.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from runner.engine.process import HostLocks
from runner.errors import UnreachableError
from runner.ports import Clock, Notifier
from runner.store import children, runs
from runner.store import leases as losses
from runner.store import leases as workers
from runner.store.approvals import apply_new_rules, expire
from runner.store.budgets import BudgetWaits
from runner.store.database import Database
from runner.store.questions import Notice, take_notices

logger = logging.getLogger(__name__)

LEAVE_SECONDS = 5.0


class Questions:
    """Attends to all jobs' questions, beside the other workers' dispatchers.

    Args:
        tell: runs a job's notification command, until it ends. Told once of each question; when the
            worker dies meanwhile, nobody is told of it again. One runs at a time: what comes up
            meanwhile stays in the database, for the next pass or another worker, and is told together.
    """

    def __init__(self, database: Database, clock: Clock, tell: Callable[[Notice], None]) -> None:
        self._database = database
        self._clock = clock
        self._tell = tell
        self._telling: threading.Thread | None = None
        self._untold: deque[Notice] = deque()

    def attend(self) -> None:
        """Let late questions expire, and runs go on that new rules answered; tell of new questions.

        Raises:
            UnreachableError: the database does not answer.
        """
        now = self._clock.now()
        expire(self._database, now)
        apply_new_rules(self._database, now)
        self._tell_of_new()

    def leave(self) -> None:
        """Tell of what was asked since the last pass, before the worker ends: maybe it was all that
        there was to do, and the next worker comes when somebody has answered.

        Raises:
            UnreachableError: the database does not answer.
        """
        self._wait()
        self._tell_of_new()
        self._wait()
        for notice in tuple(self._untold):
            logger.warning("on_ask of %s was not run: the worker left", notice.job_id)

    def _tell_of_new(self) -> None:
        if self._telling is not None and self._telling.is_alive():
            return
        self._untold.extend(take_notices(self._database, self._clock.now()))
        if self._untold:
            self._telling = threading.Thread(
                target=self._tell_all, name="runner-notice", daemon=True
            )
            self._telling.start()

    def _tell_all(self) -> None:
        while self._untold:
            self._tell(self._untold.popleft())

    def _wait(self) -> None:
        if self._telling is not None:
            self._telling.join(LEAVE_SECONDS)


PASS_SECONDS = 1.0
LEAST_GAP_SECONDS = 0.03
OUTAGE_SECONDS = 5.0


class Dispatcher:
    """Passes once a second, and notifies at once when a slot becomes free.

    Args:
        free_slots: how many more runs this worker could take now.
        offer: runs a queue message here without the queue; False when no slot is free.
        visible: whether this worker sees a workspace, by path and id.
        questions: attends to calls that wait for an answer.
    """

    def __init__(
        self,
        database: Database,
        notifier: Notifier,
        locks: HostLocks,
        clock: Clock,
        worker_id: str,
        *,
        free_slots: Callable[[], int],
        offer: Callable[[str], bool],
        visible: Callable[[Path, str], bool],
        questions: Questions,
    ) -> None:
        self._database = database
        self._notifier = notifier
        self._locks = locks
        self._clock = clock
        self._worker_id = worker_id
        self._free_slots = free_slots
        self._offer = offer
        self._visible = visible
        self._questions = questions
        self._budget_waits = BudgetWaits(database)
        self._poked = threading.Event()
        self._leases: dict[str, tuple[float, float]] = {}
        self._last_good = clock.monotonic() - PASS_SECONDS
        self._reaps_expired_from = clock.monotonic() + OUTAGE_SECONDS

    def poke(self) -> None:
        """A slot is free: notify at once."""
        self._poked.set()

    def run(self, stopping: threading.Event) -> None:
        """Pass until ``stopping`` is set; an outage is waited out."""
        while not stopping.is_set():
            self._poked.clear()
            try:
                if self._clock.monotonic() - self._last_good < PASS_SECONDS:
                    self._notify()
                else:
                    self.dispatch()
            except UnreachableError as error:
                logger.warning("waiting: %s", error)
            self._poked.wait(PASS_SECONDS)
            stopping.wait(LEAST_GAP_SECONDS)

    def dispatch(self) -> None:
        """One pass. Raises ``UnreachableError``."""
        self._check_for_outage()
        self._reap()
        self._find_workspaces()
        self._questions.attend()
        self._budget_waits.wake_overdue(self._clock.now())
        children.attend(self._database, self._clock.now())
        self._notify()
        self._last_good = self._clock.monotonic()

    def _check_for_outage(self) -> None:
        """After an outage everyone's leases look expired: renew, and give the others time to."""
        now = self._clock.monotonic()
        if now - self._last_good > OUTAGE_SECONDS:
            workers.renew(self._database, self._worker_id, self._clock.now())
            self._reaps_expired_from = now + workers.LEASE_SECONDS

    def _reap(self) -> None:
        now = self._clock.now()
        others = workers.others(self._database, self._worker_id)
        dead_here = [
            worker_id
            for worker_id, host_id, _ in others
            if host_id == self._locks.host_id and self._locks.is_dead(worker_id)
        ]
        if dead_here:
            losses.take_from(self._database, dead_here, now)
            for worker_id in dead_here:
                self._locks.forget(worker_id)
        leases = {worker_id: at for worker_id, _, at in others if worker_id not in dead_here}
        expired = self._unrenewed(leases)
        if expired and self._clock.monotonic() >= self._reaps_expired_from:
            losses.take_from(self._database, expired, now, leases=leases)

    def _unrenewed(self, expiries: Mapping[str, float]) -> list[str]:
        """The workers whose leases have not moved for as long as a lease lasts, or had run out when
        they were first seen. Counted here, because clocks can be set."""
        seen, now = self._clock.monotonic(), self._clock.now()
        leases = {}
        for worker_id, expires_at in expiries.items():
            before = self._leases.get(worker_id)
            first_seen = before[1] if before and before[0] == expires_at else seen
            if before is None and expires_at < now:
                first_seen = seen - workers.LEASE_SECONDS
            leases[worker_id] = (expires_at, first_seen)
        self._leases = leases
        return [
            worker_id
            for worker_id, (_, first_seen) in leases.items()
            if seen - first_seen >= workers.LEASE_SECONDS
        ]

    def _find_workspaces(self) -> None:
        if self._free_slots() <= 0:
            return
        for path, workspace_id in runs.missing_workspaces(self._database):
            if self._visible(Path(path), workspace_id):
                found = runs.workspace_found(
                    self._database, path, workspace_id, self._free_slots(), self._clock.now()
                )
                for run_id in found:
                    self._offer(run_id)

    def _notify(self) -> None:
        most = 2 * self._free_slots()
        run_ids = runs.due_to_notify(self._database, most, self._clock.now()) if most > 0 else []
        if not run_ids:
            return
        try:
            self._notifier.notify(run_ids)
        except UnreachableError as error:
            logger.warning("working without the queue: %s", error)
            left = [run_id for run_id in run_ids if not self._offer(run_id)]
            runs.unring(self._database, left)

"""A worker's background threads: the dispatcher and the indexer.

In each pass the dispatcher takes over the runs of dead workers, continues runs whose wait is over,
expires, answers and announces questions, and notifies workers of due runs. The indexer adds what
runs say and do to the search index, in small batches: nobody waits for it, because a search adds
what is missing, so it uses only a small part of its process's time.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from runner.core.run import LEASE_SECONDS
from runner.core.shares import JobLoad, Shares
from runner.engine.governor import Governor
from runner.engine.host_watch import ProviderWatch
from runner.errors import RunnerError, UnreachableError, host_fault
from runner.logs import Outage, log_event
from runner.ports import Clock, Index, Notifier, Observer
from runner.store import children, due_runs, leases, notices, pauses, schedules, times
from runner.store.approvals import apply_new_rules, expire
from runner.store.budgets import wake_overdue, wake_siblings
from runner.store.database import Database, DatabaseClock
from runner.store.depth_first import hold, wake_held
from runner.store.host_locks import HostLocks
from runner.store.notices import DueNotice
from runner.store.questions import announce
from runner.store.specs import JobCache

logger = logging.getLogger(__name__)

LEAVE_SECONDS = 5.0


class QueueSide(Protocol):
    """The queue's side of a worker (``runner.queue.worker.QueueWorker``)."""

    @property
    def free_slots(self) -> int: ...
    def run(self) -> None: ...
    def stop(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def listen(self, listens: bool) -> None: ...
    def offer(self, run_id: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Machine:
    """The services of a worker's host, beside the ports of its attempts."""

    database: Database
    locks: HostLocks
    clock: DatabaseClock
    notifier: Notifier
    visible: Callable[[Path, str], bool]  # True if a workspace (path, id) is seen from here
    quiet: Callable[[str], bool]  # True if no tool process of a run is left on this host
    # Looks what keeps this host from working runs, given the fault that a run met.
    find_fault: Callable[[str], str | None]
    still_alive: Callable[[], None]  # told after each renewal of the leases
    # Works a run in a process of its own, until it ends or the event is set.
    run_apart: Callable[[str, threading.Event], None]
    hide: Callable[[str], str]  # takes what must not be stored out of a text
    send: Callable[[DueNotice], None]  # sends a notice of a job
    index: Index  # the search index, kept up to date
    close: Callable[[], None]  # ends all tool processes
    observer: Observer
    database_outage: Outage
    queue_outage: Outage
    governor: Governor  # of its model calls


@dataclass(eq=False)
class Notices:
    """Finds and sends the notices of all jobs, or of one, as every worker's dispatcher does. Methods raise
    ``UnreachableError`` if the database does not answer."""

    database: Database
    clock: Clock
    send: Callable[[DueNotice], None]  # raises ``RunnerError`` if it could not be sent
    job_id: str | None = None
    _sending: threading.Thread | None = field(default=None, init=False)

    def attend(self) -> None:
        """Store notices of new events, and send a batch of due ones in a thread."""
        announce(self.database, self.clock.now(), job_id=self.job_id)
        notices.find(self.database, self.clock.now(), self.job_id)
        if self._sending is not None and self._sending.is_alive():
            return
        if due := notices.take_due(self.database, self.clock.now(), self.job_id):
            self._sending = threading.Thread(
                target=self._send, args=(due,), name="runner-notices", daemon=True
            )
            self._sending.start()

    def leave(self) -> None:
        """Send the notices of events since the last pass, before the worker ends."""
        self._wait()
        self.attend()
        self._wait()

    def _send(self, due: Sequence[DueNotice]) -> None:
        for one in due:
            with suppress(UnreachableError):  # it is sent again
                if notices.renew(self.database, one, self.clock.now()):
                    self._send_one(one)

    def _send_one(self, one: DueNotice) -> None:
        try:
            self.send(one)
        except Exception as error:  # even a bug: other notices are still sent
            # The words of a bug may name an address.
            why = str(error) if isinstance(error, RunnerError) else type(error).__name__
            about = {"job": one.job_id, "event": one.event, "channel": one.channel}
            log_event(logger, "a notice was not sent", **about, tries=one.tries, error=why)
            notices.not_sent(self.database, one, why, self.clock.now())
        else:
            notices.sent(self.database, one, self.clock.now())

    def _wait(self) -> None:
        if self._sending is not None:
            self._sending.join(LEAVE_SECONDS)


PASS_SECONDS = 1.0
LEAST_GAP_SECONDS = 0.03
OUTAGE_SECONDS = 5.0
MOST_YIELDS = 64  # slots that one job may get in a pass because runs of others yield


@dataclass(eq=False)
class Dispatcher:
    """Passes once a second, and notifies at once when a slot becomes free. For a worker of one job it
    gives the job's due runs to the worker itself, and leaves the questions and schedules of others."""

    machine: Machine
    queue: QueueSide
    worker_id: str
    job_id: str | None = None  # work only this job
    report_fault: Callable[[str], None] = lambda fault: None  # of this host, met in a pass
    # The seconds since this worker last renewed its own leases.
    unrenewed_for: Callable[[], float] = lambda: 0.0
    providers: ProviderWatch | None = None  # keeps it from jobs whose API cannot be called

    def __post_init__(self) -> None:
        self.database, self.clock = self.machine.database, self.machine.clock
        self.notices = Notices(self.database, self.clock, self.machine.send, self.job_id)
        self._jobs = JobCache()
        self._poked = threading.Event()
        self._leases: dict[str, tuple[float, float]] = {}
        self._choosing = threading.Lock()
        self._shares = Shares()
        self._surplus: Counter[str] = Counter()  # runs of this worker that may yield, by job
        self._last_good = self.clock.monotonic() - PASS_SECONDS
        self._reaps_expired_from = self.clock.monotonic() + OUTAGE_SECONDS

    def poke(self) -> None:
        """Notify at once, because a slot is free."""
        self._poked.set()

    def run(self, stopping: threading.Event) -> None:
        """Run passes until ``stopping`` is set; wait during an outage."""
        while not stopping.is_set():
            self._poked.clear()
            try:
                if self.clock.monotonic() - self._last_good < PASS_SECONDS:
                    self._notify()
                else:
                    self.dispatch()
            except UnreachableError as error:
                self.machine.database_outage.failed(error)
            except Exception as error:  # a fault of the host pauses the worker; a bug is raised
                if (fault := host_fault(error)) is None:
                    raise
                self.report_fault(fault)
            self._poked.wait(PASS_SECONDS)
            stopping.wait(LEAST_GAP_SECONDS)

    def dispatch(self) -> None:
        """One pass. Raises ``UnreachableError``."""
        now = self.clock.monotonic()
        if was_away := now - self._last_good > OUTAGE_SECONDS:
            leases.renew(self.database, self.worker_id, self.clock.now())
        # Everyone's leases look expired, also where writes stall and reads do not: let others renew.
        if was_away or self.unrenewed_for() > LEASE_SECONDS / 2:
            self._reaps_expired_from = self.clock.monotonic() + LEASE_SECONDS
        self._reap()
        self._find_workspaces()
        expire(self.database, self.clock.now(), job_id=self.job_id)
        apply_new_rules(self.database, self.clock.now(), job_id=self.job_id)
        self.notices.attend()
        wake_overdue(self.database, self._jobs, self.clock.now())
        wake_held(self.database, self.clock.now())
        wake_siblings(self.database, self.clock.now())
        times.queue_moved(self.database, self.clock.now())
        pauses.attend(self.database, self.clock.now())
        if self.job_id is None:
            schedules.fire_due(self.database, self.clock.now())
        children.attend(self.database, self.clock.now())
        due_runs.forget_lost_messages(self.database, self.clock.now())
        self._notify()
        self._find_surplus()
        self._last_good = self.clock.monotonic()

    def _reap(self) -> None:
        """Take over the runs of dead workers and of workers that do not renew their leases."""
        now = self.clock.now()
        others = leases.others(self.database, self.worker_id)
        dead_here = [
            worker_id
            for worker_id, host_id, _ in others
            if host_id == self.machine.locks.host_id and self.machine.locks.is_dead(worker_id)
        ]
        if dead_here:
            self._take_from(dead_here, now)
            for worker_id in dead_here:
                self.machine.locks.forget(worker_id)
        alive = {worker_id: at for worker_id, _, at in others if worker_id not in dead_here}
        expired = self._unrenewed(alive)
        if expired and self.clock.monotonic() >= self._reaps_expired_from:
            self._take_from(expired, now, alive)

    def _take_from(
        self, worker_ids: Sequence[str], now: float, expiries: Mapping[str, float] | None = None
    ) -> None:
        if taken := leases.take_from(self.database, worker_ids, now, leases=expiries):
            self.machine.observer.reaped(len(taken))

    def _unrenewed(self, expiries: Mapping[str, float]) -> list[str]:
        """Return workers whose leases were not renewed for a lease's length, or had expired when
        first seen. Measured here, because clocks can be set."""
        seen, now = self.clock.monotonic(), self.clock.now()
        before, self._leases = self._leases, {}
        for worker_id, expires_at in expiries.items():
            old_expiry, first_seen = before.get(worker_id, (expires_at, seen))
            if old_expiry != expires_at:
                first_seen = seen
            if worker_id not in before and expires_at < now:
                first_seen = seen - LEASE_SECONDS
            self._leases[worker_id] = (expires_at, first_seen)
        return [
            worker_id
            for worker_id, (_, first_seen) in self._leases.items()
            if seen - first_seen >= LEASE_SECONDS
        ]

    def _find_workspaces(self) -> None:
        if self.queue.free_slots <= 0:
            return
        for path, workspace_id in due_runs.missing_workspaces(self.database, self.job_id):
            if self.machine.visible(Path(path), workspace_id):
                free, now = self.queue.free_slots, self.clock.now()
                found = due_runs.workspace_found(
                    self.database, path, workspace_id, free, now, self.job_id
                )
                for run_id in found:
                    self.queue.offer(run_id)

    def _notify(self) -> None:
        if self.job_id is not None or (self.providers is not None and self.providers.fault):
            self._offer(self._next_runs(self.queue.free_slots))
            return
        run_ids = self._next_runs(2 * self.queue.free_slots)
        if not run_ids:
            return
        try:
            self.machine.notifier.notify(run_ids)
        except UnreachableError as error:
            self.machine.queue_outage.failed(error)
            self._offer(run_ids)

    def _offer(self, run_ids: Sequence[str]) -> None:
        """Work runs here, without the queue, as far as slots are free."""
        if left := [run_id for run_id in run_ids if not self.queue.offer(run_id)]:
            due_runs.not_notified(self.database, left)

    def _next_runs(self, most: int) -> list[str]:
        if most <= 0:
            return []
        with self._choosing:
            close = partial(times.close_windows, self.database, self._jobs)
            return due_runs.due_to_notify(
                self.database, most, self.clock.now(), self._shares, close, self._hold
            )

    def _hold(self, loads: Sequence[JobLoad], now: float) -> Sequence[JobLoad]:
        loads = [load for load in loads if self.job_id in (None, load.job_id)]
        if self.providers is not None:
            loads = [load for load in loads if not self.providers.refuses(load.job_id)]
        return hold(self.database, self._jobs, loads, now)

    def next_instead_of(self, run_id: str) -> str | None:
        """Return the run that is next now, instead of one whose queue message is stale."""
        due_runs.not_notified(self.database, [run_id])
        return next(iter(self._next_runs(1)), None)

    def yields(self, job_id: str) -> bool:
        """True if a run of the job that is worked on here should give up its slot for another job."""
        return self._surplus[job_id] > 0

    def has_yielded(self, job_id: str) -> None:
        self._surplus[job_id] -= 1

    def _find_surplus(self) -> None:
        """Find how many runs of this worker should yield. If a job has runs at several workers, each takes
        its share; a fraction becomes a chance."""
        with self._choosing:
            now = self.clock.now()
            loads = self._hold(due_runs.job_loads(self.database, MOST_YIELDS, now), now)
            surplus = self._shares.surplus(loads, self.clock.monotonic())
        if self.queue.free_slots > 0:
            surplus = {}
        held = due_runs.held_by_job(self.database, self.worker_id) if surplus else {}
        running = {load.job_id: load.running for load in loads}
        self._surplus = Counter(
            {
                job_id: int(count * held.get(job_id, 0) / running[job_id] + random.random())
                for job_id, count in surplus.items()
            }
        )


PAUSE_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 60.0

# While there is more to do, a pause lasts this many times the work before it.
_PAUSES_PER_WORK = 20


def follow_index(
    index: Index, stopping: threading.Event, outage: Outage, *, pause: float = PAUSE_SECONDS
) -> None:
    """Add what is stored to the index until ``stopping`` is set, looking again after ``pause``
    seconds. An error that comes twice in a row is logged once, unless it is an outage of the database.
    It ends no worker: a search reports it too."""
    before, logged, wait = "", "", pause
    while not stopping.wait(wait):
        began, least = time.thread_time(), pause
        try:
            least = 0.0 if index.follow() else pause
            before = logged = ""
        except Exception as error:  # any error: runs continue without an index
            if stopping.is_set():
                return  # it is not waited for: its database may be closed already
            known = isinstance(error, RunnerError)
            said = str(error) if known else repr(error)
            if said == before != logged and not outage.why:
                logger.warning("the search index waits: %s", said, exc_info=not known)
                logged = said
            before = said
        worked = time.thread_time() - began
        wait = min(max(least, _PAUSES_PER_WORK * worked), LONGEST_PAUSE_SECONDS)

"""A worker: claims runs, drives their attempts, keeps their leases, and drains when told to."""

from __future__ import annotations

import logging
import os
import socket
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import runner
from runner.core.run import Assignment, Ended, Lease, Outcome, Requeued
from runner.engine.attempt import Ports, run_attempt
from runner.engine.batches import Collector
from runner.engine.dispatcher import Dispatcher, Machine, QueueSide, follow_index
from runner.engine.host_watch import HostWatch, ProviderWatch
from runner.errors import (
    HostFaultError,
    HostLacks,
    Interrupted,
    LeaseLost,
    ProviderFault,
    UnreachableError,
    UsageError,
    host_fault,
)
from runner.logs import log_event
from runner.ports import Claimed, Interrupt, NoOutcome
from runner.store import due_runs, leases, migrate, pauses

logger = logging.getLogger(__name__)

WATCH_SECONDS = 1.0
RENEW_SECONDS = 5.0
ACT_SECONDS = 10.0
DRAIN_SECONDS = 10.0
INDEX_SECONDS = 5.0
QUIET_SECONDS = 0.2
LEFT_ALONE_SECONDS = 1.0


@dataclass(slots=True)
class _Held:
    attempt: int
    interrupt: Interrupt
    claimed: bool = False


class Worker:
    """Works runs, ``slots`` at once, from ``start`` until it has drained.

    Args:
        queue_side: makes the queue's side, given what to do with a run id and whom to tell that a slot
            is free.
        collector: makes what collects batches, given ``may_act`` and ``key_refused``.
    """

    def __init__(
        self,
        worker_id: str,
        machine: Machine,
        ports: Ports,
        *,
        slots: int,
        queue_side: Callable[[Callable[[str], None], Callable[[], None]], QueueSide],
        assigned: Assignment,
        collector: Callable[..., Collector] | None = None,
    ) -> None:
        self.id = worker_id
        self.failure: BaseException | None = None
        self._machine = machine
        self._ports = ports
        self.slots = slots
        self._assigned = assigned
        self._held: dict[str, _Held] = {}
        self._orphaned: set[Lease] = set()
        self._refused_jobs: set[str] = set()  # that this host lacks a sandbox for
        self._breakers = pauses.Breakers(machine.database)
        self._postponing = threading.Lock()
        self._postponed_until = 0.0  # by the monotonic clock
        self._renewing = threading.Lock()
        self._renewed_at = machine.clock.monotonic()
        self._is_registered = False
        self._ended = threading.Event()
        self._queue_side = queue_side(self._handle, lambda: self._dispatcher.poke())
        self._host = HostWatch(
            machine.find_fault,
            self._mark_fault,
            self._queue_side.pause,
            self._queue_side.resume,
            ports.stopping,
        )
        self._providers = ProviderWatch(
            machine.database, self._mark_fault, self._queue_side.listen, ports.stopping
        )
        self._collector = (
            None
            if collector is None
            else collector(may_act=self._may_act, key_refused=self._providers.report)
        )
        self._dispatcher = Dispatcher(
            machine,
            self._queue_side,
            worker_id,
            assigned.job_id,
            self._host.report,
            self._unrenewed_for,
            self._providers,
        )

    def start(self) -> None:
        """Register and begin to work, in threads. Raises ``UnreachableError``."""
        machine = self._machine
        machine.clock.measure()
        self._renewed_at = machine.clock.monotonic()
        machine.locks.hold(self.id)
        version = f"{runner.__version__}/{migrate.HEAD}"
        leases.register(
            machine.database,
            self.id,
            host_id=machine.locks.host_id,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            slots=self.slots,
            version=version,
            job_id=self._assigned.job_id,
            now=machine.clock.now(),
        )
        machine.database.require_in_place()
        self._is_registered = True
        machine.still_alive()
        about = {"host": socket.gethostname(), "pid": os.getpid(), "slots": self.slots}
        log_event(logger, "worker began", worker=self.id, version=version, **about)
        self._host.look()
        self._thread("supervisor", self._supervise, then=self._ended.set)

    def drain(self) -> None:
        """Take nothing new and end the steps in hand; what still runs after ten seconds is left to
        resume. Safe in a signal handler."""
        self._ports.stopping.set()

    def kill(self) -> None:
        """Cut everything in hand at once."""
        self._ports.stopping.set()
        for held in list(self._held.values()):
            held.interrupt.set("dropped")
        self._machine.close()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has drained. Returns False if that takes longer than ``timeout`` seconds."""
        return self._ended.wait(timeout)

    @property
    def in_hand(self) -> int:
        return len(self._held)

    @property
    def unhealthy(self) -> str:
        """The reason why it cannot keep its leases; empty if it can."""
        if why := self._machine.database_outage.why:
            return why
        seconds = self._unrenewed_for()
        return "" if seconds < ACT_SECONDS else f"leases were renewed {seconds:.0f} seconds ago"

    @property
    def unready(self) -> str:
        """The reason why it takes no runs, or no queue messages; empty if it does."""
        if self._ports.stopping.is_set():
            return "draining"
        if not self._is_registered:
            return "it has not registered yet"
        faults = self._host.fault or self._providers.fault
        return self.unhealthy or faults or self._machine.queue_outage.why

    @property
    def refused_key(self) -> str:
        """The key that an API refuses, and what to do; empty if none is."""
        return self._providers.refused_key

    # --- its threads ------------------------------------------------------------------------------

    def _thread(
        self, name: str, work: Callable[[], None], then: Callable[[], None] = lambda: None
    ) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                if isinstance(error, Exception) and self._is_outdated():
                    return
                if (fault := host_fault(error)) is not None:  # it is told when it has drained
                    advice = "mend the host, and start the worker again"
                    error = HostFaultError(
                        f"the worker ends, as this host cannot work ({fault}): {advice}"
                    )
                else:
                    logger.exception("the worker's %s failed; it drains", name)
                self.failure = error
                self._ports.stopping.set()
            finally:
                then()

        thread = threading.Thread(target=guarded, name=f"runner-{name}", daemon=True)
        thread.start()
        return thread

    def _supervise(self) -> None:
        stopping, stop_watching = self._ports.stopping, threading.Event()
        watch = self._thread("watch", lambda: self._watch(stop_watching))
        governor = self._machine.governor
        govern = self._thread("governor", partial(governor.run, self.id))
        try:
            others: list[tuple[threading.Thread, float | None]] = []
            if (only := self._assigned.only) is not None:
                working = self._thread("only", lambda: self._handle(only), then=stopping.set)
            else:
                working = self._thread("queue", self._queue_side.run)
                others = self._start_background()
            stopping.wait()
            self._queue_side.stop()
            self._dispatcher.poke()
            working.join(DRAIN_SECONDS)
            for held in list(self._held.values()):
                held.interrupt.set("shutdown")
            working.join()
            for thread, patience in others:
                thread.join(patience)
        finally:
            stop_watching.set()
            watch.join()
            governor.stop()
            govern.join()
            self._leave()

    def _start_background(self) -> list[tuple[threading.Thread, float | None]]:
        """Start the threads beside the queue's. Returns each with the seconds to wait for its end, None for
        no limit. The indexer and the collector may be left: another worker does their work again."""
        machine, stopping = self._machine, self._ports.stopping
        follow = partial(follow_index, machine.index, stopping, machine.database_outage)
        started: list[tuple[threading.Thread, float | None]] = [
            (self._thread("dispatcher", partial(self._dispatcher.run, stopping)), None),
            (self._thread("indexer", follow), INDEX_SECONDS),
        ]
        if self._collector is not None:
            started.append((self._thread("batches", self._collector.run), DRAIN_SECONDS))
        return started

    def _leave(self) -> None:
        self._machine.close()
        try:
            self._give_back(set(self._orphaned))
            if self._assigned.only is None:
                self._dispatcher.notices.leave()
            leases.end(self._machine.database, self.id, self._machine.clock.now())
        except UnreachableError as error:
            logger.warning("left without a word: %s", error)
        self._machine.locks.release(self.id)
        log_event(logger, "worker ended", worker=self.id)

    # --- leases -----------------------------------------------------------------------------------

    def _watch(self, stop: threading.Event) -> None:
        machine, is_draining = self._machine, False
        while not stop.wait(WATCH_SECONDS):
            try:
                if self._ports.stopping.is_set() and not is_draining:
                    leases.drain(machine.database, self.id, machine.clock.now())
                    is_draining = True
                if self._unrenewed_for() >= RENEW_SECONDS:
                    self._is_outdated()
                    with self._renewing:
                        self._renew()
                    machine.database_outage.worked()
                else:
                    self._look_for_lost_runs()
                is_idle = self._assigned.burst and not self._held
                if is_idle:
                    pauses.attend(machine.database, machine.clock.now())
                if is_idle and self._is_done():
                    self._ports.stopping.set()
            except UnreachableError as error:
                machine.database_outage.failed(error)
            except Exception:  # any error, if a newer schema explains it; else it is raised
                if not self._is_outdated():
                    raise

    def _is_done(self) -> bool:
        """True if a burst worker has nothing left to do. A run that was postponed here is due soon."""
        machine = self._machine
        looked_at = machine.clock.monotonic()
        if due_runs.unfinished(machine.database, machine.clock.now()):
            return False
        return looked_at >= self._postponed_until

    def _is_outdated(self) -> bool:
        """True if the database now has the schema of another version, or is another file. The worker then
        drains, and its errors count against neither a run nor itself."""
        try:
            self._machine.database.require_in_place()
            migrate.require_current(self._machine.database)
        except UnreachableError:
            return False
        except UsageError as error:
            if self.failure is None:
                logger.warning("draining: %s", error)
                self.failure = error
            self._ports.stopping.set()
            return True
        return False

    def _renew(self) -> None:
        """Renew the leases. They count from before the statement, so that they expire here before they do
        for others. Runs that were lost in a long sleep are dropped before anything may act again."""
        asked_at = self._machine.clock.monotonic()
        self._machine.clock.measure()
        leases.renew(self._machine.database, self.id, self._machine.clock.now())
        self._look_for_lost_runs()
        self._renewed_at = asked_at
        self._machine.observer.renewed()
        self._machine.still_alive()

    def _may_act(self) -> bool:
        """True if the leases are good; after a sleep or an outage, once they have been renewed."""
        while not self._is_fresh():
            try:
                with self._renewing:
                    if not self._is_fresh():
                        self._renew()
            except UnreachableError:
                if self._ports.stopping.wait(WATCH_SECONDS):
                    return False
        return True

    def _is_fresh(self) -> bool:
        return self._unrenewed_for() < ACT_SECONDS

    def _unrenewed_for(self) -> float:
        return self._machine.clock.monotonic() - self._renewed_at

    def _look_for_lost_runs(self) -> None:
        mine = {run_id: held for run_id, held in list(self._held.items()) if held.claimed}
        stored = due_runs.held_by(self._machine.database, self.id)
        for run_id, held in mine.items():
            if stored.get(run_id) != held.attempt:
                held.interrupt.set("dropped")
        unknown = stored.keys() - set(self._held)
        orphaned = {Lease(run_id, stored[run_id], self.id) for run_id in unknown}
        self._give_back(orphaned & self._orphaned)
        self._orphaned = orphaned

    def _give_back(self, orphaned: set[Lease]) -> None:
        """Give back this worker's stored leases that none of its threads holds."""
        for lease in orphaned:
            leases.give_back(self._machine.database, lease, self._machine.clock.now())

    # --- one queue message ------------------------------------------------------------------------

    def _handle(self, run_id: str) -> None:
        """Work the run of a queue message, unless it is not due or another worker has it."""
        machine = self._machine
        try:
            run = self._look_at(run_id)
            if run is None:
                return
            path = run.workspace_path
            wait = run.left_alone_until(machine.locks.host_id) - machine.clock.now()
            if wait > 0:
                self._postpone(run, min(wait, LEFT_ALONE_SECONDS))
            elif run.must_be_alone and self._assigned.only is None:
                machine.run_apart(run.id, self._ports.stopping)
            elif path is not None and not self._sees(Path(path), run.workspace_id or ""):
                due_runs.wait_for_workspace(machine.database, run, machine.clock.now())
            elif not self._is_quiet(run):
                self._postpone(run, QUIET_SECONDS)
            else:
                self._work(run)
        except UnreachableError as error:
            machine.database_outage.failed(error)
        except Exception as error:  # a fault of the host, a newer schema; else it is raised
            if (fault := host_fault(error)) is not None:
                self._host.report(fault)
            elif not self._is_outdated():
                raise

    def _postpone(self, run: due_runs.DueRun, seconds: float) -> None:
        """Make a queued run due again in ``seconds``."""
        clock, database = self._machine.clock, self._machine.database
        due_at = clock.now() + seconds
        with self._postponing:
            self._postponed_until = max(self._postponed_until, clock.monotonic() + seconds)
        due_runs.postpone(database, run, due_at)

    def _look_at(self, run_id: str) -> due_runs.DueRun | None:
        """Return the run, or a run that now comes before it; None if it is not due."""
        database, clock = self._machine.database, self._machine.clock
        run = due_runs.look_at(database, run_id, clock.now())
        if run is None or self._assigned.only is not None or not run.is_stale(clock.now()):
            return run
        first = self._dispatcher.next_instead_of(run_id)
        return None if first is None else due_runs.look_at(database, first, clock.now())

    def _sees(self, path: Path, workspace_id: str) -> bool:
        """True if this host sees a workspace, or cannot tell: then the attempt says why."""
        try:
            return self._machine.visible(path, workspace_id)
        except HostFaultError:
            return True

    def _is_quiet(self, run: due_runs.DueRun) -> bool:
        """True if no process of the run's last attempt or of its ended sub-agents is left here: a
        sub-agent cancelled just now may still write in the run's folder."""
        machine = self._machine
        ids = [run.id] if run.last_host_id == machine.locks.host_id else []
        if run.of_family:
            ids += due_runs.ended_below(machine.database, run.id)
        return all(map(machine.quiet, ids))

    def _work(self, run: due_runs.DueRun) -> None:
        machine = self._machine
        yields = partial(self._dispatcher.yields, run.job_id)
        held = _Held(run.attempt + 1, Interrupt(self._may_act, yields))
        if self._held.setdefault(run.id, held) is not held:
            # Its last attempt here is on its way out, or another queue message was faster.
            self._postpone(run, QUIET_SECONDS)
            return
        try:
            lease = due_runs.claim(machine.database, run, self.id, machine.clock.now())
            if lease is not None:
                held.claimed = True
                machine.observer.claimed(Claimed(lease, run.job_id, run.item_key))
                self._attempt(lease, run.job_id, held.interrupt)
        finally:
            del self._held[run.id]

    def _attempt(self, lease: Lease, job_id: str, interrupt: Interrupt) -> None:
        """Run an attempt. Without an outcome its lease is orphaned: the watch gives it back."""
        outcome: Outcome | NoOutcome = "bug"
        try:
            outcome = run_attempt(lease, self._ports, interrupt)
            self._host.worked()
            self._providers.worked(job_id)
            if isinstance(outcome, Requeued) and outcome.reason == "yielded":
                self._dispatcher.has_yielded(job_id)
        except (LeaseLost, Interrupted):
            outcome = "dropped"
        except UnreachableError:
            outcome = "unreachable"
            raise
        except Exception as error:  # any bug: it fails one run, not the worker
            if self._is_outdated():
                outcome = "schema"
                self._give_back({lease})
                return
            if (fault := host_fault(error)) is not None:
                outcome = "host_fault"
                self._give_back_for_host(lease, job_id, fault, error)
                return
            see = {"run": lease.run_id, "see": f"runner events {lease.run_id}"}
            logger.error("a bug ended an attempt: %r", error, extra={"fields": see})
            error_text = self._machine.hide(traceback.format_exc(limit=-20))
            now = self._machine.clock.now()
            leases.give_up(self._machine.database, lease, error_text, now)
        finally:
            self._machine.observer.released(lease, outcome)
        self._pause_jobs(lease.run_id, job_id, outcome)

    def _pause_jobs(self, run_id: str, job_id: str, outcome: Outcome | NoOutcome) -> None:
        """Pause jobs if what became of a run asks for it."""
        database, now, paused = self._machine.database, self._machine.clock.now(), {}
        if isinstance(outcome, Requeued) and outcome.reason == "spend_limit":
            paused = pauses.stop_spending(database, run_id, now)
        elif isinstance(outcome, Ended) or outcome == "bug":
            why = self._breakers.look(job_id, now)
            paused = {} if why is None else {job_id: why}
        for each, why in paused.items():
            fields = {"job": each, "why": why}
            logger.warning("paused a job", extra={"fields": fields})

    def _give_back_for_host(self, lease: Lease, job_id: str, fault: str, error: Exception) -> None:
        """Give back a run that met a fault of this host: another host may work it. A host that only lacks
        what its job requires goes on with other jobs."""
        if isinstance(error, ProviderFault):
            self._providers.report(error, fault)
        elif not isinstance(error, HostLacks):
            self._host.report(fault)
        elif job_id not in self._refused_jobs:
            self._refused_jobs.add(job_id)
            logger.warning("the runs of %s are left to other hosts: %s", job_id, fault)
        machine = self._machine
        met = leases.HostFault(
            machine.locks.host_id,
            socket.gethostname(),
            machine.hide(fault),
            fails=not isinstance(error, ProviderFault),
        )
        unbegun = error.unbegun if isinstance(error, HostFaultError) else ()
        now = machine.clock.now()
        leases.give_back_for_host(machine.database, lease, met, unbegun, now)

    def _mark_fault(self, fault: str | None) -> None:
        machine = self._machine
        told, now = (None, None) if fault is None else (machine.hide(fault), machine.clock.now())
        leases.set_fault(machine.database, self.id, told, now)

"""Faults of a worker's host: while there is one, the worker takes no runs.

A disk that is full, a missing git or too many open files would fail run after run. The run that meets
such a fault is given back, and its worker looks at its host with growing pauses until it is well.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from runner.errors import KeyRefused, ProviderFault, UnreachableError
from runner.store.database import Database
from runner.store.specs import JobCache

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0


@dataclass(eq=False)
class HostWatch:
    """Stops a worker's claims while its host has a fault.

    Args:
        find_fault: checks the host, given the fault that a run met; returns a fault, or None.
        mark: stores the fault, or None. Raises ``UnreachableError``.
        pause, resume: of claims.
        stopping: set when the worker drains.
    """

    find_fault: Callable[[str], str | None]
    mark: Callable[[str | None], None]
    pause: Callable[[], None]
    resume: Callable[[], None]
    stopping: threading.Event
    # In the log: what it cannot do, and can do again.
    words: tuple[str, str] = (
        "this host cannot work, so its worker takes no runs for now",
        "this host can work again: its worker takes runs",
    )
    fault: str = field(default="", init=False)  # empty while the host is well
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _next_pause: float = field(default=FIRST_PAUSE_SECONDS, init=False)

    def look(self) -> None:
        """Look at the host before the first claim."""
        if (fault := self.find_fault("")) is not None:
            self.report(fault)

    def report(self, fault: str) -> None:
        """Claim no runs until the host is well, because a run met this fault."""
        with self._lock:
            if self.fault:
                return
            self.fault = fault
            self.pause()
        logger.warning("%s: %s", self.words[0], fault)
        threading.Thread(target=self._watch, args=(fault,), name="runner-host", daemon=True).start()

    def worked(self) -> None:
        """Make the next fault's pauses begin short again: an attempt met no fault."""
        self._next_pause = FIRST_PAUSE_SECONDS

    def _watch(self, fault: str) -> None:
        """Look until the host is well, or the worker drains. The pauses go on growing if the host only
        looks well, and the next run meets the fault again."""
        found: str | None = fault
        while found is not None:
            self._try_to_mark(found)
            pause = self._next_pause
            self._next_pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            if self.stopping.wait(pause):
                return
            found = self.find_fault(fault)
        self._try_to_mark(None)
        logger.warning(self.words[1])
        with self._lock:
            self.fault = ""
            self.resume()  # before a run that meets the next fault pauses again

    def _try_to_mark(self, fault: str | None) -> None:
        try:
            self.mark(fault)
        except UnreachableError as error:
            logger.warning("the fault of this host is not stored: %s", error)


@dataclass(eq=False)
class ProviderWatch:
    """Stops a worker's claims of jobs whose provider's API this host cannot call.

    Args:
        mark, stopping: as in ``HostWatch``.
        listen: says if the worker is to take messages from the queue. While it cannot call an API, it
            would take those of runs that other workers can work.
    """

    database: Database
    mark: Callable[[str | None], None]
    listen: Callable[[bool], None]
    stopping: threading.Event
    _watches: dict[str, HostWatch] = field(default_factory=dict, init=False)  # by provider
    _met: dict[str, ProviderFault] = field(default_factory=dict, init=False)  # the newest of each
    _jobs: JobCache = field(default_factory=JobCache, init=False)

    @property
    def fault(self) -> str:
        """The fault in words; empty while all APIs can be called."""
        return next((each.fault for each in self._watches.values() if each.fault), "")

    @property
    def refused_key(self) -> str:
        """The fault in words, if a key is refused; else empty."""
        refused = [name for name, met in self._met.items() if isinstance(met, KeyRefused)]
        return next((self._watches[name].fault for name in refused), "")

    def report(self, met: ProviderFault, fault: str) -> None:
        """Claim no runs of the provider's jobs until its API can be called."""
        provider = met.provider
        watch = HostWatch(
            lambda fault: fault if met.persists() else None,
            self.mark,
            lambda: self.listen(False),
            lambda: self.listen(not self.fault),
            self.stopping,
            (
                f"this worker takes no runs of jobs of {provider} for now",
                f"this worker tries runs of jobs of {provider} again",
            ),
        )
        watch = self._watches.setdefault(provider, watch)
        if not watch.fault:
            self._met[provider] = met
        watch.report(fault)

    def refuses(self, job_id: str) -> bool:
        """True if the API of a job cannot be called. Raises ``UnreachableError``."""
        return bool(self.fault and (watch := self._watch_of(job_id)) and watch.fault)

    def worked(self, job_id: str) -> None:
        """Make the next fault's pauses begin short again: an attempt of the job met none."""
        if self._watches and (watch := self._watch_of(job_id)) is not None:
            watch.worked()

    def _watch_of(self, job_id: str) -> HostWatch | None:
        spec = self._jobs.specs(self.database, [job_id])[job_id]
        return self._watches.get(spec.provider)

"""Workers without models: threads that claim, renew and end runs through the store's own functions.

``python -m bench.stage.simulated URL WORKERS SLOTS SECONDS``: prints, as JSON, how many runs it ended, how
long claims took, and its own processor time.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque

from runner.core.entries import RunSettled
from runner.core.prices import FREE
from runner.core.run import Ended, Lease
from runner.core.shares import Shares
from runner.store import due_runs, ids, leases
from runner.store.database import Database, DatabaseClock, connections_for
from runner.store.journal import StoredJournal

THREADS = 4  # of a worker's slots, at most: more than it has connections find none
RENEW_SECONDS = 5.0
PASS_SECONDS = 1.0


class SimulatedWorker:
    """A worker's traffic with the database: passes, renewals, and runs that end at once."""

    def __init__(self, url: str, slots: int) -> None:
        self.ended = 0
        self.claims: list[float] = []  # seconds that each took
        self._database = Database(url, connections_for(slots))
        self._until, self._slots = 0.0, slots
        self._clock, self._shares, self._next = (
            DatabaseClock(self._database),
            Shares(),
            deque[str](),
        )
        self._choosing = threading.Lock()
        tariffs = {"scripted": FREE}
        self._journal = StoredJournal(self._database, self._clock.now, lambda spec: tariffs)
        self._id = ids.new("worker", self._clock.now())
        leases.register(
            self._database,
            self._id,
            host_id=self._id,
            hostname="bench",
            pid=0,
            slots=slots,
            now=self._clock.now(),
        )

    def start(self, until: float) -> list[threading.Thread]:
        """Work until a time, in threads."""
        self._until = until
        works = [self._attend, *[self._work] * min(self._slots, THREADS)]
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        return threads

    def _attend(self) -> None:
        renewed = time.monotonic()
        while time.time() < self._until:
            leases.others(self._database, self._id)
            due_runs.forget_lost_messages(self._database, self._clock.now())
            if time.monotonic() - renewed >= RENEW_SECONDS:
                leases.renew(self._database, self._id, self._clock.now())
                renewed = time.monotonic()
            time.sleep(PASS_SECONDS)

    def _work(self) -> None:
        while time.time() < self._until:
            began = time.monotonic()
            lease = self._claim()
            if lease is None:
                time.sleep(0.05)
                continue
            self.claims.append(time.monotonic() - began)
            end = RunSettled(Ended("succeeded", "end_turn"))
            self._journal.commit(lease, self._journal.load(lease), [end], lambda *_: ((), None))
            self.ended += 1

    def _claim(self) -> Lease | None:
        now = self._clock.now()
        with self._choosing:
            if not self._next:
                most = 2 * self._slots
                self._next += due_runs.due_to_notify(self._database, most, now, self._shares)
            run_id = self._next.popleft() if self._next else None
        run = None if run_id is None else due_runs.look_at(self._database, run_id, now)
        return None if run is None else due_runs.claim(self._database, run, self._id, now)


def main() -> None:
    url, count, slots, seconds = sys.argv[1], *map(int, sys.argv[2:])
    workers = [SimulatedWorker(url, slots) for _ in range(count)]
    until = time.time() + seconds
    for thread in [thread for worker in workers for thread in worker.start(until)]:
        thread.join()
    claims = [taken for worker in workers for taken in worker.claims]
    told = {"ended": sum(worker.ended for worker in workers), "claims": claims}
    print(json.dumps({**told, "cpu": time.process_time()}))


if __name__ == "__main__":
    main()

"""Takes wake-ups from the RQ queue and runs up to N of them at once, in threads."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import redis
from rq import Queue
from rq.job import Job

from runner.queue.connection import connect_impatiently
from runner.queue.presence import Begun, Ended, Presence
from runner.queue.wakeup import QUEUE_NAME, read_run_id

log = logging.getLogger(__name__)

LISTEN_SECONDS = 0.25
"""How long one pop waits in Redis, and so how long ``stop`` takes to be seen. Cutting the pop would
be quicker, but may lose the wake-up that Redis hands out in that moment."""

ANSWER_SECONDS = LISTEN_SECONDS + 2.0
"""How long Redis may take to answer at all, and so how long ``stop`` may take when it hangs."""

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0

_JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class WakeUpWorker:
    """An RQ worker of its own kind: N slots in one process, and it calls only ``handle``.

    RQ's loop forks or handles one job at a time, quits when Redis does not answer for long, and
    calls what the RQ job names. This one pops a job id, reads the run id in it and nothing else.
    A wake-up that is lost between pop and handle is rung again by the dispatcher, so RQ's
    intermediate queue and its recovery are not used.

    Args:
        connection: says which server; the worker opens connections of its own to it.
        name: the worker's name in ``rq info``, unique among living workers.
        slots: how many wake-ups run at once.
        handle: does the work for a run id, in a thread of the pool.
        on_slot_free: called in that thread after each wake-up, when its slot is free again.
    """

    def __init__(
        self,
        connection: redis.Redis,
        *,
        name: str,
        slots: int,
        handle: Callable[[str], None],
        on_slot_free: Callable[[], None] | None = None,
        queue_name: str = QUEUE_NAME,
    ) -> None:
        self._connection = connect_impatiently(connection, ANSWER_SECONDS)
        self._queue_key = Queue(queue_name, connection=connection).key
        self._slots = slots
        self._handle = handle
        self._on_slot_free = on_slot_free
        self._presence = Presence(self._connection, name, queue_name)
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="wake-up")
        # Re-entrant, so that a signal handler may call stop() in the thread that runs the loop.
        self._changed = threading.Condition(threading.RLock())
        self._busy = 0
        self._stopping = False

    @property
    def free_slots(self) -> int:
        """How many more wake-ups could run now; 0 once it stops."""
        with self._changed:
            return 0 if self._stopping else self._slots - self._busy

    def run(self) -> None:
        """Take wake-ups until ``stop``, then return when all handlers have ended.

        May run in any thread and installs no signal handlers. No trouble with Redis ends it.
        """
        self._presence.open()
        pause = FIRST_PAUSE_SECONDS
        try:
            while self._wait_for_slot():
                try:
                    self._take_one()
                except redis.RedisError as error:
                    if pause == FIRST_PAUSE_SECONDS:
                        log.warning("the queue does not answer, trying on: %s", error)
                    self._wait_for_stop(pause)
                    pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
                else:
                    if pause > FIRST_PAUSE_SECONDS:
                        log.info("the queue answers again")
                    pause = FIRST_PAUSE_SECONDS
        finally:
            self.stop()
            self._pool.shutdown()
            self._presence.close()
            self._connection.close()

    def stop(self) -> None:
        """Take nothing new; safe from any thread and from a signal handler."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def offer(self, run_id: str) -> bool:
        """Run a wake-up here at once, without the queue.

        Returns:
            False when no slot is free or the worker stops; nothing was done then.
        """
        return self._start(run_id, None)

    def _wait_for_slot(self) -> bool:
        """Wait until a slot is free; False when the worker stops."""
        with self._changed:
            while not self._stopping and self._busy >= self._slots:
                # Bounded, because a signal handler may notify between the test and the wait.
                self._changed.wait(LISTEN_SECONDS)
            return not self._stopping

    def _wait_for_stop(self, seconds: float) -> None:
        with self._changed:
            if not self._stopping:
                self._changed.wait(seconds)

    def _take_one(self) -> None:
        """Pop and start one wake-up, or none when none comes within ``LISTEN_SECONDS``."""
        popped = self._connection.blpop([self._queue_key], timeout=LISTEN_SECONDS)
        if popped is None:
            return
        raw_id = cast(bytes, popped[1])
        try:
            job_id, run_id = self._read(raw_id)
        except ValueError as error:
            log.warning("dropped RQ job %.100r: %s", raw_id, error)
            self._connection.delete(_job_key(raw_id))
            return
        if run_id is not None and not self._start(run_id, job_id):
            # An offer took the slot, or stop came, while the pop waited.
            self._connection.lpush(self._queue_key, raw_id)

    def _read(self, raw_id: bytes) -> tuple[str, str | None]:
        """The RQ job's id and its run id; no run id when the RQ job is gone.

        Raises:
            ValueError: it is no wake-up.
        """
        job_id = raw_id.decode("ascii", errors="replace")
        if _JOB_ID.fullmatch(job_id) is None:
            raise ValueError("not a wake-up: its id is not one of RQ's")
        try:
            data = self._connection.hget(_job_key(raw_id), "data")
        except redis.ResponseError as error:
            raise ValueError(f"not a wake-up: {error}") from error
        if data is None:
            return job_id, None
        return job_id, read_run_id(cast(bytes, data))

    def _start(self, run_id: str, job_id: str | None) -> bool:
        with self._changed:
            if self._stopping or self._busy >= self._slots:
                return False
            self._busy += 1
            self._pool.submit(self._work, run_id, job_id)
            return True

    def _work(self, run_id: str, job_id: str | None) -> None:
        """Handle one wake-up; a failure is logged and told to RQ, and costs nothing else."""
        began = time.monotonic()
        failed = True
        if job_id is not None:
            self._presence.tell(Begun(job_id))
        try:
            self._handle(run_id)
            failed = False
        except BaseException:
            # Also SystemExit and the like: nobody reads this thread's future, so it would be lost.
            log.exception("the wake-up of %s failed", run_id)
        finally:
            if job_id is not None:
                self._presence.tell(Ended(job_id, time.monotonic() - began, failed))
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()
            self._tell_slot_free()

    def _tell_slot_free(self) -> None:
        if self._on_slot_free is None:
            return
        try:
            self._on_slot_free()
        except Exception:
            # The listener is not part of the wake-up, which has ended.
            log.exception("the listener for free slots failed")


def _job_key(raw_id: bytes) -> bytes:
    return Job.redis_job_namespace_prefix.encode() + raw_id

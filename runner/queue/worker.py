"""Take queue messages from RQ and work up to N of them at once, in threads.

``rq info`` and the RQ dashboards read what the worker writes about itself. Runner needs none of it:
one thread writes it, nobody waits for that thread, and it is dropped while Redis is away.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import cast

import redis
from rq import Queue, worker_registration
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.utils import now
from rq.worker import BaseWorker, WorkerStatus

from runner.logs import Outage
from runner.queue.connection import connect_impatiently, unreachable
from runner.queue.notify import QUEUE_NAME, read_run_id

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 5.0
WORKER_SECONDS = 60
CLEANING_SECONDS = 600.0
FAREWELL_SECONDS = 2.0


class _Registration(BaseWorker):
    """An RQ worker that only registers. RQ's loop, commands (``rq.command`` lets Redis send
    SIGINT), scheduler and clean-up (which calls what an abandoned job names) are not used."""

    def __init__(self, connection: redis.Redis, name: str, queue_name: str) -> None:
        super().__init__(
            [queue_name],
            name,
            connection=connection,
            serializer=JSONSerializer,
            worker_ttl=WORKER_SECONDS,
            prepare_for_work=False,  # it would talk to Redis, which may be away
        )
        self.hostname = socket.gethostname()
        self.pid = os.getpid()
        self.birth_date = now()

    def _set_connection(self, connection: redis.Redis) -> redis.Redis:
        """Keep the connection's own timeouts: RQ would raise them to the length of its dequeue."""
        return connection


class Presence:
    """Registers a worker with RQ again and again, from a thread of its own, so that ``rq info`` lists it.

    Args:
        connection: gives up soon.
        name: the worker's, unique among living workers.
        is_busy: true while it works on a queue message.
    """

    def __init__(
        self, connection: redis.Redis, name: str, queue_name: str, is_busy: Callable[[], bool]
    ) -> None:
        self._connection = connection
        self._worker = _Registration(connection, name, queue_name)
        self._is_busy = is_busy
        self._cleaned = -CLEANING_SECONDS
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rq-presence", daemon=True)

    def open(self) -> None:
        """Register, and go on renewing until ``close``."""
        self._thread.start()

    def close(self) -> None:
        """Sign off, without waiting for a Redis that is away."""
        self._closing.set()
        self._thread.join(FAREWELL_SECONDS)

    def _run(self) -> None:
        is_closing, was_reached = False, True
        while not is_closing:
            is_closing = self._closing.is_set()
            try:
                if is_closing:
                    self._sign_off()
                else:
                    self._renew()
            except Exception as error:
                # An unexpected value under one of RQ's keys must not end this thread.
                is_away = isinstance(error, redis.ConnectionError | redis.TimeoutError)
                if was_reached and not is_away:  # the loop that takes messages says so
                    log.warning("RQ's tools do not see this worker at the moment: %s", error)
                was_reached = False
            else:
                was_reached = True
            self._closing.wait(HEARTBEAT_SECONDS)

    def _renew(self) -> None:
        """Write the whole registration, so that an emptied Redis is filled again. Now and then remove
        dead workers: the reaper takes over their runs."""
        worker, state = self._worker, WorkerStatus.BUSY if self._is_busy() else WorkerStatus.IDLE
        worker.last_heartbeat = now()
        # Nobody needs its commands as one: each would be answered twice.
        with self._connection.pipeline(transaction=False) as pipeline:
            pipeline.hset(worker.key, mapping={**worker.serialize(), "state": state})
            pipeline.expire(worker.key, WORKER_SECONDS)
            worker_registration.register(worker, pipeline)
            pipeline.execute()
        if time.monotonic() - self._cleaned >= CLEANING_SECONDS:
            self._cleaned = time.monotonic()
            worker_registration.clean_worker_registry(worker.queues[0])

    def _sign_off(self) -> None:
        with self._connection.pipeline(transaction=False) as pipeline:
            worker_registration.unregister(self._worker, pipeline)
            pipeline.delete(self._worker.key)
            pipeline.execute()


# How long one pop waits in Redis, and so how long ``stop`` takes to be seen. Cutting the pop would be
# quicker, but may lose the queue message that Redis hands out in that moment.
LISTEN_SECONDS = 0.25
# How long Redis may take to answer at all, and so how long ``stop`` may take when it hangs.
ANSWER_SECONDS = LISTEN_SECONDS + 2.0

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0

_JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


@dataclass(eq=False, repr=False)
class QueueWorker:
    """An RQ worker with N slots in one process, which calls only ``handle``. RQ's loop handles one
    job at a time, quits when Redis is long away, and calls what the RQ job names: this one only
    reads the run id in it. The dispatcher sends lost messages again, so RQ's intermediate queue is
    not used."""

    connection: InitVar[redis.Redis]  # says which server; the worker opens connections of its own
    _: KW_ONLY
    name: InitVar[str]  # in ``rq info``, unique among living workers
    queue_name: InitVar[str] = QUEUE_NAME  # listened on
    slots: int  # how many queue messages run at once
    handle: Callable[[str], None]  # does the work for a run id, in a thread of the pool
    # Called in that thread after each queue message, when its slot is free again.
    on_slot_free: Callable[[], None] = lambda: None
    outage: Outage = field(default_factory=lambda: Outage("Redis", log))

    def __post_init__(self, connection: redis.Redis, name: str, queue_name: str) -> None:
        self._connection = connect_impatiently(connection, ANSWER_SECONDS)
        self._queue_key = Queue(queue_name, connection=connection).key
        self._presence = Presence(self._connection, name, queue_name, lambda: self._busy > 0)
        self._pool = ThreadPoolExecutor(self.slots, thread_name_prefix="queue message")
        # Re-entrant, so that a signal handler may call stop() in the thread that runs the loop.
        self._changed = threading.Condition(threading.RLock())
        self._busy = 0
        self._paused = False
        self._listens = True
        self._stopping = False

    @property
    def free_slots(self) -> int:
        """Return how many more queue messages could run now; 0 while it is paused, or once it stops."""
        with self._changed:
            return 0 if self._stopping or self._paused else self.slots - self._busy

    def run(self) -> None:
        """Take queue messages until ``stop``, then return when all handlers have ended. May run in any
        thread and installs no signal handlers. No trouble with Redis ends it."""
        self._presence.open()
        pause = FIRST_PAUSE_SECONDS
        try:
            while self._wait_for_slot():
                try:
                    self._take_one()
                except redis.RedisError as error:
                    self.outage.failed(unreachable(error))
                    with self._changed:
                        self._changed.wait_for(lambda: self._stopping, pause)
                    pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
                else:
                    self.outage.worked()
                    pause = FIRST_PAUSE_SECONDS
        finally:
            self.stop()
            self._pool.shutdown()
            self._presence.close()
            self._connection.close()

    def pause(self) -> None:
        """Take nothing new until ``resume``."""
        self._set_paused(True)

    def resume(self) -> None:
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        with self._changed:
            self._paused = paused
            self._changed.notify_all()

    def listen(self, listens: bool) -> None:
        """Take messages from the queue, or only what is offered."""
        with self._changed:
            self._listens = listens
            self._changed.notify_all()

    def stop(self) -> None:
        """Take nothing new; safe from any thread and from a signal handler."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def offer(self, run_id: str) -> bool:
        """Run a queue message here at once, without the queue. Return False when no slot is free or the
        worker is paused or stops; nothing was done then."""
        with self._changed:
            if self._stopping or self._paused or self._busy >= self.slots:
                return False
            self._busy += 1
            self._pool.submit(self._work, run_id)
            return True

    def _wait_for_slot(self) -> bool:
        """Wait until a slot is free. Return False when the worker stops."""
        with self._changed:
            while not self._stopping and (
                self._paused or not self._listens or self._busy >= self.slots
            ):
                # Bounded, because a signal handler may notify between the test and the wait.
                self._changed.wait(LISTEN_SECONDS)
            return not self._stopping

    def _take_one(self) -> None:
        """Pop and start one queue message, or none when none comes within ``LISTEN_SECONDS``."""
        popped = self._connection.blpop([self._queue_key], timeout=LISTEN_SECONDS)
        if popped is None:
            return
        raw_id, run_id = cast(bytes, popped[1]), None
        try:
            run_id = self._read(raw_id)
        except ValueError as error:
            log.warning("dropped RQ job %.100r: %s", raw_id, error)
        if run_id is None or self.offer(run_id):
            self._connection.delete(_job_key(raw_id))
        else:  # an offer took the slot, or stop came, while the pop waited
            self._connection.lpush(self._queue_key, raw_id)

    def _read(self, raw_id: bytes) -> str | None:
        """Return the run of an RQ job; None if the job is gone. Raises ValueError."""
        if _JOB_ID.fullmatch(raw_id.decode("ascii", errors="replace")) is None:
            raise ValueError("not a queue message: its id is not one of RQ's")
        try:
            data = self._connection.hget(_job_key(raw_id), "data")
        except redis.ResponseError as error:
            raise ValueError(f"not a queue message: {error}") from error
        return None if data is None else read_run_id(cast(bytes, data))

    def _work(self, run_id: str) -> None:
        """Handle one queue message; a failure is logged, and costs nothing else."""
        try:
            self.handle(run_id)
        except BaseException:
            # Also SystemExit and the like: nobody reads this thread's future, so it would be lost.
            log.exception("the queue message of %s failed", run_id)
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()
            try:
                self.on_slot_free()
            except Exception:
                # The listener is not part of the queue message, which has ended.
                log.exception("the listener for free slots failed")


def _job_key(raw_id: bytes) -> bytes:
    return Job.redis_job_namespace_prefix.encode() + raw_id

"""Take queue messages from RQ and work up to N of them at once, in threads.

``rq info`` and the RQ dashboards read what the worker writes about itself. Runner needs none of it:
one thread writes it, nobody waits for that thread, and it is dropped while Redis is away.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import NamedTuple, cast

import redis
from redis.client import Pipeline
from rq import Queue, worker_registration
from rq.executions import Execution
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.utils import current_timestamp, now, utcformat
from rq.worker import BaseWorker, WorkerStatus

from runner.logs import Outage
from runner.queue.connection import connect_impatiently, unreachable
from runner.queue.notify import QUEUE_NAME, read_run_id

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 5.0
WORKER_SECONDS = 60
EXECUTION_SECONDS = 90
CLEANING_SECONDS = 600.0
FAREWELL_SECONDS = 2.0

# How long news for RQ may wait: the ends and beginnings of many short runs cost one round trip, and of a
# run that is shorter only the count is told.
GATHER_SECONDS = 1.0


class _Note(NamedTuple):
    """The work on a queue message began, or has ended after so many seconds."""

    job_id: str
    seconds: float | None = None
    failed: bool = False


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
    """Tells RQ about a worker, from a thread of its own: only that uses the connection, which gives up
    soon. ``name`` is the worker's in ``rq info``, unique among living workers."""

    def __init__(self, connection: redis.Redis, name: str, queue_name: str = QUEUE_NAME) -> None:
        self._connection = connection
        self._worker = _Registration(connection, name, queue_name)
        self._notes: queue.SimpleQueue[_Note | None] = queue.SimpleQueue()
        self._executions: dict[str, tuple[Job, Execution]] = {}
        self._cleaned = -CLEANING_SECONDS
        self._reached = True
        self._thread = threading.Thread(target=self._run, name="rq-presence", daemon=True)

    def open(self) -> None:
        """Register, and go on renewing until ``close``."""
        self._thread.start()

    def begun(self, job_id: str) -> None:
        """Note that a queue message was taken and its work began; returns at once."""
        self._notes.put(_Note(job_id))

    def ended(self, job_id: str, seconds: float, failed: bool) -> None:
        """Note that the work on a queue message ended after ``seconds``; returns at once."""
        self._notes.put(_Note(job_id, seconds, failed))

    def close(self) -> None:
        """Write what was told, sign off, and wait for that, but not for a Redis that is away."""
        self._notes.put(None)
        self._thread.join(FAREWELL_SECONDS)

    def _run(self) -> None:
        beat_due = time.monotonic()
        closing = False
        while not closing:
            notes, closing = self._collect(beat_due - time.monotonic())
            beating = time.monotonic() >= beat_due
            if beating:
                beat_due = time.monotonic() + HEARTBEAT_SECONDS
            try:
                self._write(notes, beating=beating, closing=closing)
            except Exception as error:
                # Whatever lies in Redis under RQ's keys, it must not end the telling, and the next
                # heartbeat tells everything again.
                is_away = isinstance(error, redis.ConnectionError | redis.TimeoutError)
                if self._reached and not is_away:  # the loop that takes messages says so
                    log.warning("RQ's tools do not see this worker at the moment: %s", error)
                self._reached = False
            else:
                self._reached = True

    def _collect(self, seconds: float) -> tuple[list[_Note], bool]:
        """Wait up to ``seconds`` for notes. Return them, and True if it is time to sign off."""
        notes: list[_Note] = []
        until = time.monotonic() + seconds
        try:
            while (note := self._notes.get(timeout=max(0.0, until - time.monotonic()))) is not None:
                if not notes:
                    until = time.monotonic() + GATHER_SECONDS
                notes.append(note)
        except queue.Empty:
            return notes, False
        return notes, True

    def _write(self, notes: Sequence[_Note], *, beating: bool, closing: bool) -> None:
        worker = self._worker
        # Nobody needs its commands as one: each would be answered twice.
        with self._connection.pipeline(transaction=False) as pipeline:
            was_busy = bool(self._executions)
            ended = [note for note in notes if note.seconds is not None]
            came_and_went = {note.job_id for note in ended}
            for note in notes:
                if note.seconds is None and note.job_id not in came_and_went:
                    self._begin(note.job_id, pipeline)
            self._end(ended, pipeline)
            state = WorkerStatus.BUSY if self._executions else WorkerStatus.IDLE
            if beating:
                self._renew(state, pipeline)
            elif bool(self._executions) != was_busy:
                worker.set_state(state, pipeline)
            if closing:
                worker_registration.unregister(worker, pipeline)
                pipeline.hset(worker.key, "death", utcformat(now()))
                pipeline.expire(worker.key, WORKER_SECONDS)
                pipeline.delete(worker.executions_key)
            pipeline.execute()

    def _begin(self, job_id: str, pipeline: Pipeline) -> None:
        job = self._job(job_id)
        execution = Execution.create(job, EXECUTION_SECONDS, pipeline, self._worker.name)
        self._executions[job_id] = job, execution
        job.prepare_for_execution(self._worker.name, pipeline)
        pipeline.expire(job.key, EXECUTION_SECONDS)

    def _end(self, ended: Sequence[_Note], pipeline: Pipeline) -> None:
        if not ended:
            return
        for note in ended:
            if (begun := self._executions.pop(note.job_id, None)) is not None:
                job, execution = begun
                execution.delete(job, pipeline)
        pipeline.delete(*(Job.key_for(note.job_id) for note in ended))
        key, failed = self._worker.key, sum(note.failed for note in ended)
        pipeline.hincrby(key, "failed_job_count", failed)
        pipeline.hincrby(key, "successful_job_count", len(ended) - failed)
        seconds = sum(note.seconds or 0.0 for note in ended)
        pipeline.hincrbyfloat(key, "total_working_time", seconds)

    def _job(self, job_id: str) -> Job:
        job = Job(job_id, connection=self._connection, serializer=JSONSerializer)
        job.origin = self._worker.queue_names()[0]
        return job

    def _renew(self, state: WorkerStatus, pipeline: Pipeline) -> None:
        """Write the whole registration, so that an emptied Redis is filled again, and extend
        existing executions. None is created here: half a hash (RQ's ``Execution.heartbeat`` after a
        FLUSHALL) is worse for readers than none. Now and then remove dead workers and their
        executions: the reaper takes over their runs."""
        worker = self._worker
        worker.last_heartbeat = now()
        pipeline.hset(worker.key, mapping={**worker.serialize(), "state": state})
        pipeline.expire(worker.key, WORKER_SECONDS)
        pipeline.expire(worker.executions_key, EXECUTION_SECONDS)
        worker_registration.register(worker, pipeline)
        score = current_timestamp() + EXECUTION_SECONDS
        for job, execution in self._executions.values():
            pipeline.expire(job.key, EXECUTION_SECONDS)
            pipeline.expire(execution.key, EXECUTION_SECONDS)
            registry = job.started_job_registry
            pipeline.zadd(registry.key, {execution.composite_key: score}, xx=True)
        if time.monotonic() - self._cleaned >= CLEANING_SECONDS:
            self._cleaned = time.monotonic()
            [listened] = worker.queues
            worker_registration.clean_worker_registry(listened)
            pipeline.zremrangebyscore(listened.started_job_registry.key, 0, current_timestamp())


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
        self._presence = Presence(self._connection, name, queue_name)
        self._pool = ThreadPoolExecutor(self.slots, thread_name_prefix="queue message")
        # Re-entrant, so that a signal handler may call stop() in the thread that runs the loop.
        self._changed = threading.Condition(threading.RLock())
        self._busy = 0
        self._paused = False
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

    def stop(self) -> None:
        """Take nothing new; safe from any thread and from a signal handler."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def offer(self, run_id: str) -> bool:
        """Run a queue message here at once, without the queue. Return False when no slot is free or the
        worker is paused or stops; nothing was done then."""
        return self._start(run_id, None)

    def _wait_for_slot(self) -> bool:
        """Wait until a slot is free. Return False when the worker stops."""
        with self._changed:
            while not self._stopping and (self._paused or self._busy >= self.slots):
                # Bounded, because a signal handler may notify between the test and the wait.
                self._changed.wait(LISTEN_SECONDS)
            return not self._stopping

    def _take_one(self) -> None:
        """Pop and start one queue message, or none when none comes within ``LISTEN_SECONDS``."""
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
        """Return the ids of the RQ job and its run ("" if gone). Raises ValueError."""
        job_id = raw_id.decode("ascii", errors="replace")
        if _JOB_ID.fullmatch(job_id) is None:
            raise ValueError("not a queue message: its id is not one of RQ's")
        try:
            data = self._connection.hget(_job_key(raw_id), "data")
        except redis.ResponseError as error:
            raise ValueError(f"not a queue message: {error}") from error
        if data is None:
            return job_id, None
        return job_id, read_run_id(cast(bytes, data))

    def _start(self, run_id: str, job_id: str | None) -> bool:
        with self._changed:
            if self._stopping or self._paused or self._busy >= self.slots:
                return False
            self._busy += 1
            self._pool.submit(self._work, run_id, job_id)
            return True

    def _work(self, run_id: str, job_id: str | None) -> None:
        """Handle one queue message; a failure is logged and told to RQ, and costs nothing else."""
        began = time.monotonic()
        failed = True
        if job_id is not None:
            self._presence.begun(job_id)
        try:
            self.handle(run_id)
            failed = False
        except BaseException:
            # Also SystemExit and the like: nobody reads this thread's future, so it would be lost.
            log.exception("the queue message of %s failed", run_id)
        finally:
            if job_id is not None:
                self._presence.ended(job_id, time.monotonic() - began, failed)
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

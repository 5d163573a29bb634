"""What RQ's own tools see of a worker: that it lives, what it works on, how much it has done.

Runner needs none of it. ``rq info`` and the RQ dashboards read it, so it is written in RQ's format,
by one thread that nobody waits for: when Redis is away it is dropped and written anew later.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import redis
from redis.client import Pipeline
from rq import worker_registration
from rq.executions import Execution
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.utils import current_timestamp, now, utcformat
from rq.worker import BaseWorker, WorkerStatus

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 5.0
WORKER_SECONDS = 60
EXECUTION_SECONDS = 90
CLEANING_SECONDS = 600.0
FAREWELL_SECONDS = 2.0

GATHER_SECONDS = 0.2
"""How long what is told may lie: the ends and beginnings of many short runs cost one round trip."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A wake-up was taken and its work began."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The work on a wake-up ended, after ``seconds``."""

    job_id: str
    seconds: float
    failed: bool


Note = Begun | Ended


class _Registration(BaseWorker):
    """An RQ worker that only registers: it takes nothing, calls nothing and obeys nobody.

    RQ's loop, commands (``rq.command`` lets Redis send SIGINT), scheduler and registry clean-up
    (which imports and calls what an abandoned job names) are not used.
    """

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

    def announce(self, state: WorkerStatus, pipeline: Pipeline) -> None:
        """Write the whole registration, so that an emptied Redis is filled again."""
        self.last_heartbeat = now()
        pipeline.hset(self.key, mapping={**self.serialize(), "state": state})
        pipeline.expire(self.key, WORKER_SECONDS)
        pipeline.expire(self.executions_key, EXECUTION_SECONDS)
        worker_registration.register(self, pipeline)


class Presence:
    """Tells RQ about a worker, from a thread of its own.

    Args:
        connection: a client that gives up soon; only the thread uses it here.
        name: the worker's name in ``rq info``, unique among living workers.
        queue_name: the queue that it listens on.
    """

    def __init__(self, connection: redis.Redis, name: str, queue_name: str) -> None:
        self._connection = connection
        self._worker = _Registration(connection, name, queue_name)
        self._notes: queue.SimpleQueue[Note | None] = queue.SimpleQueue()
        self._executions: dict[str, tuple[Job, Execution]] = {}
        self._cleaned = -CLEANING_SECONDS
        self._reached = True
        self._thread = threading.Thread(target=self._run, name="rq-presence", daemon=True)

    def open(self) -> None:
        """Register, and go on renewing until ``close``."""
        self._thread.start()

    def tell(self, note: Note) -> None:
        """Note what happened; returns at once."""
        self._notes.put(note)

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
                if self._reached:
                    log.warning("RQ's tools do not see this worker at the moment: %s", error)
                self._reached = False
            else:
                self._reached = True

    def _collect(self, seconds: float) -> tuple[list[Note], bool]:
        """What was told, waiting up to ``seconds`` for the first and then a moment for those that
        follow it; and whether to sign off."""
        notes: list[Note] = []
        until = time.monotonic() + seconds
        try:
            while (note := self._notes.get(timeout=max(0.0, until - time.monotonic()))) is not None:
                if not notes:
                    until = time.monotonic() + GATHER_SECONDS
                notes.append(note)
        except queue.Empty:
            return notes, False
        return notes, True

    def _write(self, notes: Sequence[Note], *, beating: bool, closing: bool) -> None:
        with self._connection.pipeline() as pipeline:
            was_busy = bool(self._executions)
            for note in notes:
                if isinstance(note, Begun):
                    self._begin(note, pipeline)
                else:
                    self._end(note, pipeline)
            state = WorkerStatus.BUSY if self._executions else WorkerStatus.IDLE
            if beating:
                self._worker.announce(state, pipeline)
                self._renew(pipeline)
                self._clean(pipeline)
            elif bool(self._executions) != was_busy:
                self._worker.set_state(state, pipeline)
            if closing:
                self._sign_off(pipeline)
            pipeline.execute()

    def _begin(self, note: Begun, pipeline: Pipeline) -> None:
        job = self._job(note)
        execution = Execution.create(job, EXECUTION_SECONDS, pipeline, self._worker.name)
        self._executions[note.job_id] = job, execution
        job.prepare_for_execution(self._worker.name, pipeline)
        pipeline.expire(job.key, EXECUTION_SECONDS)

    def _end(self, note: Ended, pipeline: Pipeline) -> None:
        job, execution = self._executions.pop(note.job_id, (self._job(note), None))
        if execution is not None:  # else its beginning could not be told
            execution.delete(job, pipeline)
        pipeline.delete(job.key)
        if note.failed:
            self._worker.increment_failed_job_count(pipeline)
        else:
            self._worker.increment_successful_job_count(pipeline)
        pipeline.hincrbyfloat(self._worker.key, "total_working_time", note.seconds)

    def _job(self, note: Note) -> Job:
        job = Job(note.job_id, connection=self._connection, serializer=JSONSerializer)
        job.origin = self._worker.queues[0].name
        return job

    def _renew(self, pipeline: Pipeline) -> None:
        """Extend what there is of the living executions. Nothing is made here: half a hash (RQ's
        ``Execution.heartbeat`` after a FLUSHALL) is worse than none to those who read it."""
        score = current_timestamp() + EXECUTION_SECONDS
        for job, execution in self._executions.values():
            pipeline.expire(job.key, EXECUTION_SECONDS)
            pipeline.expire(execution.key, EXECUTION_SECONDS)
            registry = job.started_job_registry
            pipeline.zadd(registry.key, {execution.composite_key: score}, xx=True)

    def _clean(self, pipeline: Pipeline) -> None:
        """Forget dead workers and what they had in hand. Their runs come back by their leases."""
        if time.monotonic() - self._cleaned < CLEANING_SECONDS:
            return
        self._cleaned = time.monotonic()
        [listened] = self._worker.queues
        worker_registration.clean_worker_registry(listened)
        pipeline.zremrangebyscore(listened.started_job_registry.key, 0, current_timestamp())

    def _sign_off(self, pipeline: Pipeline) -> None:
        worker_registration.unregister(self._worker, pipeline)
        pipeline.hset(self._worker.key, "death", utcformat(now()))
        pipeline.expire(self._worker.key, WORKER_SECONDS)
        pipeline.delete(self._worker.executions_key)

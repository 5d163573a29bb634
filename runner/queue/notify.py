"""Writes queue messages to RQ, and reads them as untrusted data."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.utils import now

from runner.core.agents import DEEPEST
from runner.queue.connection import connect_impatiently, unreachable

QUEUE_NAME = "runner"

# What RQ is told to call. It does not exist: only Runner's own worker takes queue messages, and it calls
# nothing that is named in Redis. A stock RQ worker on this queue fails the queue message, and the
# dispatcher notifies again.
FUNCTION_NAME = "runner.notify_run"

_RUN_ID = re.compile(rf"run_[0-9a-z]{{26}}(\.[0-9]{{1,4}}){{0,{DEEPEST}}}", re.ASCII)
_LONGEST_DATA = 4096


def read_run_id(data: bytes) -> str:
    """Return the run id in an RQ job's ``data`` field: what RQ's JSON serializer made of (function,
    instance, args, kwargs), compressed (``rq.job.Job.restore``). Whoever can write to Redis can put
    anything there, so it is parsed within bounds, nothing in it is imported, and only the first
    argument is looked at. Raises ValueError when that is no run id."""
    try:
        plain = zlib.decompressobj().decompress(data, _LONGEST_DATA)
        _function, _instance, arguments, _keywords = json.loads(plain)
        run_id = arguments[0]
    except (zlib.error, ValueError, TypeError, LookupError, RecursionError) as error:
        raise ValueError(f"not a queue message ({type(error).__name__}: {error})") from error
    if isinstance(run_id, str) and _RUN_ID.fullmatch(run_id):
        return run_id
    raise ValueError("not a queue message (its argument is not a run id)")


# A queue message that nobody takes goes away; the dispatcher has sent another long before.
UNTAKEN_SECONDS = 3600
FAILED_SECONDS = 600
# How long Redis may take for it; one that hangs must not hold up the dispatcher's pass.
ANSWER_SECONDS = 1.0


class RqNotifier:
    """``runner.ports.Notifier`` over RQ, with a connection of its own. RQ jobs have fresh ids:
    ``unique=True`` would refuse a run while RQ remembers its last message. They are written as by
    ``Queue.enqueue_many``, at half its cost: without a job object for each and without a
    transaction."""

    def __init__(self, connection: redis.Redis) -> None:
        impatient = connect_impatiently(connection, ANSWER_SECONDS)
        self._queue = Queue(QUEUE_NAME, connection=impatient, serializer=JSONSerializer)

    def notify(self, run_ids: Sequence[str]) -> None:
        """Put a queue message for each run in the queue, in one round trip. It is tried once: the
        dispatcher, which has leases to look after, must not wait here, and notifies again. Raises
        UnreachableError when Redis does not answer or refuses; the runs stay due."""
        if not run_ids:
            return
        one_of_them = self._queue.create_job(
            FUNCTION_NAME, timeout=-1, result_ttl=0, failure_ttl=FAILED_SECONDS, ttl=UNTAKEN_SECONDS
        )
        one_of_them.enqueued_at = now()
        common: dict[Any, Any] = {
            name: value for name, value in one_of_them.to_dict().items() if value != ""
        }
        messages = {str(uuid4()): run_id for run_id in run_ids}
        try:
            with self._queue.connection.pipeline(transaction=False) as pipeline:
                pipeline.sadd(Queue.redis_queues_keys, self._queue.key)
                for job_id, run_id in messages.items():
                    data = json.dumps((FUNCTION_NAME, None, [run_id], {})).encode()
                    own = {"description": run_id, "data": zlib.compress(data)}
                    pipeline.hset(Job.key_for(job_id), mapping=common | own)
                    pipeline.expire(Job.key_for(job_id), UNTAKEN_SECONDS)
                pipeline.rpush(self._queue.key, *messages)
                pipeline.execute()
        except redis.RedisError as error:
            raise unreachable(error) from error

    def close(self) -> None:
        """End the connection; the next message opens a new one."""
        self._queue.connection.close()

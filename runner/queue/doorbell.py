"""Puts wake-ups into the RQ queue."""

from __future__ import annotations

from collections.abc import Sequence

import redis
from rq import Queue
from rq.serializers import JSONSerializer

from runner.errors import UnreachableError
from runner.queue.connection import connect_impatiently
from runner.queue.wakeup import FUNCTION_NAME, QUEUE_NAME

UNTAKEN_SECONDS = 3600
"""A wake-up that nobody takes goes away; the dispatcher has rung again long before."""

FAILED_SECONDS = 600

ANSWER_SECONDS = 1.0
"""How long Redis may take for it; one that hangs must not hold up the dispatcher's pass."""


class RqDoorbell:
    """``runner.ports.Doorbell`` over RQ.

    Each ring makes RQ jobs with fresh ids: ``unique=True`` would refuse a run for as long as RQ
    remembers an earlier wake-up of it.

    Args:
        connection: says which server; the doorbell opens a connection of its own to it.
    """

    def __init__(self, connection: redis.Redis, queue_name: str = QUEUE_NAME) -> None:
        impatient = connect_impatiently(connection, ANSWER_SECONDS)
        self._queue = Queue(queue_name, connection=impatient, serializer=JSONSerializer)

    def ring(self, run_ids: Sequence[str]) -> None:
        """Put a wake-up for each run in the queue, in one round trip. It is tried once:
        the dispatcher, which has leases to look after, must not wait here, and rings again.

        Raises:
            UnreachableError: Redis does not answer or refuses; the runs stay due.
        """
        if not run_ids:
            return
        wake_ups = [
            Queue.prepare_data(
                FUNCTION_NAME,
                args=(run_id,),
                description=run_id,
                timeout=-1,
                result_ttl=0,
                failure_ttl=FAILED_SECONDS,
                ttl=UNTAKEN_SECONDS,
            )
            for run_id in run_ids
        ]
        try:
            self._queue.enqueue_many(wake_ups)
        except redis.RedisError as error:
            raise UnreachableError(
                f"Redis takes no wake-ups ({error}); the runs stay due: check that it runs and"
                " that RUNNER_REDIS_URL names it"
            ) from error

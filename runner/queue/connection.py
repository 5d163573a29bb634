"""Redis connections: short timeouts here; loops that must go on retry by themselves."""

from __future__ import annotations

import redis
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.retry import Retry

from runner.errors import UnreachableError, UsageError

ANSWER_SECONDS = 5.0
CONNECT_SECONDS = 2.0
HEALTH_CHECK_SECONDS = 30


def connect(url: str) -> redis.Redis:
    """Return a client for ``url`` (``redis://``, ``rediss://`` or ``unix://``); nothing is sent before
    its first command. A command is tried four times within about a second, which bridges a cut
    connection. Outages that last longer are for the caller: a dispatcher must not wait in here while
    its leases run out, and a worker must be able to stop while Redis is away. Options in the URL's
    query (``?socket_timeout=10``) overrule the ones given here. Raises UsageError when ``url`` is not
    such a URL."""
    try:
        client = redis.Redis.from_url(
            url,
            client_name="runner",
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=CONNECT_SECONDS,
            health_check_interval=HEALTH_CHECK_SECONDS,
            retry=Retry(ExponentialWithJitterBackoff(base=0.1, cap=0.5), 3),
        )
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # refuses options that it does not know
    except (ValueError, TypeError):
        # Neither the URL nor what was said about it is repeated: both may hold the password.
        raise UsageError(
            "the Redis URL cannot be read: it looks like redis://:password@host:6379/0, with /, ?, #,"
            " @ and : of a password written as %2F, %3F, %23, %40 and %3A"
        ) from None
    return client


def connect_impatiently(connection: redis.Redis, answer_seconds: float) -> redis.Redis:
    """Return a client of its own for the server of ``connection``, for loops that must stay
    stoppable: each command has one try of ``answer_seconds`` and answers in bytes, and the loop
    retries."""
    pool = connection.connection_pool
    own = {
        **pool.connection_kwargs,
        "socket_timeout": answer_seconds,
        "socket_connect_timeout": min(answer_seconds, CONNECT_SECONDS),
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": False,
    }
    return redis.Redis.from_pool(  # whose ``close`` closes the connections, too
        redis.ConnectionPool(connection_class=pool.connection_class, **own)
    )


def unreachable(error: redis.RedisError) -> UnreachableError:
    """Return the error for a server that does not answer, or refuses."""
    said = str(error).rstrip(".")
    return UnreachableError(
        f"{said}; due runs are taken from the database: check Redis and RUNNER_REDIS_URL"
    )

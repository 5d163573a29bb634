"""Streamed text on its way to whoever follows a run: the only thing in Runner that may be lost."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import cast

import redis
from redis.client import PubSub

from runner.queue.connection import connect, connect_impatiently

log = logging.getLogger(__name__)

BATCH_SECONDS = 0.1
# How often Redis is asked who follows, while text comes; so a follower joins up to 1 s late.
LOOK_SECONDS = 1.0
MOST_HELD = 1_000_000  # characters held for all runs together; what comes on top of it is dropped
ANSWER_SECONDS = 2.0
IDLE_SECONDS = 0.5
_CHANNELS = "runner:live:"


def channel_of(run_id: str) -> str:
    return _CHANNELS + run_id


class RedisLive:
    """``runner.ports.Live`` over Redis pub/sub, sent by one background thread. Text is taken only
    for runs with a follower; who has one is asked once a second for all runs, and only while text
    comes."""

    def __init__(self, connection: redis.Redis) -> None:
        self._connection = connect_impatiently(connection, ANSWER_SECONDS)
        self._lock = threading.Lock()
        self._held: dict[str, list[str]] = {}
        self._size = 0
        self._followed: frozenset[str] = frozenset()
        self._looked = -LOOK_SECONDS
        self._reached = True
        self._stirred = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live-text", daemon=True)
        self._thread.start()

    def publish(self, run_id: str, text: str) -> None:
        """Offer text of a run; dropped unless somebody follows it. Never waits for Redis."""
        if not self._stirred.is_set():
            self._stirred.set()
        if run_id not in self._followed:
            return
        with self._lock:
            if self._size + len(text) <= MOST_HELD:
                self._held.setdefault(run_id, []).append(text)
                self._size += len(text)

    def close(self) -> None:
        """Send what is held and end the thread; does not wait for a Redis that is away."""
        self._closed.set()
        self._stirred.set()
        self._thread.join(ANSWER_SECONDS)

    def _run(self) -> None:
        while not self._closed.is_set():
            self._stirred.wait()
            self._stirred.clear()
            self._exchange()
            self._closed.wait(BATCH_SECONDS if self._followed else LOOK_SECONDS)
        self._exchange()
        self._connection.close()

    def _exchange(self) -> None:
        """Send what is held and look, when it is time, who follows."""
        with self._lock:
            held, self._held, self._size = self._held, {}, 0
        try:
            if held:
                with self._connection.pipeline(transaction=False) as pipeline:
                    for run_id, texts in held.items():
                        # A lone surrogate in the model's text must not cost the rest of the batch.
                        text = "".join(texts).encode(errors="replace")
                        pipeline.publish(channel_of(run_id), text)
                    pipeline.execute()
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                self._looked = time.monotonic()
                found = cast("list[bytes]", self._connection.pubsub_channels(_CHANNELS + "*"))
                channels = (channel.decode(errors="replace") for channel in found)
                self._followed = frozenset(each.removeprefix(_CHANNELS) for each in channels)
        except redis.RedisError as error:
            self._followed = frozenset()
            if self._reached:
                log.debug("live text is dropped while Redis is away: %s", error)
            self._reached = False
        else:
            self._reached = True


class Listener:
    """Takes the live text of the runs that it follows. Text may be lost, and none comes while Redis is
    away: the caller still has the database. The text is the model's: escape it before it is shown."""

    def __init__(self, url: str) -> None:
        self._connection = connect_impatiently(connect(url), ANSWER_SECONDS)
        self._pubsub = PubSub(self._connection.connection_pool, ignore_subscribe_messages=True)
        self._wanted: frozenset[str] = frozenset()
        self._followed: frozenset[str] = frozenset()
        self._pause = threading.Event()

    def follow(self, run_ids: Iterable[str]) -> None:
        """Follow these runs, and no others, from the next ``read`` on."""
        self._wanted = frozenset(run_ids)

    def read(self, timeout: float = IDLE_SECONDS) -> tuple[str, str] | None:
        """Wait up to ``timeout`` seconds for text. Returns the run's id and the text; None if none came."""
        try:
            if self._followed != self._wanted:
                self._subscribe()
            message = self._pubsub.get_message(timeout=timeout)
        except redis.RedisError:
            self._pause.wait(timeout)
            return None
        if message is None:
            return None
        run_id = message["channel"].decode(errors="replace").removeprefix(_CHANNELS)
        return run_id, message["data"].decode(errors="replace")

    def _subscribe(self) -> None:
        if gone := self._followed - self._wanted:
            self._pubsub.unsubscribe(*map(channel_of, gone))  # type: ignore[no-untyped-call]
        if new := self._wanted - self._followed:
            self._pubsub.subscribe(*map(channel_of, new))
        self._followed = self._wanted

    def close(self) -> None:
        self._pubsub.close()
        self._connection.close()


def follow(url: str, run_id: str) -> Iterator[str | None]:
    """Yield live text of a run as it comes, for ever; the caller closes the iterator. Yields None after
    each half second without text, also while Redis is away, so that the caller can look into the
    database in between."""
    with closing(Listener(url)) as listener:
        listener.follow([run_id])
        while True:
            found = listener.read()
            yield None if found is None else found[1]

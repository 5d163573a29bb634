"""Cuts calls that make no progress or take too long: one thread for all calls of a process.

Read timeouts do not do: pings keep a stalled stream alive for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

Expiry = Literal["stream_stalled", "call_deadline"]

LOOK_SECONDS = 1.0
"""How often the calls are looked at at least: waiting itself does not count sleep."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def monotonic() -> float:
    """Seconds on a clock that nobody sets and that counts the machine's sleep as well."""
    return time.clock_gettime(_CLOCK)


class Watch:
    """One call under watch. ``expired`` says why it was cut, if it was."""

    def __init__(
        self,
        cut: Callable[[], None],
        stall_timeout: float,
        total_timeout: float,
    ) -> None:
        now = monotonic()
        self.expired: Expiry | None = None
        self._cut = cut
        self._stall_timeout = stall_timeout
        self._deadline = now + total_timeout
        self._progress_at = now

    def progress(self) -> None:
        """The call got on."""
        self._progress_at = monotonic()

    def due_at(self) -> float:
        """When the call is to be cut if nothing happens, on the clock of ``monotonic``."""
        return min(self._deadline, self._progress_at + self._stall_timeout)

    def expire(self, now: float) -> None:
        self.expired = "call_deadline" if now >= self._deadline else "stream_stalled"
        self._cut()


class Watchdog:
    """The thread that looks after calls; it starts with the first one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watches: set[Watch] = set()
        self._thread: threading.Thread | None = None
        self._wakes_at = float("inf")

    @contextmanager
    def watch(
        self, cut: Callable[[], None], stall_timeout: float, total_timeout: float
    ) -> Iterator[Watch]:
        """In the block, ``cut`` is called after ``stall_timeout`` seconds without progress, or
        ``total_timeout`` seconds in all."""
        watch = Watch(cut, stall_timeout, total_timeout)
        with self._changed:
            self._watches.add(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
                self._thread.start()
            elif watch.due_at() < self._wakes_at:
                self._changed.notify()
        try:
            yield watch
        finally:
            with self._changed:
                self._watches.discard(watch)

    def _run(self) -> None:
        with self._changed:
            while True:
                now = monotonic()
                for watch in [watch for watch in self._watches if watch.due_at() <= now]:
                    self._watches.remove(watch)
                    watch.expire(now)
                self._wakes_at = min(
                    (watch.due_at() for watch in self._watches), default=float("inf")
                )
                seconds = self._wakes_at - monotonic()
                self._changed.wait(min(max(0.0, seconds), LOOK_SECONDS) if self._watches else None)

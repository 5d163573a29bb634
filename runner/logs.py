"""Logs of workers: events with fields, and outages in a few lines."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

QUIET_SECONDS = 3.0
FIRST_INTERVAL_SECONDS = 15.0
LONGEST_INTERVAL_SECONDS = 900.0


def log_event(logger: logging.Logger, message: str, **fields: object) -> None:
    """Log at info level, with fields that a formatter appends to the message."""
    logger.info(message, extra={"fields": fields})


class Outage:
    """Logs that a part is away: at once, then at growing intervals, and when it is back. Any thread
    calls ``failed``; the loop that uses the part calls ``worked``, and it is back when nothing
    failed for a moment."""

    def __init__(
        self, part: str, logger: logging.Logger, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.why = ""  # what the last failure said; empty while the part is there
        self._part = part
        self._logger = logger
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._began = self._failed_at = self._log_at = self._interval = 0.0

    def failed(self, error: Exception) -> None:
        with self._lock:
            now = self._clock()
            if not self.why:
                self._failures, self._interval = 0, FIRST_INTERVAL_SECONDS
                self._began = self._log_at = now
            self._failures, self._failed_at = self._failures + 1, now
            self.why = str(error) or type(error).__name__
            if now >= self._log_at:
                self._log(f"{self._part} is away, trying on: {self.why}")
                self._log_at, self._interval = now + self._interval, 2 * self._interval
                self._interval = min(self._interval, LONGEST_INTERVAL_SECONDS)

    def worked(self) -> None:
        if not self.why:
            return
        with self._lock:
            if self.why and self._clock() - self._failed_at >= QUIET_SECONDS:
                self._log(f"{self._part} is back")
                self.why = ""

    def _log(self, message: str) -> None:
        """A warning for the end too: who was told of an outage is told that it is over."""
        fields = {"seconds": round(self._clock() - self._began), "failures": self._failures}
        self._logger.warning(message, extra={"fields": fields if self._failures > 1 else {}})

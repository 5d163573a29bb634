"""Ctrl-C and SIGTERM while a worker works in this process."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from runner.app.humanize import short_ids
from runner.cli import exit_codes

if TYPE_CHECKING:
    from runner.engine.worker import Worker

_QUIT_SECONDS = 2.0


class Interruption:
    """Ctrl-C and SIGTERM, while inside: the first drains the worker, a second Ctrl-C quits at once,
    after printing ``how_to_go_on``."""

    def __init__(self, how_to_go_on: str = "") -> None:
        self.happened = False
        self.by_person = False  # it was Ctrl-C
        self._how_to_go_on = how_to_go_on
        self.came_too_late = False  # the job had come to rest before
        self.give_back: Callable[[], None] | None = None  # the terminal, before it quits at once
        self._worker: Worker | None = None
        self._before: dict[int, Any] = {}

    @property
    def cut_short(self) -> bool:
        """True if the interruption came before the job's end."""
        return self.happened and not self.came_too_late

    def watch(self, worker: Worker) -> None:
        """Drain this worker when it happens, or now when it has happened."""
        self._worker = worker
        if self.happened:
            worker.drain()

    def __enter__(self) -> Interruption:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_second = self.happened and number == signal.SIGINT
        self.happened = True
        self.by_person |= number == signal.SIGINT
        if not is_second:
            if self._worker is not None:
                self._worker.drain()
            return
        if self._worker is not None:
            # On a thread: this handler may have interrupted whoever holds a lock that it needs.
            killing = threading.Thread(target=self._worker.kill, daemon=True)
            killing.start()
            killing.join(_QUIT_SECONDS)
        if self.give_back is not None:
            self.give_back()
        if self._how_to_go_on:
            # Not through sys.stderr: this handler may have interrupted a write to it.
            os.write(sys.stderr.fileno(), f"{short_ids(self._how_to_go_on)}\n".encode())
        os._exit(exit_codes.INTERRUPTED)

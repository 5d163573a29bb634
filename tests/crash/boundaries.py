"""Port calls, counted: right before and right after the n-th of them the process signals itself."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Boundaries:
    """Counts the moments right before and right after each call of a port.

    Args:
        at: the number of the moment (from 1) at which this process signals itself; None: never.
        number: the signal, SIGKILL or SIGSTOP.
        note: the file that then tells which moment it was.
    """

    def __init__(self, at: int | None, number: int, note: Path) -> None:
        self._at = at
        self._number = number
        self._note = note
        self._count = 0
        self._counting = threading.Lock()
        self._whole = threading.Lock()

    def around(self, name: str, call: Callable[[], T], *, whole: bool = False) -> T:
        """Call a port. ``whole``: this process is not stopped, only killed, in the middle of it."""
        self._cross(f"before {name}")
        try:
            with self._whole if whole else nullcontext():
                return call()
        finally:
            self._cross(f"after {name}")

    def _cross(self, what: str) -> None:
        with self._counting:
            self._count += 1
            if self._count != self._at:
                return
            self._note.write_text(f"boundary {self._count}, {what}")
            if self._number == signal.SIGKILL:
                os.kill(os.getpid(), signal.SIGKILL)
            # Sent to the process, the signal could stop another thread first, and this one go on.
            with self._whole:
                signal.pthread_kill(threading.get_ident(), self._number)


class Counted:
    """A port, every call of which is two boundaries, save of methods that are for ``looking`` only.
    ``whole`` says, given the call's arguments, whether the process may not be stopped in the middle."""

    def __init__(
        self,
        name: str,
        port: Any,
        boundaries: Boundaries,
        whole: Callable[..., bool] = lambda *arguments, **named: False,
        looking: Collection[str] = (),
    ) -> None:
        self._name = name
        self._port = port
        self._boundaries = boundaries
        self._whole = whole
        self._looking = looking

    def __getattr__(self, method: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(self._port, method)
        if method in self._looking:
            return call

        def counted(*arguments: Any, **named: Any) -> Any:
            return self._boundaries.around(
                f"{self._name}.{method}",
                lambda: call(*arguments, **named),
                whole=self._whole(*arguments, **named),
            )

        return counted

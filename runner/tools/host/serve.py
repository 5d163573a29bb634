"""The tool host's own loop: one keeper for every call, and the watchdog over the worker.

Single-threaded, because it forks. Its control socket carries one byte at a time: ``CALL``, with a
descriptor of the call's own socket, or ``ALIVE``. When the socket ends, or the worker has not been
heard of for too long while calls are in hand, the host exits, and every keeper takes that as its sign.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys

from runner.tools.host.keeper import NOT_STARTED, answer, keep, monotonic
from runner.tools.host.processes import kill_once, reap, subreaper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CALL = b"c"
ALIVE = b"a"
WATCHDOG_EXIT = 75
_LOOK_AT_CLOCK = 1.0  # poll(2) does not count the time that the machine sleeps


def main() -> None:
    """Serve the control socket whose descriptor is the first argument; the second is the watchdog's
    time in seconds."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    # Ctrl-C and the SIGTERM of a deploy are the worker's business: it drains, then closes the socket.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    gc.disable()
    gc.freeze()
    sys.exit(_Host(control, float(sys.argv[2])).serve())


class _Host:
    def __init__(self, control: socket.socket, watchdog: float) -> None:
        self._control = control
        self._watchdog = watchdog
        self._last_alive = monotonic()
        self._keepers: set[int] = set()
        self._become_subreaper: Callable[[], None] = subreaper()
        self._become_subreaper()
        # Nobody writes to this pipe: its end tells the keepers that the host is gone.
        self._life, self._life_held = os.pipe()
        self._children_ended = wake_on_child_end()

    def serve(self) -> int:
        """Serve until the worker is gone or silent; the exit status says which."""
        look_every = min(_LOOK_AT_CLOCK, self._watchdog / 4)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._children_ended, select.POLLIN)
        while True:
            ready = dict(poll.poll(look_every * 1000 if self._keepers else None))
            if self._children_ended in ready:
                os.read(self._children_ended, 512)
                self._bury_keepers()
            if self._control.fileno() in ready and not self._take_order():
                return 0
            if self._keepers and monotonic() - self._last_alive > self._watchdog:
                return WATCHDOG_EXIT

    def _take_order(self) -> bool:
        """Do what the worker said; False when its socket has ended."""
        try:
            order, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        except ConnectionResetError:
            return False
        if order == CALL and descriptors:
            with socket.socket(fileno=descriptors[0]) as call:
                call.set_inheritable(False)
                if not self._keepers:  # the watchdog looks only while calls are in hand
                    self._last_alive = monotonic()
                self._fork_keeper(call)
        elif order == ALIVE:
            self._last_alive = monotonic()
        return bool(order)

    def _fork_keeper(self, call: socket.socket) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            answer(call, NOT_STARTED, 0, f"no process could be started: {error}".encode())
            return
        if pid:
            self._keepers.add(pid)
            return
        try:
            self._control.close()
            os.close(self._life_held)
            os.close(self._children_ended)
            self._become_subreaper()
            keep(call, self._life, wake_on_child_end())
            os._exit(0)
        except BaseException:  # whatever it was, a keeper never goes back into the host's loop
            sys.excepthook(*sys.exc_info())
            os._exit(1)

    def _bury_keepers(self) -> None:
        """Take note of the keepers that ended. One that was killed left its processes to the host, and
        each of those that ends may leave others: they are killed until there are none."""
        orphaned = False
        for pid, status in reap().items():
            orphaned = orphaned or status != 0 or pid not in self._keepers
            self._keepers.discard(pid)
        if orphaned:
            kill_once(spare=self._keepers)


def wake_on_child_end() -> int:
    """A descriptor that becomes readable whenever a child of this process ends."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    previous = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    if previous != -1:
        os.close(previous)
    return readable


if __name__ == "__main__":
    main()

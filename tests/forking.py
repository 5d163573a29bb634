"""Processes at the price of a fork: one process for each kind imports what they need, does nothing, and
forks each of them: with the environment, folder and streams that it is given, and its own signals."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
PR_SET_PDEATHSIG = 1
_MOST_BYTES = 1 << 20
_STATUS_BYTES = 4


class Forked:
    """A process that was forked.

    Args:
        module: the one of the process that forks it, which calls ``serve``.
        arguments: what ``serve`` returns in it.
        folder: its current directory. environment: all of it. streams: its stdin, stdout and stderr.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        streams: Sequence[int],
    ) -> None:
        self.returncode: int | None = None
        self._told, told = os.pipe()
        try:
            order = [list(arguments), str(folder), dict(environment)]
            self.pid = _forker(module).fork(order, (told, *streams))
        finally:
            os.close(told)

    def look(self, timeout: float | None) -> int | None:
        """Its exit code, None while it lives. Waits for its end so many seconds, or as long as it takes.
        If ``serve`` tells of stops, once for each: minus the signal's number."""
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            told = os.read(self._told, _STATUS_BYTES)
            assert told, "the process that forks others was killed"
            status = int.from_bytes(told, "big")
            if os.WIFSTOPPED(status):
                return -os.WSTOPSIG(status)
            os.close(self._told)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.look(0) is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class _Forker:
    """The process that forks the others, as a test sees it."""

    def __init__(self, module: str) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=_ROOT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def fork(self, order: Any, descriptors: Sequence[int]) -> int:
        """Have a process forked; its id."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(order).encode()], list(descriptors))
            answer = self._socket.recv(100)
            assert answer, self._process.communicate()
            return int(answer)

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.communicate()


_forkers: dict[str, _Forker] = {}
_starting = threading.Lock()


def _forker(module: str) -> _Forker:
    with _starting:
        if module not in _forkers:
            _forkers[module] = _Forker(module)
        return _forkers[module]


def close() -> None:
    """End the processes that fork others."""
    while _forkers:
        _forkers.popitem()[1].close()


# --- the process that forks -----------------------------------------------------------------------


def serve(prepare: Callable[[], None], *, stops: bool = False) -> list[str]:
    """Fork a process for each order on the socket whose number is the first argument.

    Args:
        prepare: imports the modules that the forked processes need.
        stops: also report a process that a signal has stopped.

    Returns:
        Only in the forked processes: their arguments.
    """
    if sys.platform == "linux":  # be killed when the tests are (prctl(2))
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    orders = socket.socket(fileno=int(sys.argv[1]))
    orders.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _MOST_BYTES)
    prepare()
    gc.collect()
    gc.freeze()
    return _serve(orders, os.WNOHANG | (os.WUNTRACED if stops else 0))


def _serve(orders: socket.socket, options: int) -> list[str]:
    """Fork a process for each order. Returns in the forked ones alone: their arguments."""
    told: dict[int, int] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([orders, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap(told, options)
        if orders in ready:
            message, descriptors, _, _ = socket.recv_fds(orders, _MOST_BYTES, 4)
            if not message:  # the tests have ended
                sys.exit()
            status, *streams = descriptors
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                # As at a terminal: nohup, or a shell in the background, may run the tests.
                signal.signal(signal.SIGHUP, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                orders.close()
                for descriptor in (woken, wake, status, *told.values()):
                    os.close(descriptor)
                return _settle_in(*json.loads(message), streams)
            told[pid] = status
            for descriptor in streams:
                os.close(descriptor)
            orders.send(str(pid).encode())


def _reap(told: dict[int, int], options: int) -> None:
    """Report the exit codes of ended processes, and which processes are stopped."""
    while told:
        pid, status = os.waitpid(-1, options)
        if not pid:
            return
        with suppress(BrokenPipeError):  # nobody waits for it any more
            os.write(told[pid], status.to_bytes(_STATUS_BYTES, "big"))
        if not os.WIFSTOPPED(status):
            os.close(told.pop(pid))


def _settle_in(
    arguments: list[str], folder: str, environment: dict[str, str], streams: Sequence[int]
) -> list[str]:
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    tempfile.tempdir = None
    sys.path[0] = folder
    return arguments

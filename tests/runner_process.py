"""The ``runner`` command in a process of its own, at the price of a fork.

Starting Python and importing all of Runner takes most of a second of a processor, and hundreds of
processes are started. So one process imports everything, does nothing, and forks each of them: with
the environment, folder and streams that it is given, its own signals, and Python's whole end of a
process. What tests the start itself starts ``python -m runner``.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
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
from typing import IO, Any

ROOT = Path(__file__).parents[1]
_PR_SET_PDEATHSIG = 1
_MOST_BYTES = 1 << 20
# Commands that threads and processes end with: these end as a whole.
_WITH_THREADS = ("run", "worker")
_LIBRARIES = ("alembic.command", "anthropic.types", "psycopg", "redis", "rq", "rich.console")
# They run something when they are imported, or need what is not always installed.
_NOT_IMPORTED = ("runner.__main__", "runner.migrations", "runner.telemetry")


class RunnerProcess:
    """A ``runner`` process, used like ``subprocess.Popen`` with text streams.

    Args:
        arguments: of the command.
        folder: its current directory. environment: all of it.
        stdin: ``subprocess.PIPE`` for an empty pipe that stays open, or nothing to read.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self.args = ["runner", *arguments]
        self.returncode: int | None = None
        self._ended, told = os.pipe()
        out, child_out = os.pipe()
        err, child_err = os.pipe()
        child_in, self._stdin = _standard_input(stdin)
        theirs = (told, child_in, child_out, child_err)
        try:
            order = [list(arguments), str(folder), dict(environment)]
            self.pid = _the_forker().fork(order, theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self.stdout: IO[str] | None = open(out)  # noqa: SIM115 - closed with the process
        self.stderr: IO[str] | None = open(err)  # noqa: SIM115
        self._readers: dict[str, tuple[threading.Thread, list[str]]] = {}

    def poll(self) -> int | None:
        """Its exit code, None while it lives."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended. Raises ``subprocess.TimeoutExpired``."""
        if self._look(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it writes until its end. Raises ``subprocess.TimeoutExpired``; it goes on then."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for name in ("stdout", "stderr"):
            if name not in self._readers and getattr(self, name) is not None:
                self._readers[name] = self._read(getattr(self, name))
        for reader, _ in self._readers.values():
            reader.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self.close()
        texts = [
            "".join(self._readers[name][1]) if name in self._readers else ""
            for name in ("stdout", "stderr")
        ]
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Close its streams."""
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            told = os.read(self._ended, 100)
            os.close(self._ended)
            assert told, "the process that forks others was killed"
            self.returncode = os.waitstatus_to_exitcode(int(told))
        return self.returncode

    @staticmethod
    def _read(stream: IO[str]) -> tuple[threading.Thread, list[str]]:
        texts: list[str] = []
        reader = threading.Thread(target=lambda: texts.append(stream.read()), daemon=True)
        reader.start()
        return reader, texts


class _Forker:
    """The process that forks the others, as a test sees it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=ROOT,
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


_forker: _Forker | None = None
_starting = threading.Lock()


def _the_forker() -> _Forker:
    global _forker
    with _starting:
        _forker = _forker or _Forker()
        return _forker


def close() -> None:
    """End the process that forks the others, if there is one."""
    global _forker
    if _forker is not None:
        _forker.close()
        _forker = None


def _standard_input(kind: int) -> tuple[int, int | None]:
    if kind == subprocess.PIPE:
        return os.pipe()
    assert kind == subprocess.DEVNULL
    return os.open(os.devnull, os.O_RDONLY), None


# --- the process that forks -----------------------------------------------------------------------


def _import_everything() -> None:
    import runner

    for module in pkgutil.walk_packages(runner.__path__, "runner."):
        if not module.name.startswith(_NOT_IMPORTED):
            importlib.import_module(module.name)
    for name in _LIBRARIES:
        importlib.import_module(name)


def _serve(orders: socket.socket) -> list[str]:
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
            _reap(told)
        if orders in ready:
            message, descriptors, _, _ = socket.recv_fds(orders, _MOST_BYTES, 4)
            if not message:  # the tests have ended
                sys.exit()
            status, *streams = descriptors
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                orders.close()
                for descriptor in (woken, wake, status, *told.values()):
                    os.close(descriptor)
                return _settle_in(*json.loads(message), streams)
            told[pid] = status
            for descriptor in streams:
                os.close(descriptor)
            orders.send(str(pid).encode())


def _reap(told: dict[int, int]) -> None:
    """Say how those that have ended did."""
    while told:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        descriptor = told.pop(pid)
        with suppress(BrokenPipeError):  # nobody waits for it any more
            os.write(descriptor, str(status).encode())
        os.close(descriptor)


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


def _main() -> None:
    if sys.platform == "linux":  # be killed when the tests are (prctl(2))
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    orders = socket.socket(fileno=int(sys.argv[1]))
    orders.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _MOST_BYTES)
    _import_everything()
    from runner.cli.main import main

    gc.collect()
    gc.freeze()
    arguments = _serve(orders)
    sys.argv = ["runner", *arguments]
    if arguments and arguments[0] in _WITH_THREADS:
        main()
    else:
        _end_at_once(main)


def _end_at_once(main: Callable[[], None]) -> None:
    """Run a command, and end as Python does, save that nothing is taken apart: that would copy, page
    by page, what is shared with the process that forks, and takes more than most commands do."""
    status: Any = 0
    try:
        main()
    except SystemExit as end:
        status = end.code or 0
    if not isinstance(status, int):
        sys.exit(status)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _main()

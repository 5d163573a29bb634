"""The ``runner`` command in a process of its own, at the price of a fork.

Starting Python and importing all of Runner takes most of a second of a processor, and hundreds of
processes are started. So one process imports everything, does nothing, and forks each of them: with
the environment, folder and streams that it is given, its own signals, and Python's whole end of a
process. What tests the start itself starts ``python -m runner``.
"""

from __future__ import annotations

import atexit
import fcntl
import importlib
import os
import pkgutil
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.forking import Forked, serve

_MODULE = "tests.runner_process"  # by which it is known in a list of processes
# Commands that threads and processes end with: these end as a whole.
_WITH_THREADS = ("run", "worker")
_LIBRARIES = ("alembic.command", "anthropic.types", "psycopg", "redis", "rq", "rich.console")
# They run something when they are imported, or need what is not always installed.
_NOT_IMPORTED = ("runner.__main__", "runner.telemetry")


class _Runner(Forked):
    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        streams: Sequence[int],
    ) -> None:
        self.args = ["runner", *arguments]
        super().__init__(_MODULE, arguments, folder, environment, streams)

    def poll(self) -> int | None:
        """Its exit code, None while it lives."""
        return self.look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended. Raises ``subprocess.TimeoutExpired``."""
        if self.look(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class RunnerAtTerminal(_Runner):
    """A ``runner`` process that a terminal controls: all of its streams are that. Used like
    ``subprocess.Popen``."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], terminal: int
    ) -> None:
        super().__init__(arguments, folder, environment, (terminal,) * 3)


class RunnerProcess(_Runner):
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
        out, child_out = os.pipe()
        err, child_err = os.pipe()
        child_in, self._stdin = _standard_input(stdin)
        theirs = (child_in, child_out, child_err)
        try:
            super().__init__(arguments, folder, environment, theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self.stdout: IO[str] | None = open(out)  # noqa: SIM115 - closed with the process
        self.stderr: IO[str] | None = open(err)  # noqa: SIM115
        self._readers: dict[str, tuple[threading.Thread, list[str]]] = {}

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

    def close(self) -> None:
        """Close its streams."""
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None

    @staticmethod
    def _read(stream: IO[str]) -> tuple[threading.Thread, list[str]]:
        texts: list[str] = []
        reader = threading.Thread(target=lambda: texts.append(stream.read()), daemon=True)
        reader.start()
        return reader, texts


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


def _main() -> None:
    arguments = serve(_import_everything)
    if os.isatty(0):
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    from runner.cli.main import main

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

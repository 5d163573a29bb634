"""The worker's side of the tool host: start it, hand it calls, cut them, send heartbeats.

``run_reporting`` runs a child of Runner's own code and makes a tool result of its report.
"""

from __future__ import annotations

import errno
import marshal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from runner.core.conversation import ToolOutcome, ToolResult
from runner.core.text import plain
from runner.errors import Interrupted
from runner.ports import Interrupt, ToolCall
from runner.tools import host_process
from runner.tools.file_access import ToolFailure
from runner.tools.host_process import LOCK_FILE, lock_offset
from runner.tools.output import present

MOST_OUTPUT_BYTES = 10_000_000
WATCHDOG_SECONDS = 10.0

_CODE_ROOT = str(Path(__file__).resolve().parents[2])
_END_PATIENCE = 5.0
_CHUNK = 1 << 18

_HEAD_FIELDS = 5
# Its socket was closed, by its death or by another call that found it dead first.
_HOST_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.EBADF})

End = Literal["exited", "timed_out", "not_started", "lost"]
_ENDS: dict[str, End] = {
    host_process.EXITED: "exited",
    host_process.TIMED_OUT: "timed_out",
    host_process.NOT_STARTED: "not_started",
}


@dataclass(frozen=True, slots=True)
class Start:
    """A process to start: its arguments (the first is a path), its folder, what it reads from stdin
    (nothing: /dev/null), its timeout in seconds, and the run that it works for. ``merge`` sends what
    it writes to stderr into the output, in order."""

    arguments: Sequence[str]
    folder: Path
    run_id: str
    timeout: float
    stdin: bytes = b""
    merge: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """How a call's process ended. ``lost``: the host or the keeper died, and the tool with it.

    ``exit_code`` is negative for a signal. ``cut`` says that there was more output than the 10
    MB kept; so much is kept of the errors too. ``output`` says why, when the process was not started.
    """

    end: End
    exit_code: int = 0
    output: bytes = b""
    errors: bytes = b""
    cut: bool = False


@dataclass(frozen=True, slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    control: socket.socket


def boot(module: str, *arguments: str, site: bool = False, isolated: bool = True) -> list[str]:
    """The command that runs ``main()`` of one of Runner's modules in an interpreter of its own; with
    ``site``, with the installed packages; ``isolated`` from the user's environment or not."""
    flags = ["-I" if isolated else "-P"] + ([] if site else ["-S"])
    code = f"import sys; sys.path.append(sys.argv.pop(1)); from {module} import main; main()"
    return [sys.executable, *flags, "-c", code, _CODE_ROOT, *arguments]


class ToolHost:
    """The worker's tool host, started when it is first needed and again when it died.

    Args:
        environment: the environment of the host and of everything that it starts.
        lock_dir: an existing folder, local to this machine, for the lock file of the runs.
        watchdog_seconds: without ``alive`` for so long, all tools in hand are killed.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        lock_dir: Path,
        watchdog_seconds: float = WATCHDOG_SECONDS,
    ) -> None:
        self._environment = dict(environment)
        self._lock_file = str(lock_dir / LOCK_FILE)
        self._watchdog_seconds = watchdog_seconds
        self._starting = threading.Lock()
        self._running: _Running | None = None

    def call(self, start: Start, interrupt: Interrupt) -> Ended:
        """Run a process to its end. When this returns or raises, all processes of the call are gone.
        What keeps the worker from handing the call over (no descriptors left, no memory) is an end
        like any other: ``not_started``.

        Raises:
            Interrupted: ``interrupt`` cut the call, or the watchdog did (``dropped``).
        """
        try:
            near, far = socket.socketpair()
        except OSError as error:
            return _not_started(error)
        with near, far, interrupt.cut_by(partial(_cut, near)):
            try:
                host = self._hand_over(far)
            except OSError as error:
                return _not_started(error)
            far.close()
            # The worker may have slept meanwhile; from here on the host's watchdog sees to that.
            interrupt.check()
            # A broken pipe: cut, or the host died. The answer, or its absence, says which.
            with suppress(BrokenPipeError, ConnectionResetError):
                near.sendall(self._request(start))
            end, ended = _parse(_receive_all(near))
        if ended.end != "lost":
            return ended
        interrupt.check()
        if end == host_process.ABANDONED:
            host.process.wait(_END_PATIENCE)
        if host.process.poll() == host_process.WATCHDOG_EXIT:
            raise Interrupted
        return ended

    def alive(self) -> None:
        """Tell the host that this worker is alive and holds its leases; never waits."""
        host = self._running
        if host is None:
            return
        try:
            host.control.send(host_process.ALIVE, socket.MSG_DONTWAIT)
        except OSError:
            return  # the host is gone, or so busy that it has thousands of orders to read first

    def close(self) -> None:
        """End the host and with it every tool process."""
        with self._starting:
            host, self._running = self._running, None
        if host is not None:
            _end(host)

    def _request(self, start: Start) -> bytes:
        body = marshal.dumps(
            {
                "argv": list(start.arguments),
                "folder": str(start.folder),
                "stdin": start.stdin,
                "merge": start.merge,
                "timeout": start.timeout,
                "most_bytes": MOST_OUTPUT_BYTES,
                "lock_file": self._lock_file,
                "lock_offset": lock_offset(start.run_id),
            }
        )
        return len(body).to_bytes(8, "big") + body

    def _hand_over(self, far: socket.socket) -> _Running:
        """Give the host a call's socket; a host that died is replaced, once."""
        host = self._host()
        try:
            socket.send_fds(host.control, [host_process.CALL], [far.fileno()])
        except OSError as error:
            if error.errno not in _HOST_GONE:  # it lives, and other calls' tools with it
                raise
            host = self._host(instead_of=host)
            socket.send_fds(host.control, [host_process.CALL], [far.fileno()])
        return host

    def _host(self, instead_of: _Running | None = None) -> _Running:
        with self._starting:
            host = self._running
            if host is not None and (host is instead_of or host.process.poll() is not None):
                _end(host)
                host = None
            if host is None:
                host = self._running = self._start_host()
            return host

    def _start_host(self) -> _Running:
        control, theirs = socket.socketpair()
        with theirs:
            try:
                process = subprocess.Popen(
                    boot(host_process.__name__, str(theirs.fileno()), str(self._watchdog_seconds)),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=self._environment,
                    pass_fds=[theirs.fileno()],
                    cwd="/",
                    start_new_session=True,  # Ctrl-C in a terminal is for the worker
                )
            except OSError:
                control.close()
                raise
        return _Running(process, control)


def _not_started(error: OSError) -> Ended:
    return Ended("not_started", output=str(error).encode("utf-8", "replace"))


def _cut(near: socket.socket) -> None:
    try:
        near.shutdown(socket.SHUT_WR)
    except OSError:
        return  # cut before, or the call is over


def _receive_all(near: socket.socket) -> bytes:
    chunks = []
    try:
        while chunk := near.recv(_CHUNK):
            chunks.append(chunk)
    except ConnectionResetError:
        return b""
    return b"".join(chunks)


def _parse(answer: bytes) -> tuple[str, Ended]:
    """The keeper's answer: its own word for the end, and what became of the call. An answer that is
    not whole means that the keeper was killed."""
    head, _, body = answer.partition(b"\n")
    fields = head.decode().split()
    if len(fields) != _HEAD_FIELDS or len(body) != int(fields[3]) + int(fields[4]):
        return "", Ended("lost")
    end, exit_code, cut, output_size, _ = fields
    output, errors = body[: int(output_size)], body[int(output_size) :]
    known = _ENDS.get(end, "lost")
    return end, Ended(known, int(exit_code), output, errors, cut == "1")


def _end(host: _Running) -> None:
    host.control.close()
    try:
        host.process.wait(_END_PATIENCE)
    except subprocess.TimeoutExpired:
        host.process.kill()
        host.process.wait()


_OUTCOMES: dict[bytes, ToolOutcome] = {
    b"succeeded": "succeeded",
    b"failed": "failed",
    b"invalid_input": "invalid_input",
}
_LAST_WORDS = 2_000


def run_reporting(call: ToolCall, start: Start, host: ToolHost, interrupt: Interrupt) -> ToolResult:
    """Run a child that tells its outcome (``runner.tools.host_process``) to its end.

    Raises:
        ToolFailure: it ended without telling. Interrupted: it was cut.
    """
    name = call.tool.name
    ended = host.call(start, interrupt)
    if ended.end == "timed_out":
        raise ToolFailure(
            f"{name} was killed: it took more than {start.timeout:g} s. Ask for less, more simply.",
            "timed_out",
        )
    if ended.end == "not_started":
        raise ToolFailure(f"{name} could not be started: {ended.output.decode('utf-8', 'replace')}")
    if ended.end == "lost":
        raise ToolFailure(
            f"the process that watched over {name} was killed, and {name} with it", "interrupted"
        )
    word, newline, text = ended.output.partition(b"\n")
    outcome = _OUTCOMES.get(word)
    if not newline or outcome is None:
        said = plain(ended.errors.decode("utf-8", "replace")[-_LAST_WORDS:]).strip()
        how = (
            f"signal {-ended.exit_code}" if ended.exit_code < 0 else f"exit code {ended.exit_code}"
        )
        raise ToolFailure(f"{name} ended without a result ({how}). {said}".rstrip())
    copy = call.surroundings.outputs / f"{call.id}.txt"
    content, output = present(text, copy, cut=ended.cut)
    return ToolResult(content, outcome, output)

"""The keeper of one call: starts the tool, collects its output, ends all of its processes.

Runs in a process of its own, forked from the tool host. Order matters: the run's lock is taken before
the look at whether the worker still wants the call, so whoever saw the lock free after the worker's
death can be sure that nothing is started any more; and it is released when all processes are gone.
"""

# ruff: noqa: PTH108
# (pathlib costs every fork memory)

from __future__ import annotations

import fcntl
import marshal
import os
import select
import signal
import time

from runner.tools.host.processes import kill_descendants, reap

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

EXITED = "exited"
TIMED_OUT = "timed_out"
CUT = "cut"  # the worker closed its end
ABANDONED = "abandoned"  # the host is gone
NOT_STARTED = "not_started"

_LOOK_AT_CLOCK = 5.0  # poll(2) does not count the time that the machine sleeps
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_CHUNK = 1 << 16
_PIPE_CHUNKS = 64
_RESET_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD)


def monotonic() -> float:
    """Seconds for durations, counting the time that the machine sleeps."""
    return time.clock_gettime(_CLOCK)


def keep(call: socket.socket, life: int, children_ended: int) -> None:
    """See one call to its end.

    Args:
        call: the worker's socket: gives the request, its end means stop, takes the answer.
        life: a pipe that ends when the host does.
        children_ended: readable when a child of this process ended.
    """
    request = _read_request(call)
    if request is None:
        return
    try:
        lock = os.open(request["lock_file"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(lock, fcntl.LOCK_SH, 1, request["lock_offset"])
        if _ended(call.fileno()) or _ended(life):
            return
        output, errors = _Collected(request["most_bytes"]), _Collected(request["most_bytes"])
        main = _start(request, output, errors)
    except OSError as error:
        answer(call, NOT_STARTED, 0, str(error).encode("utf-8", "replace"))
        return
    end, status = _watch(call, life, children_ended, main, request["timeout"], (output, errors))
    status = kill_descendants(group=main).get(main, status)
    for collected in (output, errors):
        collected.drain()
    os.close(lock)
    answer(
        call,
        end,
        os.waitstatus_to_exitcode(status),
        output.kept,
        errors.kept,
        output.cut,
    )


def answer(
    call: socket.socket,
    end: str,
    exit_code: int,
    output: bytes | bytearray,
    errors: bytes | bytearray = b"",
    cut: bool = False,
) -> None:
    """Tell the worker how a call ended; a worker that is gone is not told. ``cut``: there was more
    output than is kept, and of errors nobody asks that."""
    head = f"{end} {exit_code} {int(cut)} {len(output)} {len(errors)}\n".encode()
    try:
        for part in (head, output, errors):
            call.sendall(part)
    except (BrokenPipeError, ConnectionResetError):
        return


class _Collected:
    """What came through one pipe of a tool: the first ``most`` bytes of it."""

    def __init__(self, most: int) -> None:
        self.kept = bytearray()
        self.cut = False
        self._most = most
        self.readable, self.writable = os.pipe()
        os.set_blocking(self.readable, False)

    def take(self) -> bool:
        """Read what there is, once; False at the pipe's end. Bytes past the most are thrown away, so
        that a tool which prints for ever is neither held up nor heard."""
        chunk = os.read(self.readable, _CHUNK)
        room = self._most - len(self.kept)
        self.kept += chunk[:room]
        self.cut = self.cut or len(chunk) > room
        return bool(chunk)

    def drain(self) -> None:
        """Read what is left when all processes are gone. A stranger who was handed the pipe could go
        on writing: no more is read than a pipe can hold."""
        try:
            for _ in range(_PIPE_CHUNKS):
                if not self.take():
                    return
        except BlockingIOError:
            return


def _read_request(call: socket.socket) -> dict[str, Any] | None:
    """The request, or None when the worker went away in the middle of it."""
    size = int.from_bytes(_receive(call, 8), "big")
    body = _receive(call, size)
    if not size or len(body) < size:
        return None
    # marshal: worker and host are the same interpreter, and json would cost each fork 0.5 MB.
    request: dict[str, Any] = marshal.loads(body)
    return request


def _receive(call: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size and (chunk := call.recv(min(size - len(received), _CHUNK))):
        received += chunk
    return bytes(received)


def _ended(descriptor: int) -> bool:
    """Whether the other side of a socket or pipe is closed; nobody sends anything on these."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _start(request: dict[str, Any], output: _Collected, errors: _Collected) -> int:
    """Start the tool's process in a session of its own.

    Raises:
        OSError: it could not be started; the text says why.
    """
    stdin = _stdin(request["stdin"], request["lock_file"])
    failure, failure_written = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.chdir(request["folder"])
            merged = output if request["merge"] else errors
            for source, target in ((stdin, 0), (output.writable, 1), (merged.writable, 2)):
                os.dup2(source, target)
            for number in _RESET_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            os.execve(request["argv"][0], request["argv"], dict(os.environ))
        except (OSError, ValueError) as error:
            os.write(failure_written, str(error).encode("utf-8", "replace"))
        finally:
            os._exit(127)
    for descriptor in (stdin, failure_written, output.writable, errors.writable):
        os.close(descriptor)
    with os.fdopen(failure, "rb") as file:
        if problem := file.read():
            raise OSError(problem.decode("utf-8", "replace"))
    return pid


def _stdin(content: bytes, beside: str) -> int:
    """A descriptor to read ``content`` from: a file without a name, which never blocks a writer."""
    if not content:
        return os.open(os.devnull, os.O_RDONLY)
    path = f"{beside}.{os.getpid()}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    os.unlink(path)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _watch(
    call: socket.socket,
    life: int,
    children_ended: int,
    main: int,
    timeout: float,
    pipes: tuple[_Collected, ...],
) -> tuple[str, int]:
    """Collect output until the main process ends or has to; how it ended, and its wait status."""
    deadline = monotonic() + timeout
    poll = select.poll()
    for descriptor in (call.fileno(), life, children_ended, *(pipe.readable for pipe in pipes)):
        poll.register(descriptor, select.POLLIN)
    while True:
        left = deadline - monotonic()
        if left <= 0:
            return TIMED_OUT, 0
        ready = dict(poll.poll(min(left, _LOOK_AT_CLOCK) * 1000 + 1))
        if call.fileno() in ready:
            return CUT, 0
        if life in ready:
            return ABANDONED, 0
        for pipe in pipes:
            if pipe.readable in ready and not pipe.take():
                poll.unregister(pipe.readable)
        if children_ended in ready:
            os.read(children_ended, 512)
            statuses = reap()
            if main in statuses:
                return EXITED, statuses[main]

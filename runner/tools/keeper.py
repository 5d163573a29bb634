"""A keeper: the process that the tool host forks for each call. It starts the tool's process, collects
its output, and kills it with everything that it started, at its timeout at the latest (``host_process``).

Keepers are forked with this module in them: it imports little, and only the standard library.
"""

# ruff: noqa: PTH108

from __future__ import annotations

import fcntl
import marshal
import os
import select
import signal
import socket
import time

from runner.tools.limits import Limits
from runner.tools.process_tree import end_descendants, reap
from runner.tools.sandbox_gate import Gate
from runner.tools.sandbox_landlock import restrict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

KEEPER = b"k"  # the first byte on a call's socket, with a pidfd of the keeper where there are such

EXITED = "exited"
TIMED_OUT = "timed_out"
CUT = "cut"  # the worker closed its end
ABANDONED = "abandoned"  # the host is gone
ENGINE_FAILED = 125  # exit code of a container engine's client
NOT_STARTED = "not_started"
LIMITED = "limited"  # it passed a limit

LOOK_AT_CLOCK = 5.0  # poll(2) does not count the time that the machine sleeps
LOOK_AGAIN = 0.01
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_CHUNK = 1 << 16
_PIPE_CHUNKS = 64
_RESET_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGPIPE,
    signal.SIGCHLD,
    signal.SIGCONT,
)
_REMOVAL_PATIENCE = 4.0  # for a container to be removed; less than the host gives its keepers


def monotonic() -> float:
    """Return seconds for durations, counting the time that the machine sleeps."""
    return time.clock_gettime(_CLOCK)


def keep(call: socket.socket, life: int, children_ended: int, channel: Sequence[int]) -> None:
    """See one call to its end.

    Args:
        call: the worker's socket: gives the request, its end means stop, takes the answer.
        life: a pipe that ends when the host does.
        children_ended: readable when a child of this process ended.
        channel: a socket that becomes the process's stdin and stdout, if any.
    """
    try:
        with call.makefile("rb") as stream:
            # marshal: worker and host are the same interpreter, and json would cost each fork 0.5 MB.
            request: dict[str, Any] = marshal.load(stream)
    except EOFError:  # the worker went away in the middle of it
        return
    try:
        _introduce(call)
        lock = os.open(request["lock_file"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(lock, fcntl.LOCK_SH, 1, request["lock_offset"])
        poll = select.poll()
        for descriptor in (call.fileno(), life):  # readable only at their end
            poll.register(descriptor, select.POLLIN)
        if poll.poll(0):
            return
        process = _Process(request, channel)
    except OSError as error:
        answer(call, NOT_STARTED, 0, str(error).encode("utf-8", "replace"))
        return
    end, status = process.watch(call.fileno(), life, children_ended)
    exit_code = process.end(status)
    if request["removal"] and (end != EXITED or exit_code < 0 or exit_code == ENGINE_FAILED):
        _run_aside(request["removal"])
    told = process.told(end, exit_code)
    os.close(lock)
    answer(call, *told)


def answer(call: socket.socket, *told: Any) -> None:
    """Tell the worker how a call ended: the fields of ``host.Ended``. A worker that is gone is not told."""
    try:
        call.sendall(marshal.dumps(told))
        call.shutdown(socket.SHUT_WR)
    except OSError:
        return


def _introduce(call: socket.socket) -> None:
    """Send the worker a descriptor of this process, to kill it by. Raises ``OSError``."""
    try:
        process = os.pidfd_open(os.getpid())
    except (AttributeError, OSError):  # not Linux, or an old one
        call.sendall(KEEPER)
        return
    socket.send_fds(call, [KEEPER], [process])
    os.close(process)


def _run_aside(arguments: list[str]) -> None:
    """Run a program for a limited time and ignore its outcome."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        streams = [(os.POSIX_SPAWN_DUP2, null, descriptor) for descriptor in range(3)]
        pid = os.posix_spawn(arguments[0], arguments, os.environ, file_actions=streams)
    except OSError:
        return
    finally:
        os.close(null)
    until = monotonic() + _REMOVAL_PATIENCE
    while pid not in reap() and monotonic() < until:
        time.sleep(LOOK_AGAIN)
    end_descendants()


class _Collected:
    """The first ``most`` bytes from one pipe of a tool."""

    def __init__(self, most: int) -> None:
        self.kept = bytearray()
        self.cut = False
        self._most = most
        self.readable, self.writable = os.pipe()
        os.set_blocking(self.readable, False)

    def take(self) -> bool:
        """Read what has come, once; return False at the pipe's end. Bytes past the most are thrown
        away, so that a tool which prints for ever is neither held up nor heard."""
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


class _Process:
    """The tool's process, in a session of its own. Making one starts it, and raises ``OSError`` with the
    reason if that fails."""

    def __init__(self, request: dict[str, Any], channel: Sequence[int]) -> None:
        self._timeout = request["timeout"]
        self._output = _Collected(request["most_bytes"])
        self._errors = _Collected(request["most_bytes"])
        self._limits = Limits(*request["limits"])
        self._gate = Gate(*request["gate"]) if request["gate"] else None
        self._pid = self._start(request, channel)

    def _start(self, request: dict[str, Any], channel: Sequence[int]) -> int:
        stdin = _stdin(request["stdin"], f"{request['lock_file']}.{os.getpid()}")
        failure, failure_written = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self._become(request, (*channel, *channel) or (stdin, self._output.writable))
            except (OSError, ValueError) as error:
                why = str(error)
                if isinstance(error, OSError) and error.filename:  # as bubblewrap says it
                    why = f"{error.filename}: {error.strerror}"
                os.write(failure_written, why.encode("utf-8", "replace"))
            finally:
                os._exit(127)
        ours = (stdin, failure_written, self._output.writable, self._errors.writable)
        for descriptor in (*ours, *channel):
            os.close(descriptor)
        if self._gate is not None:
            self._gate.leave()
        with os.fdopen(failure, "rb") as file:
            if problem := file.read():
                self._limits.end()
                raise OSError(problem.decode("utf-8", "replace"))
        return pid

    def _become(self, request: dict[str, Any], streams: Sequence[int]) -> NoReturn:
        """Turn this new process into the tool's. Raises ``OSError`` and ``ValueError``."""
        os.setsid()
        os.chdir(request["folder"])
        merged = self._output if request["merge"] else self._errors
        for target, source in enumerate((*streams, merged.writable)):
            os.dup2(source, target)
        for number, path in request["descriptors"].items():
            os.dup2(os.open(path, os.O_RDONLY | os.O_CLOEXEC), number)
        if self._gate is not None:
            self._gate.enter()
        for number in _RESET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        self._limits.enter()
        variables = {**os.environ, **request["variables"]}
        environment = {name: each for name, each in variables.items() if each is not None}
        if request["landlock"] is not None:
            restrict(*request["landlock"])
        os.execve(request["argv"][0], request["argv"], environment)

    def watch(self, call: int, life: int, children_ended: int) -> tuple[str, int]:
        """Collect output until the process ends or has to; return how it ended, and its wait status."""
        deadline = monotonic() + self._timeout
        pipes, gate, limits = (self._output, self._errors), self._gate, self._limits
        poll = select.poll()
        for descriptor in (call, life, children_ended, *(pipe.readable for pipe in pipes)):
            poll.register(descriptor, select.POLLIN)
        if gate is not None:
            poll.register(gate.held, select.POLLOUT)
        while True:
            left = deadline - monotonic()
            if left <= 0:
                return TIMED_OUT, 0
            if limits.look():
                return LIMITED, 0
            ready = dict(poll.poll(min(left, LOOK_AT_CLOCK, limits.until_look()) * 1000 + 1))
            if call in ready:
                return CUT, 0
            if life in ready:
                return ABANDONED, 0
            if gate is not None and gate.held in ready:
                poll.unregister(gate.held)
                if not gate.open():
                    return NOT_STARTED, 0
            for pipe in pipes:
                if pipe.readable in ready and not pipe.take():
                    poll.unregister(pipe.readable)
            if children_ended in ready:
                os.read(children_ended, 512)
                statuses = reap()
                if self._pid in statuses:
                    return EXITED, statuses[self._pid]

    def end(self, status: int) -> int:
        """Kill what is left of the process and of all that it started; return its exit code."""
        self._limits.kill()
        status = end_descendants(self._pid).get(self._pid, status)
        self._limits.end()
        return os.waitstatus_to_exitcode(status)

    def told(self, end: str, exit_code: int) -> tuple[Any, ...]:
        """Return the answer: the end and the output, or the gate's reason why nothing was started."""
        output, errors, limits = self._output, self._errors, self._limits
        output.drain()
        errors.drain()
        if limits.passed and end == EXITED:
            end = LIMITED
        if self._gate is not None and end in (EXITED, NOT_STARTED):
            said = bytes(errors.kept or output.kept).decode("utf-8", "replace")
            if problem := self._gate.problem(exit_code, said):
                return NOT_STARTED, 0, problem.encode()
        kept = (output.kept, errors.kept, output.cut)
        return end, exit_code, *kept, limits.passed, [*limits.held]


def _stdin(content: bytes, path: str) -> int:
    """Return a descriptor to read ``content`` from: a file without a name, which never blocks a
    writer; it has a name for a moment."""
    if not content:
        return os.open(os.devnull, os.O_RDONLY)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    os.unlink(path)
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor

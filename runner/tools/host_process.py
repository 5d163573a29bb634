"""The tool host: the one small child of a worker that starts, watches and ends every tool process.

    worker ── guard ── host ── keeper ── the tool's process and its descendants

The worker hands the host one end of a socket for each call. The host forks a keeper for it. The
keeper starts the tool, collects its output and ends it with everything that it started: at the end
of the call, at its timeout, when the worker closes its end (cancel, death) and when the host dies.

A tool can send signals to all of them, where no sandbox hides them. So each ends what is below it
before it ends itself, whatever went wrong, and looks after the one below: the host kills a keeper that
was stopped (SIGSTOP) and what a dead one left; the guard does this for the host; the worker has a
deadline of its own for the answer, and kills the keeper, then the guard.

The host is single-threaded, because it forks. Its control socket carries one byte at a time:
``CALL``, with the descriptor of the call's socket and, for a process that is talked to, of a socket
that becomes its stdin and stdout; or ``ALIVE``. When the socket ends, or no
``ALIVE`` came for too long while calls run, the host exits, and every keeper ends its call.

Every keeper holds a shared record lock (fcntl(2)) on one byte of a file, at an offset made from its
run's id, until the last process of the call is gone; the kernel drops the lock of a keeper that
dies. The lock is taken before the keeper checks that the worker still wants the call: whoever sees
it free after the worker's death knows that nothing starts any more. Two runs that share an offset
only wait for each other.

This module imports little, and only the standard library (no pathlib): every call forks its
interpreter.
"""

# ruff: noqa: PTH108

from __future__ import annotations

import fcntl
import gc
import hashlib
import marshal
import os
import select
import signal
import socket
import sys
import time

from runner.tools.limits import Limits
from runner.tools.process_tree import children, end_descendants, kill, prepare_prctl, reap
from runner.tools.sandbox_gate import Gate
from runner.tools.sandbox_landlock import restrict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path
    from typing import Any, NoReturn

CALL = b"c"
ALIVE = b"a"
KEEPER = b"k"  # the first byte on a call's socket, with a pidfd of the keeper where there are such
WATCHDOG_EXIT = 75

EXITED = "exited"
TIMED_OUT = "timed_out"
CUT = "cut"  # the worker closed its end
ABANDONED = "abandoned"  # the host is gone
ENGINE_FAILED = 125  # exit code of a container engine's client
NOT_STARTED = "not_started"
LIMITED = "limited"  # it passed a limit

LOCK_FILE = "tools.lock"

LOOK_AT_CLOCK = 5.0  # poll(2) does not count the time that the machine sleeps
_SERVE_CLOCK_SECONDS = 1.0
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
_KEEPERS_PATIENCE = 5.0  # for keepers to end their calls, and for processes to die
_REMOVAL_PATIENCE = 4.0  # less: for a container to be removed
_LOOK_AGAIN = 0.01


class Report:
    """Takes over stdout when it is made, to tell how a child of Runner's own code has ended."""

    def __init__(self) -> None:
        self._descriptor = os.dup(1)
        os.dup2(2, 1)

    def end(self, outcome: str, text: str, data: bytes = b"") -> NoReturn:
        """Tell the outcome and end the process, whatever threads still run in it."""
        view = memoryview(f"{outcome}\n{text}".encode("utf-8", "surrogatepass") + data)
        while view:
            view = view[os.write(self._descriptor, view) :]
        os._exit(0)


def lock_offset(run_id: str) -> int:
    """Return the byte of the lock file that stands for a run, below 2**62."""
    digest = hashlib.blake2b(run_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 2**62


def run_is_quiet(lock_dir: Path, run_id: str) -> bool:
    """Return True if no tool process of the run is alive under a tool host that locks in ``lock_dir``.

    Not to be called in a process that itself holds record locks on the file: closing it here would
    drop them. Workers hold none; only keepers do.
    """
    try:
        descriptor = os.open(lock_dir / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, lock_offset(run_id))
    except (BlockingIOError, PermissionError):
        return False
    finally:
        os.close(descriptor)
    return True


def monotonic() -> float:
    """Return seconds for durations, counting the time that the machine sleeps."""
    return time.clock_gettime(_CLOCK)


# --- the host ---------------------------------------------------------------------------------------


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
    become_subreaper, wake_when_orphaned = prepare_prctl()
    become_subreaper()
    wake_when_orphaned()
    guard = os.getpid()
    pid = os.fork()
    if pid:
        control.close()
        sys.exit(_guard(pid))
    become_subreaper()
    wake_when_orphaned()
    host = _Host(control, float(sys.argv[2]), guard, (become_subreaper, wake_when_orphaned))
    try:
        status = host.serve()
    finally:
        host.close()
        _end_all(last=os.getppid() != guard)
    sys.exit(status)


def _guard(host: int) -> int:
    """Wait for the end of the host, then end everything below; return the host's exit status. A host
    that is stopped is killed."""
    while True:
        pid, status = os.waitpid(-1, os.WUNTRACED)
        if pid == host and os.WIFSTOPPED(status):
            kill(host)
        elif pid == host:
            _end_all(last=True)
            return os.waitstatus_to_exitcode(status)


def _end_all(*, last: bool) -> None:
    """End everything below this process, when the host has ended or is about to. Keepers end their
    calls then, and hold locks until they have: they are given time for it. Nobody does it after the
    ``last``: it does not give up."""
    until = monotonic() + 2 * _KEEPERS_PATIENCE
    while True:
        try:
            while (keepers := _of_this_group()) and monotonic() < until - _KEEPERS_PATIENCE:
                end_descendants(spare=keepers, patience=_KEEPERS_PATIENCE)
                reap()
                time.sleep(_LOOK_AGAIN)
            end_descendants(patience=None if last else _KEEPERS_PATIENCE)
        except (OSError, MemoryError):  # no file can be opened, say
            if monotonic() > until and not last:
                return
            time.sleep(_LOOK_AGAIN)
        else:
            return


def _of_this_group() -> list[int]:
    """Return the children of this process that are in its process group."""
    found = []
    for child in children(os.getpid()):
        try:
            if os.getpgid(child) == os.getpgrp():
                found.append(child)
        except ProcessLookupError:
            continue
    return found


class _Host:
    def __init__(
        self,
        control: socket.socket,
        watchdog: float,
        guard: int,
        prepare: tuple[Callable[[], None], ...],
    ) -> None:
        self._control = control
        self._watchdog = watchdog
        self._guard = guard
        self._prepare = prepare  # what each keeper does first
        self._last_alive = monotonic()
        # Each with its call's socket, which ends for the worker when all is gone that the keeper left.
        self._keepers: dict[int, socket.socket] = {}
        # Nobody writes to this pipe: its end tells the keepers that the host is gone.
        self._life, self._life_held = os.pipe()
        self._children_ended = _wake_on_child_end()

    def close(self) -> None:
        """Tell the keepers that the host is gone."""
        os.close(self._life_held)

    def serve(self) -> int:
        """Serve until the worker or the guard is gone, or the worker silent; return the exit status."""
        look_every = min(_SERVE_CLOCK_SECONDS, self._watchdog / 4)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._children_ended, select.POLLIN)
        while os.getppid() == self._guard:
            ready = dict(poll.poll(look_every * 1000 if self._keepers else None))
            if self._children_ended in ready:
                os.read(self._children_ended, 512)
                self._bury_keepers()
            if self._control.fileno() in ready and not self._take_order():
                return 0
            if self._keepers and monotonic() - self._last_alive > self._watchdog:
                return WATCHDOG_EXIT
        return 0

    def _take_order(self) -> bool:
        """Do what the worker said; return False when its socket has ended."""
        try:
            order, descriptors, _, _ = socket.recv_fds(self._control, 1, 2)
        except ConnectionResetError:
            return False
        if order == CALL and descriptors:
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            call, *channel = descriptors
            if not self._keepers:  # the watchdog looks only while calls are in hand
                self._last_alive = monotonic()
            self._fork_keeper(socket.socket(fileno=call), channel)
            for descriptor in channel:
                os.close(descriptor)
        elif order == ALIVE:
            self._last_alive = monotonic()
        return bool(order)

    def _fork_keeper(self, call: socket.socket, channel: list[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            with call:
                problem = f"no process could be started: {error}".encode()
                _answer(call, NOT_STARTED, output=problem)
            return
        if pid:
            self._keepers[pid] = call
            return
        code = 1
        try:
            self._control.close()
            os.close(self._life_held)
            os.close(self._children_ended)
            for others in self._keepers.values():
                others.close()
            for prepare in self._prepare:
                prepare()
            _keep(call, self._life, _wake_on_child_end(), channel)
            code = 0
        except BaseException:  # whatever it was, a keeper never goes back into the host's loop
            sys.excepthook(*sys.exc_info())
            end_descendants()  # if this fails, too, the host does it
        finally:
            os._exit(code)

    def _bury_keepers(self) -> None:
        """Take note of the keepers that ended, and kill those that were stopped. One that failed or was
        killed left its processes to the host: they are killed."""
        buried, orphaned = [], False
        for pid, status in reap(os.WUNTRACED).items():
            if os.WIFSTOPPED(status):
                kill(pid)
                continue
            orphaned = orphaned or status != 0 or pid not in self._keepers
            if pid in self._keepers:
                buried.append(self._keepers.pop(pid))
        if orphaned:
            end_descendants(spare=self._keepers, patience=_KEEPERS_PATIENCE)
        for call in buried:
            call.close()


def _wake_on_child_end() -> int:
    """Return a descriptor that becomes readable whenever a child of this process ends or stops, and
    when its parent ends."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    for number in (signal.SIGCHLD, signal.SIGCONT):  # SIGCONT: see wake_when_orphaned
        signal.signal(number, lambda *_: None)
    previous = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    if previous != -1:
        os.close(previous)
    return readable


# --- a keeper ---------------------------------------------------------------------------------------


def _keep(call: socket.socket, life: int, children_ended: int, channel: list[int]) -> None:
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
        for descriptor in (call.fileno(), life):  # nobody sends anything on these
            poll.register(descriptor, select.POLLIN)
        if poll.poll(0):
            return
        output, errors = _Collected(request["most_bytes"]), _Collected(request["most_bytes"])
        limits = Limits(*request["limits"])
        gate = Gate(*request["gate"]) if request["gate"] else None
        main = _start(request, output, errors, limits, gate, channel)
    except OSError as error:
        _answer(call, NOT_STARTED, output=str(error).encode("utf-8", "replace"))
        return
    pipes = (output, errors)
    end, status = _watch(call, life, children_ended, main, request["timeout"], pipes, limits, gate)
    limits.kill()
    status = end_descendants(main).get(main, status)
    limits.end()
    exit_code = os.waitstatus_to_exitcode(status)
    if request["removal"] and (end != EXITED or exit_code < 0 or exit_code == ENGINE_FAILED):
        _run_aside(request["removal"])
    if limits.passed and end == EXITED:
        end = LIMITED
    for collected in pipes:
        collected.drain()
    os.close(lock)
    if gate is not None and end in (EXITED, NOT_STARTED):
        said = bytes(errors.kept or output.kept).decode("utf-8", "replace")
        if problem := gate.problem(exit_code, said):
            _answer(call, NOT_STARTED, output=problem.encode())
            return
    told = (output.kept, errors.kept, output.cut, limits.passed, limits.held)
    _answer(call, end, exit_code, *told)


def _run_aside(arguments: list[str]) -> None:
    """Run a program for some time, whatever comes of it."""
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
        time.sleep(_LOOK_AGAIN)
    end_descendants()


def _answer(
    call: socket.socket,
    end: str,
    exit_code: int = 0,
    output: bytes | bytearray = b"",
    errors: bytes | bytearray = b"",
    cut: bool = False,
    limit: str = "",
    held: Collection[str] = (),
) -> None:
    """Tell the worker how a call ended; a worker that is gone is not told. ``cut``: there was more
    output than is kept, and of errors nobody asks that. ``held``: limits that the kernel held."""
    try:
        call.sendall(marshal.dumps((end, exit_code, output, errors, cut, limit, [*held])))
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


def _start(
    request: dict[str, Any],
    output: _Collected,
    errors: _Collected,
    limits: Limits,
    gate: Gate | None,
    channel: list[int],
) -> int:
    """Start the tool's process in a session of its own. Raises ``OSError`` if it could not be
    started; the text says why."""
    stdin = _stdin(request["stdin"], f"{request['lock_file']}.{os.getpid()}")
    failure, failure_written = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.chdir(request["folder"])
            merged = output if request["merge"] else errors
            streams = (*channel, *channel) or (stdin, output.writable)
            for target, source in enumerate((*streams, merged.writable)):
                os.dup2(source, target)
            for number, path in request["descriptors"].items():
                os.dup2(os.open(path, os.O_RDONLY | os.O_CLOEXEC), number)
            if gate is not None:
                gate.enter()
            for number in _RESET_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            limits.enter()
            variables = {**os.environ, **request["variables"]}
            environment = {name: each for name, each in variables.items() if each is not None}
            if request["landlock"] is not None:
                restrict(*request["landlock"])
            os.execve(request["argv"][0], request["argv"], environment)
        except (OSError, ValueError) as error:
            why = str(error)
            if isinstance(error, OSError) and error.filename:  # as bubblewrap says it
                why = f"{error.filename}: {error.strerror}"
            os.write(failure_written, why.encode("utf-8", "replace"))
        finally:
            os._exit(127)
    for descriptor in (stdin, failure_written, output.writable, errors.writable, *channel):
        os.close(descriptor)
    if gate is not None:
        gate.leave()
    with os.fdopen(failure, "rb") as file:
        if problem := file.read():
            limits.end()
            raise OSError(problem.decode("utf-8", "replace"))
    return pid


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


def _watch(
    call: socket.socket,
    life: int,
    children_ended: int,
    main: int,
    timeout: float,
    pipes: tuple[_Collected, ...],
    limits: Limits,
    gate: Gate | None,
) -> tuple[str, int]:
    """Collect output until the main process ends or has to; return how it ended, and its wait
    status."""
    deadline = monotonic() + timeout
    poll = select.poll()
    for descriptor in (call.fileno(), life, children_ended, *(pipe.readable for pipe in pipes)):
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
        if call.fileno() in ready:
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
            if main in statuses:
                return EXITED, statuses[main]

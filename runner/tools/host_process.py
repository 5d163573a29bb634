"""The tool host: the one small child of a worker that starts, watches and ends every tool process.

    worker ──socket── host ──fork── keeper ──fork, exec── the tool's process and its descendants

The worker hands the host one end of a socket for each call. The host forks a keeper for it. The
keeper starts the tool, collects its output and ends it with everything that it started: at the end
of the call, at its timeout, when the worker closes its end (cancel, death) and when the host dies.

The host is single-threaded, because it forks. Its control socket carries one byte at a time:
``CALL``, with the descriptor of the call's socket, or ``ALIVE``. When the socket ends, or no
``ALIVE`` came for too long while calls run, the host exits, and every keeper ends its call.

Every keeper holds a shared record lock (fcntl(2)) on one byte of a file, at an offset made from its
run's id, until the last process of the call is gone; the kernel drops the lock of a keeper that
dies. The lock is taken before the keeper checks that the worker still wants the call: whoever sees
it free after the worker's death knows that nothing starts any more. Two runs that share an offset
only wait for each other.

A subreaper (Linux, prctl(2)) becomes the parent of every orphan below it, so a process that called
setsid, nohup or forked twice is still found as a descendant. Elsewhere only the process group is.

This module imports little, and only the standard library (no pathlib): every call forks its
interpreter.
"""

# ruff: noqa: PTH108, PTH110, PTH208

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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path
    from typing import Any, NoReturn

CALL = b"c"
ALIVE = b"a"
WATCHDOG_EXIT = 75

EXITED = "exited"
TIMED_OUT = "timed_out"
CUT = "cut"  # the worker closed its end
ABANDONED = "abandoned"  # the host is gone
NOT_STARTED = "not_started"

LOCK_FILE = "tools.lock"

LOOK_AT_CLOCK = 5.0  # poll(2) does not count the time that the machine sleeps
_SERVE_CLOCK_SECONDS = 1.0
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_CHUNK = 1 << 16
_PIPE_CHUNKS = 64
_RESET_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD)
_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
_CHILDREN_FILES = os.path.exists("/proc/thread-self/children")


class Report:
    """Takes over stdout when it is made, to tell how a child of Runner's own code has ended."""

    def __init__(self) -> None:
        self._descriptor = os.dup(1)
        os.dup2(2, 1)

    def end(self, outcome: str, text: str) -> NoReturn:
        """Tell the outcome and end the process, whatever threads still run in it."""
        view = memoryview(f"{outcome}\n{text}".encode("utf-8", "surrogatepass"))
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
    sys.exit(_Host(control, float(sys.argv[2])).serve())


class _Host:
    def __init__(self, control: socket.socket, watchdog: float) -> None:
        self._control = control
        self._watchdog = watchdog
        self._last_alive = monotonic()
        self._keepers: set[int] = set()
        self._become_subreaper = _subreaper()
        self._become_subreaper()
        # Nobody writes to this pipe: its end tells the keepers that the host is gone.
        self._life, self._life_held = os.pipe()
        self._children_ended = _wake_on_child_end()

    def serve(self) -> int:
        """Serve until the worker is gone or silent; return the exit status, which says which."""
        look_every = min(_SERVE_CLOCK_SECONDS, self._watchdog / 4)
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
        """Do what the worker said; return False when its socket has ended."""
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
            _answer(call, NOT_STARTED, output=f"no process could be started: {error}".encode())
            return
        if pid:
            self._keepers.add(pid)
            return
        try:
            self._control.close()
            os.close(self._life_held)
            os.close(self._children_ended)
            self._become_subreaper()
            _keep(call, self._life, _wake_on_child_end())
            os._exit(0)
        except BaseException:  # whatever it was, a keeper never goes back into the host's loop
            sys.excepthook(*sys.exc_info())
            os._exit(1)

    def _bury_keepers(self) -> None:
        """Take note of the keepers that ended. One that was killed left its processes to the host,
        and each may leave others at its end: they are killed until none is left."""
        orphaned = False
        for pid, status in _reap().items():
            orphaned = orphaned or status != 0 or pid not in self._keepers
            self._keepers.discard(pid)
        if orphaned:
            _kill_descendants_once(spare=self._keepers)


def _wake_on_child_end() -> int:
    """Return a descriptor that becomes readable whenever a child of this process ends."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    previous = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    if previous != -1:
        os.close(previous)
    return readable


# --- a keeper ---------------------------------------------------------------------------------------


def _keep(call: socket.socket, life: int, children_ended: int) -> None:
    """See one call to its end.

    Args:
        call: the worker's socket: gives the request, its end means stop, takes the answer.
        life: a pipe that ends when the host does.
        children_ended: readable when a child of this process ended.
    """
    try:
        with call.makefile("rb") as stream:
            # marshal: worker and host are the same interpreter, and json would cost each fork 0.5 MB.
            request: dict[str, Any] = marshal.load(stream)
    except EOFError:  # the worker went away in the middle of it
        return
    try:
        lock = os.open(request["lock_file"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(lock, fcntl.LOCK_SH, 1, request["lock_offset"])
        poll = select.poll()
        for descriptor in (call.fileno(), life):  # nobody sends anything on these
            poll.register(descriptor, select.POLLIN)
        if poll.poll(0):
            return
        output, errors = _Collected(request["most_bytes"]), _Collected(request["most_bytes"])
        main = _start(request, output, errors)
    except OSError as error:
        _answer(call, NOT_STARTED, output=str(error).encode("utf-8", "replace"))
        return
    end, status = _watch(call, life, children_ended, main, request["timeout"], (output, errors))
    status = _kill_descendants(group=main).get(main, status)
    for collected in (output, errors):
        collected.drain()
    os.close(lock)
    exit_code = os.waitstatus_to_exitcode(status)
    _answer(call, end, exit_code, output.kept, errors.kept, output.cut)


def _answer(
    call: socket.socket,
    end: str,
    exit_code: int = 0,
    output: bytes | bytearray = b"",
    errors: bytes | bytearray = b"",
    cut: bool = False,
) -> None:
    """Tell the worker how a call ended; a worker that is gone is not told. ``cut``: there was more
    output than is kept, and of errors nobody asks that."""
    try:
        call.sendall(marshal.dumps((end, exit_code, output, errors, cut)))
    except (BrokenPipeError, ConnectionResetError):
        return


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


def _start(request: dict[str, Any], output: _Collected, errors: _Collected) -> int:
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
            for source, target in ((stdin, 0), (output.writable, 1), (merged.writable, 2)):
                os.dup2(source, target)
            for number, path in request["descriptors"].items():
                os.dup2(os.open(path, os.O_RDONLY | os.O_CLOEXEC), number)
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
) -> tuple[str, int]:
    """Collect output until the main process ends or has to; return how it ended, and its wait
    status."""
    deadline = monotonic() + timeout
    poll = select.poll()
    for descriptor in (call.fileno(), life, children_ended, *(pipe.readable for pipe in pipes)):
        poll.register(descriptor, select.POLLIN)
    while True:
        left = deadline - monotonic()
        if left <= 0:
            return TIMED_OUT, 0
        ready = dict(poll.poll(min(left, LOOK_AT_CLOCK) * 1000 + 1))
        if call.fileno() in ready:
            return CUT, 0
        if life in ready:
            return ABANDONED, 0
        for pipe in pipes:
            if pipe.readable in ready and not pipe.take():
                poll.unregister(pipe.readable)
        if children_ended in ready:
            os.read(children_ended, 512)
            statuses = _reap()
            if main in statuses:
                return EXITED, statuses[main]


# --- processes --------------------------------------------------------------------------------------


def _subreaper() -> Callable[[], None]:
    """Return a function that makes the calling process the parent of all orphans below it.

    It is prepared once, in the host: what it needs is then there after every fork.
    """
    if sys.platform != "linux":
        return lambda: None
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def become_subreaper() -> None:
        if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")

    return become_subreaper


def _kill_descendants(group: int) -> dict[int, int]:
    """Kill a process group and every descendant of this process; wait until all of them are gone.

    Returns:
        The wait status of each child that was waited for, by process id.
    """
    statuses: dict[int, int] = {}
    _kill(-group)
    while True:
        # Every pass: what a killed process left behind has become a child of this one meanwhile.
        _kill_descendants_once()
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return statuses
        statuses[pid] = status
        statuses.update(_reap())


def _kill_descendants_once(spare: Collection[int] = ()) -> None:
    """Kill the descendants that this process has now; ``spare`` are children that are left alone, with
    all that is below them. Does not wait."""
    for pid in list(_descendants(os.getpid(), spare)):
        _kill(pid)


def _kill(pid: int) -> None:
    """Kill a process, or for a negative number its group."""
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # gone, or another user's (sudo): waited for; macOS says EPERM of a zombie's group


def _reap() -> dict[int, int]:
    """Return the wait status of each child that has ended, by process id; does not wait."""
    statuses: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return statuses
        if pid == 0:
            return statuses
        statuses[pid] = status


def _descendants(pid: int, spare: Collection[int]) -> Iterator[int]:
    for child in _children(pid):
        if child not in spare:
            yield child
            yield from _descendants(child, ())


def _children(parent: int) -> list[int]:
    """Return process ids of the children of a process, from proc(5), if there is such a thing."""
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{parent}/task") if _CHILDREN_FILES else ():
            with open(f"/proc/{parent}/task/{thread}/children", "rb") as file:
                children.extend(map(int, file.read().split()))
    except (FileNotFoundError, ProcessLookupError):
        return children  # it ended meanwhile: its children are ours now
    if _CHILDREN_FILES or sys.platform != "linux":
        return children
    # A kernel without CONFIG_PROC_CHILDREN: from every process's parent.
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # pid (name) state parent …; the name may hold blanks and parentheses.
                if int(file.read().rpartition(b")")[2].split()[1]) == parent:
                    children.append(int(name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return children

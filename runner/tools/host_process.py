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

from __future__ import annotations

import fcntl
import gc
import hashlib
import os
import select
import signal
import socket
import sys
import time

from runner.tools.keeper import LOOK_AGAIN, NOT_STARTED, answer, keep, monotonic
from runner.tools.process_tree import children, end_descendants, kill, prepare_prctl, reap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import NoReturn

CALL = b"c"
ALIVE = b"a"
WATCHDOG_EXIT = 75

LOCK_FILE = "tools.lock"

_SERVE_CLOCK_SECONDS = 1.0
_KEEPERS_PATIENCE = 5.0  # for keepers to end their calls, and for processes to die


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
                time.sleep(LOOK_AGAIN)
            end_descendants(patience=None if last else _KEEPERS_PATIENCE)
        except (OSError, MemoryError):  # no file can be opened, say
            if monotonic() > until and not last:
                return
            time.sleep(LOOK_AGAIN)
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
                answer(call, NOT_STARTED, 0, f"no process could be started: {error}".encode())
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
            keep(call, self._life, _wake_on_child_end(), channel)
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

"""The worker's side of the tool host: start it, hand it calls, cut them, send heartbeats.

``run_reporting`` runs a child of Runner's own code and makes a tool result of its report.
"""

from __future__ import annotations

import errno
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from runner.core.conversation import ToolOutcome, ToolResult
from runner.core.text import plain
from runner.errors import HostFaultError, Interrupted, host_fault, tells_host_fault
from runner.ports import Interrupt, ToolCall
from runner.tools import cgroups, host_process, keeper
from runner.tools.file_access import ToolFailure
from runner.tools.host_process import LOCK_FILE, lock_offset
from runner.tools.limits import DISK
from runner.tools.output import present
from runner.tools.process_tree import kill_below
from runner.tools.sandbox_gate import UNMADE

MOST_OUTPUT_BYTES = 10_000_000
WATCHDOG_SECONDS = 10.0

_CODE_ROOT = str(Path(__file__).resolve().parents[2])
KEEPER_PATIENCE = 10.0  # for a keeper's answer past the timeout or a cut; then it is killed
_END_PATIENCE = 10.0
_LOOK_SECONDS = 1.0
_MOST_KILLS = 2  # the keeper, then the host
_CHUNK = 1 << 20
_LAST_WORDS = 2_000
# Its socket was closed, by its death or by another call that found it dead first.
_HOST_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.EBADF})

End = Literal["exited", "timed_out", "limited", "not_started", "lost"]
Restriction = tuple[int, bool, Sequence[tuple[int, str]]]  # as sandbox_landlock.restrict takes it
# As the keeper tells them.
_ENDS: tuple[End, ...] = ("exited", "timed_out", "limited", "not_started")
_OUTCOMES: tuple[ToolOutcome, ...] = ("succeeded", "failed", "invalid_input")  # as a child does


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The limits on the processes of a call together; None: no limit."""

    memory: int | None = None  # bytes
    processes: int | None = None  # threads included
    cpus: float | None = None  # cores
    disk: int | None = None  # bytes of the folders
    folders: Sequence[Path] = ()  # a call that makes them larger than ``disk`` is ended

    def asked(self) -> dict[str, float]:
        """Return the limits that there are, by name."""
        names = (cgroups.MEMORY, cgroups.PROCESSES, cgroups.CPUS, DISK)
        values = (self.memory, self.processes, self.cpus, self.disk)
        return {name: each for name, each in zip(names, values, strict=True) if each is not None}

    def holders(self, held: Collection[str]) -> str:
        """Return who enforced a call's limits, for its record: ``; the kernel enforces memory; Runner
        enforces disk``. Without proc(5), as on macOS, Runner cannot count what processes use."""
        by: dict[str, list[str]] = {"the kernel": [], "Runner": [], "nobody": []}
        for name in self.asked():
            counts = name == DISK or sys.platform == "linux"
            by["the kernel" if name in held else "Runner" if counts else "nobody"].append(name)
        return "".join(f"; {who} enforces {', '.join(each)}" for who, each in by.items() if each)

    def explain(self, limit: str) -> str:
        """Return why a call was ended that has passed a limit, in words for the model."""
        if limit == cgroups.PROCESSES:
            used = f"it had more than {self.processes:,} processes and threads"
        elif limit == cgroups.MEMORY:
            used = f"it used more than {_size(self.memory)} of memory"
        else:
            used = f"it made the workspace larger than {_size(self.disk)}"
        return f"{used}, the most that [sandbox] {limit} of the job allows"


@dataclass(frozen=True, slots=True)
class Gate:
    """Bubblewrap starts the process, with ``sandbox_gate.OPTIONS`` after its mounts."""

    mounts: Sequence[str] = ()  # paths that have to be mounted on
    port: int = 0  # to be opened inside, on the loopback interface; 0: none
    worker: str = ""  # path of the socket that takes the port
    processes: int = 0  # that the kernel lets the sandbox have; 0: no limit


@dataclass(frozen=True, slots=True)
class Start:
    """A process to start."""

    arguments: Sequence[str]  # the first is a path
    folder: Path
    run_id: str  # the run that it works for
    timeout: float  # seconds
    stdin: bytes = b""  # nothing: /dev/null
    channel: int | None = None  # descriptor of a socket that becomes its stdin and stdout
    merge: bool = False  # sends what it writes to stderr into the output, in order
    needs: Sequence[Path] = ()  # folders that it has to see, in a sandbox too
    # Paths of files that it finds open for reading, by descriptor (100 and above).
    descriptors: Mapping[int, str] = field(default_factory=dict)
    # The command that ends its container, run by the keeper unless the process ends by itself.
    removal: Sequence[str] = ()
    limits: CallLimits = CallLimits()
    variables: Mapping[str, str | None] = field(default_factory=dict)  # that differ; None: unset
    landlock: Restriction | None = None  # that it is under; None: none
    gate: Gate | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a call's process."""

    end: End  # "lost": the host or the keeper died, and the process with it
    exit_code: int = 0  # negative for a signal
    output: bytes = b""  # at most 10 MB; why, if it was not started
    errors: bytes = b""  # at most 10 MB
    cut: bool = False  # there was more output
    limit: str = ""  # why it was "limited", in words
    held: Collection[str] = ()  # the limits that the kernel held it to


class Starter(Protocol):
    def call(self, start: Start, interrupt: Interrupt) -> Ended:
        """Run a process to its end: see ``ToolHost.call``."""


@dataclass(frozen=True, slots=True)
class _Running:
    """A host that was started, by its guard."""

    process: subprocess.Popen[bytes]  # the guard
    control: socket.socket

    def well(self) -> bool:
        """Return False if one of the two has ended, or the guard was stopped by a signal."""
        if self.process.poll() is not None:
            return False
        hung_up = select.poll()
        try:
            hung_up.register(self.control, 0)
        except ValueError:  # another call has closed it
            return False
        return not hung_up.poll(0) and not self._stopped()

    def end(self) -> None:
        """End it with all that is below it, whatever state they are in."""
        self.control.close()
        try:
            self.process.wait(0 if self._stopped() else _END_PATIENCE)
        except subprocess.TimeoutExpired:
            kill_below(self.process.pid)
            self.process.kill()
            self.process.wait()

    def _stopped(self) -> bool:
        if not hasattr(os, "waitid"):  # macOS, before Python 3.13
            return False
        with suppress(ChildProcessError):  # it has ended, and was waited for
            looked = os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            return looked is not None
        return False


def boot_needs() -> list[Path]:
    """Return the folders that a process of ``boot`` has to see."""
    return [Path(sys.prefix), Path(sys.base_prefix), Path(_CODE_ROOT)]


def boot(module: str, *arguments: str, site: bool = False, isolated: bool = True) -> list[str]:
    """Return the command that runs ``main()`` of one of Runner's modules in an interpreter of its own;
    with ``site``, with the installed packages; ``isolated`` from the user's environment or not."""
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
        self._cgroups: tuple[str, frozenset[str]] | None = None  # once prepared

    def call(self, start: Start, interrupt: Interrupt) -> Ended:
        """Run a process to its end. When this returns or raises, all processes of the call are
        gone. Raises ``HostFaultError`` if nothing was started because this host has no descriptors, no
        memory, no space, or not the program; ``Interrupted`` if ``interrupt`` cut the call, or the
        watchdog did (``dropped``)."""
        # Another call may have killed the host before it took this one: begin again on the next host.
        return self._once(start, interrupt) or self._once(start, interrupt) or Ended("lost")

    def _once(self, start: Start, interrupt: Interrupt) -> Ended | None:
        """Like ``call``; None if the host ended before a keeper took the call: nothing was started."""
        request = self._request(start)
        try:
            near, far = socket.socketpair()
        except OSError as error:
            return _not_started(error)
        with near, far, interrupt.cut_by(partial(_cut, near)):
            try:
                host = self._hand_over(far, start.channel)
            except OSError as error:
                return _not_started(error)
            far.close()
            # The worker may have slept meanwhile; from here on the host's watchdog sees to that.
            interrupt.check()
            # A broken pipe: cut, or the host died. The answer, or its absence, says which.
            with suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
                near.settimeout(KEEPER_PATIENCE)
                near.sendall(marshal.dumps(request))
            told, late = self._answer(host, near, start.timeout, interrupt)
        begun = told.startswith(keeper.KEEPER)
        try:
            end, *rest = marshal.loads(told.removeprefix(keeper.KEEPER))
        except (EOFError, ValueError, TypeError):  # the keeper was killed
            end, rest = "", []
        if known := [each for each in _ENDS if each == end]:
            ended = Ended(known[0], *rest)
            if ended.limit:
                return replace(ended, limit=start.limits.explain(ended.limit))
            return _checked(ended, start)
        interrupt.check()
        if not host.well() or end == keeper.ABANDONED:
            self._end(host)
        if host.process.returncode == host_process.WATCHDOG_EXIT:
            raise Interrupted
        if late:
            return Ended("timed_out", *rest)
        return Ended("lost", *rest) if begun else None

    def _request(self, start: Start) -> dict[str, Any]:
        return {
            "argv": list(start.arguments),
            "folder": str(start.folder),
            "stdin": start.stdin,
            "merge": start.merge,
            "timeout": start.timeout,
            "descriptors": dict(start.descriptors),
            "removal": list(start.removal),
            "most_bytes": MOST_OUTPUT_BYTES,
            "lock_file": self._lock_file,
            "lock_offset": lock_offset(start.run_id),
            "limits": self._limits(start.limits),
            "variables": dict(start.variables),
            "landlock": start.landlock,
            "gate": start.gate and astuple(start.gate),
        }

    def _answer(
        self, host: _Running, near: socket.socket, timeout: float, interrupt: Interrupt
    ) -> tuple[bytes, bool]:
        """Return what the keeper told, nothing if it did not; and whether it was killed because it did
        not answer for so long. A keeper that cannot be killed, or does not exist yet, is ended with its
        host."""
        told, pidfd, late, cut = bytearray(), -1, 0, False
        until = time.monotonic() + timeout + KEEPER_PATIENCE
        poll = select.poll()
        poll.register(near, select.POLLIN)
        try:
            while late <= _MOST_KILLS:
                if poll.poll(_LOOK_SECONDS * 1000):
                    chunk, descriptors, _, _ = socket.recv_fds(near, _CHUNK, 1)
                    pidfd = descriptors[0] if descriptors else pidfd
                    told += chunk
                    if not chunk:
                        break
                elif not host.well():
                    self._end(host)
                now = time.monotonic()
                if interrupt.reason is not None and not cut:
                    cut, until = True, min(until, now + KEEPER_PATIENCE)
                if now > until:
                    late, until = late + 1, now + KEEPER_PATIENCE
                    if late == 1 and pidfd >= 0:
                        with suppress(ProcessLookupError):
                            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    else:
                        self._end(host)
        except ConnectionResetError:  # the keeper was killed: no more comes
            pass
        finally:
            if pidfd >= 0:
                os.close(pidfd)
        return bytes(told), late > 0

    def alive(self) -> None:
        """Tell the host that this worker is alive and holds its leases; never waits."""
        if (host := self._running) is not None:
            with suppress(OSError):  # it is gone, or has thousands of orders to read first
                host.control.send(host_process.ALIVE, socket.MSG_DONTWAIT)

    def close(self) -> None:
        """End the host and with it every tool process."""
        with self._starting:
            host, self._running = self._running, None
        if host is not None:
            host.end()

    def _limits(self, limits: CallLimits) -> tuple[dict[str, float], list[str], str]:
        """Return the limits as the keeper takes them."""
        asked = limits.asked()
        if not asked:
            return {}, [], ""
        with self._starting:
            if self._cgroups is None:
                self._cgroups = cgroups.prepare()
            path, held = self._cgroups
        folders = [str(folder) for folder in limits.folders]
        return asked, folders, "" if held.isdisjoint(asked) else path

    def _end(self, host: _Running) -> None:
        with self._starting:
            if self._running is host:
                self._running = None
            host.end()

    def _hand_over(self, far: socket.socket, channel: int | None) -> _Running:
        """Give the host a call's socket, and the channel of its process; a host that died is replaced,
        once."""
        descriptors = [far.fileno()] if channel is None else [far.fileno(), channel]
        host = self._host()
        try:
            socket.send_fds(host.control, [host_process.CALL], descriptors)
        except OSError as error:
            if error.errno not in _HOST_GONE:  # it lives, and other calls' tools with it
                raise
            host = self._host(instead_of=host)
            socket.send_fds(host.control, [host_process.CALL], descriptors)
        return host

    def _host(self, instead_of: _Running | None = None) -> _Running:
        with self._starting:
            host = self._running
            if host is not None and host is not instead_of and host.well():
                return host
            if host is not None:
                host.end()
            control, theirs = socket.socketpair()
            arguments = (str(theirs.fileno()), str(self._watchdog_seconds))
            with theirs:
                try:
                    process = subprocess.Popen(
                        boot(host_process.__name__, *arguments),
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
            self._running = _Running(process, control)
            return self._running


def _size(size: int | None) -> str:
    for unit, number in (("GB", 2**30), ("MB", 2**20)):
        if size and size >= number:
            return f"{size / number:.4g} {unit}"
    return f"{size or 0:,} bytes"


def _not_started(error: OSError) -> Ended:
    """Raises ``HostFaultError`` if that is what the error comes from."""
    if host_fault(error) is not None or isinstance(error, BlockingIOError):  # no process left
        raise HostFaultError(f"no program can be started: {error.strerror or error}") from error
    return Ended("not_started", output=str(error).encode("utf-8", "replace"))


def _checked(ended: Ended, start: Start) -> Ended:
    """Return the end of a call. Raises ``HostFaultError`` if it was not started for want of what
    every host should have."""
    if ended.end != "not_started":
        return ended
    at = 0 if start.gate is None else start.arguments.index("--") + 1  # after bubblewrap's own
    said = ended.output.decode("utf-8", "replace")
    for program in (start.arguments[0], start.arguments[at]):
        if not Path(program).exists():
            raise HostFaultError(f"the program {program} is gone: install it again")
    if said.startswith(UNMADE) and str(start.folder.resolve()) not in said:
        raise HostFaultError(said)
    if tells_host_fault(said):
        raise HostFaultError(f"no program can be started: {said}")
    return ended


def _cut(near: socket.socket) -> None:
    with suppress(OSError):  # cut before, or the call is over
        near.shutdown(socket.SHUT_WR)


def run_reporting(call: ToolCall, start: Start, host: Starter, interrupt: Interrupt) -> ToolResult:
    """Return the result that a child process reports; see ``reported``."""
    outcome, text, cut = reported(call.tool.name, start, host, interrupt)
    content, output = present(text, call.surroundings.outputs / f"{call.id}.txt", cut=cut)
    return ToolResult(content, outcome, output)


def reported(
    name: str, start: Start, host: Starter, interrupt: Interrupt
) -> tuple[ToolOutcome, bytes, bool]:
    """Run a child that reports its outcome (``runner.tools.host_process``) to its end. Return the outcome,
    its output, and whether the output was cut. Raises ``ToolFailure`` if it ended without a report, and
    ``Interrupted`` if it was interrupted."""
    ended = host.call(start, interrupt)
    if ended.end == "timed_out":
        raise ToolFailure(
            f"{name} was killed: it took more than {start.timeout:g} s. Ask for less, more simply.",
            "timed_out",
        )
    if ended.end == "limited":
        raise ToolFailure(f"{name} was ended: {ended.limit}. Use less.")
    if ended.end == "not_started":
        raise ToolFailure(f"{name} could not be started: {ended.output.decode('utf-8', 'replace')}")
    if ended.end == "lost":
        raise ToolFailure(
            f"the process that watched over {name} was killed, and {name} with it", "interrupted"
        )
    word, newline, text = ended.output.partition(b"\n")
    outcomes = [each for each in _OUTCOMES if each.encode() == word]
    if not newline or not outcomes:
        said = plain(ended.errors.decode("utf-8", "replace")[-_LAST_WORDS:]).strip()
        code = ended.exit_code
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise ToolFailure(f"{name} ended without a result ({how}). {said}".rstrip())
    return outcomes[0], text, ended.cut

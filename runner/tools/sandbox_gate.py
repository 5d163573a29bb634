"""The keeper's part in a sandbox that bubblewrap makes: before the command starts, it looks at the mounts
and opens the port of the proxy inside; afterwards it knows if the command was started at all.

The last thing that bubblewrap does for a sandbox is to copy a file from a pipe. The pipe is full: once
the keeper can write again, the mounts are made. Bubblewrap waits for the file's end, and the keeper
closes the pipe when it has looked. When the command has ended, bubblewrap tells its exit code in JSON.
https://github.com/containers/bubblewrap

Keepers are forked with this module in them: it imports little, and only the standard library.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

UNMADE = "its sandbox could not be made"

_PIPE, _STATUS = 101, 102  # descriptors that bubblewrap finds open
OPTIONS = (
    "--json-status-fd", str(_STATUS), "--file", str(_PIPE), "/dev/runner",
)  # fmt: skip
_NO_PROGRAM = (
    "bwrap: execvp "  # the beginning of what it says of a command that it could not execute
)
_NEW_ROOT = b"/newroot"  # of a sandbox that is being made
_NS_GET_USERNS = 0xB701  # <linux/nsfs.h>
_MOST_WAITING = 128
_MOST_STATUS = 4096
_ENDED = (errno.ENOENT, errno.ESRCH, errno.EINVAL)  # of the mounts of a process


class Gate:
    """Holds one command back until its sandbox is as it was meant to be.

    Args:
        mounts: paths that have to be mounted on.
        port: to be opened on the sandbox's loopback interface; 0: none.
        worker: the path of the socket where the worker takes it.
        processes: that the sandbox can have, of any user but root; 0: as many as the host. From Linux
            5.14 on, the kernel counts them for each user namespace.

    ``held`` is a descriptor: to be opened when it can be written to.
    """

    def __init__(self, mounts: Sequence[str], port: int, worker: str, processes: int) -> None:
        self._mounts, self._port, self._worker, self._processes = mounts, port, worker, processes
        self._status, self._told_status = os.pipe()
        os.set_blocking(self._status, False)
        self._told = b""
        self._why_not, self._is_open = "", False
        self._read, self.held = os.pipe()
        fcntl.fcntl(self.held, fcntl.F_SETPIPE_SZ, 1)  # the smallest: one byte of one page fills it
        os.write(self.held, b".")

    def enter(self) -> None:
        """Give bubblewrap its ends of the pipes: for the process that becomes it."""
        os.dup2(self._read, _PIPE)
        os.dup2(self._told_status, _STATUS)

    def leave(self) -> None:
        """Close bubblewrap's ends of the pipes, in the keeper."""
        os.close(self._read)
        os.close(self._told_status)

    def open(self) -> bool:
        """Let the command start if all is as it was meant to be."""
        try:
            self._why_not = self._look()
        except OSError as error:
            self._why_not = f"its keeper failed: {error}"
        self._is_open = not self._why_not
        if self._is_open:
            os.close(self.held)
        return self._is_open

    def problem(self, exit_code: int, said: str) -> str:
        """Return why the command was not started, if it was not.

        Args:
            exit_code: of bubblewrap, which has ended; negative for a signal.
            said: the output, which is bubblewrap's own if the command was not started.
        """
        self._read_status()
        was_killed = exit_code < 0 and self._is_open
        if b'"exit-code"' in self._told or was_killed:
            return ""
        said = " ".join(said.split())
        if self._is_open and said.startswith(_NO_PROGRAM):  # its sandbox was made
            return said.removeprefix(_NO_PROGRAM)
        return f"{UNMADE}: {said or self._why_not or f'bubblewrap ended with {exit_code}'}"

    def _look(self) -> str:
        self._read_status()
        pid = self._told.partition(b'"child-pid": ')[2].partition(b",")[0].decode()
        if not pid.isdigit():
            return "bubblewrap did not tell its process"
        try:
            with open(f"/proc/{pid}/mountinfo", "rb") as file:
                mounted = {line.split()[4] for line in file}
        except OSError as error:
            if error.errno not in _ENDED:
                raise
            return ""  # bubblewrap has ended, and said why
        for path in self._mounts:
            if _NEW_ROOT + escaped(path) not in mounted:
                return f"{path} was moved meanwhile: try again"
        if self._processes:
            _, most = resource.prlimit(int(pid), resource.RLIMIT_NPROC)
            most = self._processes if most == resource.RLIM_INFINITY else min(most, self._processes)
            resource.prlimit(int(pid), resource.RLIMIT_NPROC, (most, most))
        if self._port:
            _hand_over_port(pid, self._port, self._worker)
        return ""

    def _read_status(self) -> None:
        try:
            self._told += os.read(self._status, _MOST_STATUS)
        except BlockingIOError:
            return


def escaped(path: str) -> bytes:
    """Return a path as in mountinfo of proc(5)."""
    for each in "\\ \t\n":
        path = path.replace(each, f"\\{ord(each):03o}")
    return os.fsencode(path)


def _hand_over_port(pid: str, port: int, path: str) -> None:
    """Open a port in the network namespace of a process, and hand it to who listens at a path: in a
    process of its own, which enters the namespace for good. Raises ``OSError``."""
    child = os.fork()
    if child == 0:
        failed = errno.EIO
        try:
            _enter_network(pid)
            listener = socket.socket()
            listener.bind(("127.0.0.1", port))
            listener.listen(_MOST_WAITING)
            worker = socket.socket(socket.AF_UNIX)
            worker.connect(path)
            socket.send_fds(worker, [b"l"], [listener.fileno()])
            failed = 0
        except OSError as error:
            failed = error.errno or failed
        finally:
            os._exit(failed)
    _, status = os.waitpid(child, 0)
    if failed := os.waitstatus_to_exitcode(status):
        raise OSError(abs(failed), os.strerror(abs(failed)))


def _enter_network(pid: str) -> None:
    """Enter the network namespace of a process, by the user namespace that it belongs to: setns(2),
    which Python has from 3.12 on. Raises ``OSError``."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    for namespace in (fcntl.ioctl(network, _NS_GET_USERNS), network):
        if libc.setns(namespace, 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")

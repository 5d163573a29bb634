"""Process limits and hardening, and the lock file that tells a living worker from a dead one.

Each worker locks a file of its own in a folder that is local to its host; the kernel frees the lock
when the worker dies. The folder's ``host-id`` names the host: containers with folders of their own
are different hosts.
"""

from __future__ import annotations

import fcntl
import os
import resource
import secrets
import sys
import tempfile
from pathlib import Path

from runner.errors import RunnerError, UsageError, host_fault


def allow_open_files(slots: int) -> None:
    """Raise the limit of open files: each run has a connection to the API and sockets to its tools,
    and a call 64 connections over the proxy."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1024 + 160 * slots
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def make_home(home: Path) -> None:
    """Make the folder of Runner's data, for its user alone."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (home / ".gitignore").exists():  # it may lie in a repository
            (home / ".gitignore").write_text("*\n")
    except OSError as error:
        if home.is_dir() and host_fault(error) is not None:
            return  # its disk is full, say: the worker waits until it is not
        raise UsageError(
            f"the folder {home} cannot be made ({error.strerror}): choose another RUNNER_HOME"
        ) from error


_PR_SET_DUMPABLE = 4  # prctl(2)


def close_to_others() -> None:
    """Make ``/proc/PID/environ`` and ``mem`` of this process unreadable for the tools that it starts:
    they run as the same user, and the API key is in its environment. Linux only; root still can."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


class HostLocks:
    """The folder of locks of this user on this host. Raises ``RunnerError`` if it is somebody else's."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or Path(tempfile.gettempdir()) / f"runner-{os.getuid()}"
        self.folder.mkdir(mode=0o700, exist_ok=True)
        status = self.folder.lstat()
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise RunnerError(
                f"{self.folder} must be a folder of yours alone: remove it, or set TMPDIR elsewhere"
            )
        draft = self.folder / f".host-id.{os.getpid()}.{secrets.token_hex(4)}"
        draft.write_text(secrets.token_hex(16))
        try:
            os.link(draft, self.folder / "host-id")
        except FileExistsError:
            pass
        finally:
            draft.unlink()
        self.host_id = (self.folder / "host-id").read_text()
        self._held: list[int] = []

    def hold(self, worker_id: str) -> None:
        """Hold the worker's lock file until ``release`` or the end of this process."""
        folder = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        # Cleaners of temporary folders pass over one that is locked (tmpfiles.d(5)).
        fcntl.flock(folder, fcntl.LOCK_SH)
        descriptor = os.open(self._path(worker_id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._held += [folder, descriptor]

    def release(self, worker_id: str) -> None:
        """Release the lock of ``hold``."""
        self._path(worker_id).unlink(missing_ok=True)
        for descriptor in self._held:
            os.close(descriptor)
        self._held.clear()

    def is_dead(self, worker_id: str) -> bool:
        """True if a worker of this host is known to be gone: nobody holds its lock. Without its file
        nothing is known, and its lease decides."""
        try:
            descriptor = os.open(self._path(worker_id), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True

    def forget(self, worker_id: str) -> None:
        """Remove a dead worker's lock file."""
        self._path(worker_id).unlink(missing_ok=True)

    def _path(self, worker_id: str) -> Path:
        return self.folder / f"{worker_id}.lock"

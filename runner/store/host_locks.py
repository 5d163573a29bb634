"""The lock file that tells a living worker from a dead one.

Each worker locks a file of its own in a folder that is local to its host; the kernel frees the lock
when the worker dies. The folder's ``host-id`` names the host: containers with folders of their own
are different hosts.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from runner.errors import RunnerError


class HostLocks:
    """The folder of locks of this user on this host. Raises ``RunnerError`` if it is somebody else's."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or _folder()
        self.folder.mkdir(mode=0o700, exist_ok=True)
        if not _is_ours(self.folder):
            raise RunnerError(
                f"{self.folder} must be a folder that only you can use: remove it, or set TMPDIR to another"
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
        return _is_free(self._path(worker_id))

    def forget(self, worker_id: str) -> None:
        """Remove a dead worker's lock file."""
        self._path(worker_id).unlink(missing_ok=True)

    def _path(self, worker_id: str) -> Path:
        return _lock(self.folder, worker_id)


def gone_from_here(workers: Iterable[tuple[str, str]]) -> list[str]:
    """Return the ids of workers, given as (id, host id), that ran on this host and are gone. It
    creates nothing: a user whose workers are all elsewhere has no folder of locks. Nothing is known
    from a folder that somebody else has made or may write to."""
    folder = _folder()
    file = folder / "host-id"
    try:
        if not (_is_ours(folder) and stat.S_ISREG(file.lstat().st_mode)):
            return []
        here = file.read_text()
        return [id_ for id_, host_id in workers if host_id == here and _is_free(_lock(folder, id_))]
    except (OSError, ValueError):  # a value that is no text is no id of a host
        return []


def _is_ours(folder: Path) -> bool:
    """True for a folder that only this user may enter."""
    status = folder.lstat()
    is_private = status.st_uid == os.getuid() and not status.st_mode & 0o077
    return is_private and stat.S_ISDIR(status.st_mode)


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"runner-{os.getuid()}"


def _lock(folder: Path, worker_id: str) -> Path:
    return folder / f"{worker_id}.lock"


def _is_free(path: Path) -> bool:
    """True for a lock file that nobody holds."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:  # shared: others who look at the same time do not count as its holder
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True

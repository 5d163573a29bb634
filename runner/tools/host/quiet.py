"""Is a process of a run's tools still alive on this host? Asked before a claim of the run.

Every keeper holds a shared record lock (fcntl(2)) on one byte of a file, at an offset made from its
run's id, from before its tool starts until the last process of the call is gone. The kernel drops the
lock of a keeper that dies. Two runs that share an offset only wait for each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

LOCK_FILE = "tools.lock"
_OFFSETS = 2**62


def lock_offset(run_id: str) -> int:
    """The byte of the lock file that stands for a run, below 2**62."""
    digest = hashlib.blake2b(run_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _OFFSETS


def run_is_quiet(lock_dir: Path, run_id: str) -> bool:
    """Whether no tool process of the run is alive under a tool host that locks in ``lock_dir``.

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

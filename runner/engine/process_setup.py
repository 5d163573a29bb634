"""Process limits and hardening of a worker, and the folder of its data."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from runner.errors import UsageError, host_fault


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

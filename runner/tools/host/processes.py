"""Finding and killing the descendants of a process. Runs in the tool host.

A subreaper (Linux, prctl(2)) becomes the parent of every orphan below it, so a process that called
setsid, nohup or forked twice stays findable as a descendant. Elsewhere only the process group is.
"""

# ruff: noqa: PTH110, PTH208
# (pathlib costs every fork memory)

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
_CHILDREN_FILES = os.path.exists("/proc/thread-self/children")


def subreaper() -> Callable[[], None]:
    """A function that makes the calling process the parent of all orphans below it.

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


def kill_descendants(group: int) -> dict[int, int]:
    """Kill a process group and every descendant of this process; wait until all of them are gone.

    Returns:
        The wait status of each child that was waited for, by process id.
    """
    statuses: dict[int, int] = {}
    _kill_group(group)
    while True:
        # Every pass: what a killed process left behind has become a child of this one meanwhile.
        kill_once()
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return statuses
        statuses[pid] = status
        statuses.update(reap())


def kill_once(spare: Collection[int] = ()) -> None:
    """Kill the descendants that this process has now; ``spare`` are children that are left alone, with
    all that is below them. Does not wait."""
    for pid in list(_descendants(os.getpid(), spare)):
        _kill(pid)


def reap() -> dict[int, int]:
    """The wait status of each child that has ended, by process id; does not wait."""
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


def _children(pid: int) -> list[int]:
    """Process ids of the children of a process, from proc(5); empty where there is no such thing."""
    if not _CHILDREN_FILES:
        return _children_by_parent(pid)
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children.extend(int(child) for child in file.read().split())
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile: its children are ours now
        return children
    return children


def _children_by_parent(parent: int) -> list[int]:
    """The same from every process's parent, for kernels without CONFIG_PROC_CHILDREN."""
    children: list[int] = []
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # pid (name) state parent …; the name may hold blanks and parentheses.
                if int(file.read().rpartition(b")")[2].split()[1]) == parent:
                    children.append(int(name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return children


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # gone, or another user's (sudo): waited for
        return


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # gone; macOS says EPERM of a zombie's group
        return

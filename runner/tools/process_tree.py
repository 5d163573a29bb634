"""The processes below a process: find them, and kill all of them.

A subreaper (Linux, prctl(2)) becomes the parent of every orphan below it, so a process that called
setsid, nohup or forked twice is still found as a descendant. Elsewhere only the process group is.

Keepers are forked with this module in them: it imports little, and only the standard library.
"""

# ruff: noqa: PTH110, PTH208

from __future__ import annotations

import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_PR_SET_CHILD_SUBREAPER = 36
_CHILDREN_FILES = os.path.exists("/proc/thread-self/children")
_LOOK_AGAIN = 0.001


def prepare_prctl() -> tuple[Callable[[], None], Callable[[], None]]:
    """Return two functions for the calling process and its forks: become the parent of all orphans
    below it; get SIGCONT when the parent dies, which wakes a process that was stopped. They do nothing
    where the kernel is not Linux."""
    if sys.platform != "linux":
        return (lambda: None), (lambda: None)
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def call(option: int, value: int) -> None:
        if prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({option}) failed")

    return (
        lambda: call(_PR_SET_CHILD_SUBREAPER, 1),
        lambda: call(_PR_SET_PDEATHSIG, signal.SIGCONT),
    )


def end_descendants(
    main: int | None = None, spare: Collection[int] = (), patience: float | None = None
) -> dict[int, int]:
    """Kill the descendants of this process and wait until they are gone. A killed process leaves its
    children to this one, a subreaper, so the search begins again until nothing is found.

    Args:
        main: a child that leads a process group, which is killed too.
        spare: children that are left alone, with all that is below them.
        patience: seconds to wait for processes that do not die (in a system call that never ends).

    Returns:
        The wait status of each child that was waited for, by process id.
    """
    statuses: dict[int, int] = {}
    killed: set[int] = set()
    if main is not None:
        kill(-main)
        killed.add(main)
    ends = None if patience is None else time.monotonic() + patience
    while True:
        found = [child for child in children(os.getpid()) if child not in {*spare, *killed}]
        for child in found:
            _kill_tree(child)
        killed.update(found)
        if not killed or (ends is not None and time.monotonic() > ends):
            return statuses
        for pid in list(killed):
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # waited for before
                killed.discard(pid)
                continue
            if ended:
                killed.discard(pid)
                statuses[pid] = status
        if killed and not found:
            time.sleep(_LOOK_AGAIN)


def kill_below(top: int) -> None:
    """Kill the descendants of a process that does nothing itself (it is stopped), until none is new:
    a process that was sent SIGKILL cannot fork any more. Does not wait."""
    killed: set[int] = set()
    while found := [pid for pid in descendants(top) if pid not in killed]:
        for pid in found:
            kill(pid)
        killed.update(found)


def _kill_tree(top: int) -> None:
    """Kill a process and all below it, with the process groups that they lead or joined: a group dies
    at once, however fast its processes fork."""
    groups = {0, os.getpgrp()}
    for pid in (top, *descendants(top)):
        try:
            group = os.getpgid(pid)
        except ProcessLookupError:
            continue
        if group not in groups:
            groups.add(group)
            kill(-group)
        kill(pid)


def kill(pid: int) -> None:
    """Kill a process, or for a negative number its group."""
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # gone, or another user's (sudo): waited for; macOS says EPERM of a zombie's group


def reap(options: int = 0) -> dict[int, int]:
    """Return the wait status of each child that has ended, by process id; does not wait. ``options``
    as of waitpid(2)."""
    statuses: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | options)
        except ChildProcessError:
            return statuses
        if pid == 0:
            return statuses
        statuses[pid] = status


def descendants(top: int) -> Iterator[int]:
    """Yield the process ids below a process, a parent before its children."""
    parents = [top]
    while parents:
        for child in children(parents.pop()):
            yield child
            parents.append(child)


def children(parent: int) -> list[int]:
    """Return process ids of the children of a process, from proc(5), if there is such a thing."""
    found: list[int] = []
    for thread in threads(parent) if _CHILDREN_FILES else ():
        try:
            with open(f"/proc/{parent}/task/{thread}/children", "rb") as file:
                found.extend(map(int, file.read().split()))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile: its children are another thread's now, or ours
    if _CHILDREN_FILES or sys.platform != "linux":
        return found
    # A kernel without CONFIG_PROC_CHILDREN: from every process's parent.
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # pid (name) state parent …; the name may hold blanks and parentheses.
                if int(file.read().rpartition(b")")[2].split()[1]) == parent:
                    found.append(int(name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def threads(pid: int) -> list[str]:
    """Return the ids of the threads of a process; none if it has ended."""
    try:
        return os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return []

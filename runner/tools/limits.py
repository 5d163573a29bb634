"""Limits on what a call's processes use together: memory, processes, cores, disk.

The kernel holds them to what their cgroup can hold (``runner.tools.cgroups``). The keeper counts the
rest several times a second, and folders now and then. Resource limits (setrlimit(2)) hold single
processes and users, not calls: memory that is only reserved counts there, and root has no limit.

Keepers are forked with this module in them: it imports little, and only the standard library.
"""

# ruff: noqa: PTH110, PTH116, PTH208

from __future__ import annotations

import math
import os
import random
import stat
import sys
import time

from runner.tools.cgroups import CPUS, MEMORY, PROCESSES, Cgroup
from runner.tools.process_tree import descendants, threads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DISK = "disk"

_LOOK_SECONDS = 0.2
_SHARE = 20  # of the time, one part of so many is for counting
_MEASURE_AFTER = 1.0  # seconds of a call before its folders are measured
_MEASURE_EVERY = 60.0  # seconds, also if the file system did not get fuller
_MEASURE_AT_END = 5.0  # seconds, at most
_OOM_SCORE = b"500"  # the kernel takes a tool before a worker
_PRIVATE_PLACES = ("/dev", "/dev/shm", "/tmp", "/run")  # tmpfs of a sandbox's own


class Limits:
    """Holds one call to its limits, from its keeper.

    Args:
        asked: the limits by name, in bytes, processes and cores.
        folders: their size is what the disk's limit is for.
        cgroup: the beginning of the path of a cgroup that can be made; empty if none can.
    """

    def __init__(self, asked: Mapping[str, float], folders: Sequence[str], cgroup: str) -> None:
        self.passed = ""  # the limit that the call has passed
        self._cgroup = Cgroup.make(f"{cgroup}{os.getpid()}", asked) if cgroup else None
        self.held = sorted(self._cgroup.held) if self._cgroup is not None else []  # by the kernel
        self._counted = {name: most for name, most in asked.items() if name not in self.held}
        self._disk = _Disk(folders, int(asked[DISK])) if DISK in asked else None
        self._priority = _run_first() if PROCESSES in self._counted and not os.geteuid() else None
        self._next = time.monotonic() + _LOOK_SECONDS if asked else math.inf

    def enter(self) -> None:
        """Join the limits: for the call's first process, before it becomes a program. Raises
        ``OSError`` if it cannot."""
        if self._cgroup is not None:
            self._cgroup.join()
        if self._priority is not None:
            os.setpriority(os.PRIO_PROCESS, 0, self._priority)
        if CPUS in self._counted and sys.platform == "linux":
            cores = sorted(os.sched_getaffinity(0))
            most = max(1, round(self._counted[CPUS]))
            os.sched_setaffinity(0, random.sample(cores, min(most, len(cores))))
        if os.path.exists("/proc/self/oom_score_adj") and MEMORY in self._counted:
            with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
                file.write(_OOM_SCORE)

    def until_look(self) -> float:
        """Return the seconds until ``look`` is due."""
        return max(0.0, self._next - time.monotonic())

    def look(self) -> bool:
        """Return True if the call has passed a limit; looks only when that is due."""
        began = time.monotonic()
        if began >= self._next:
            self.passed = self._look(began)
            took = time.monotonic() - began
            self._next = began + took + max(_LOOK_SECONDS, _SHARE * took)
        return bool(self.passed)

    def kill(self) -> None:
        """Kill all processes of the call at once, where they have a cgroup."""
        if self._cgroup is not None:
            self._cgroup.kill()

    def end(self) -> None:
        """Look for the last time, when all processes are gone."""
        if self._cgroup is not None:
            self.passed = self.passed or self._cgroup.passed()
            self._cgroup.remove()
        if self._disk is not None and not self.passed and self._disk.is_full_at_end():
            self.passed = DISK

    def _look(self, now: float) -> str:
        if self._cgroup is not None and (passed := self._cgroup.passed()):
            return passed
        if not {MEMORY, PROCESSES}.isdisjoint(self._counted):
            pids = list(descendants(os.getpid()))
            tasks = sum(len(threads(pid)) for pid in pids)
            if tasks > self._counted.get(PROCESSES, tasks):
                return PROCESSES
            if MEMORY in self._counted and _is_above(pids, self._counted[MEMORY]):
                return MEMORY
        return DISK if self._disk is not None and self._disk.is_full(now) else ""


def _run_first() -> int | None:
    """Let this process, and none that it starts, have a processor before all others: else it would count
    a fork bomb of root's, which no resource limit holds, only after minutes. Return its priority of
    before; None if it is not allowed."""
    if sys.platform != "linux":
        return None
    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:  # a cgroup of version 1 without time for it
        try:
            os.setpriority(os.PRIO_PROCESS, 0, -20)
        except OSError:
            return None
    return before


# --- memory ----------------------------------------------------------------------------------------


def _is_above(pids: Sequence[int], most: float) -> bool:
    """Return True if processes use more memory. Pages that they share are counted once, which takes
    time: only if it is more when they are counted for each."""
    private = _private_tmpfs(pids)
    if private + sum(_sum_of(pid, "status", (b"RssAnon:", b"RssShmem:")) for pid in pids) <= most:
        return False
    exact = (_sum_of(pid, "smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:")) for pid in pids)
    return private + sum(exact) > most


def _sum_of(pid: int, name: str, fields: tuple[bytes, ...]) -> int:
    """Return the sum of fields of a file of proc(5), in bytes; of another file if this is not for us."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            found = [line.split() for line in file if line.startswith(fields)]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except PermissionError:
        return 0 if name == "status" else _sum_of(pid, "status", (b"RssAnon:", b"RssShmem:"))
    return sum(int(words[1]) for words in found) * 1024


def _private_tmpfs(pids: Sequence[int]) -> int:
    """Return the bytes in file systems in memory that only the call sees, in its sandbox."""
    if not pids:
        return 0
    root = f"/proc/{pids[-1]}/root"
    sizes: dict[int, int] = {}
    for path in _PRIVATE_PLACES:
        try:
            device = os.stat(root + path).st_dev
            if device == os.stat(path).st_dev or os.major(device):
                continue
            told = os.statvfs(root + path)
        except OSError:
            continue
        sizes[device] = (told.f_blocks - told.f_bfree) * told.f_frsize
    return sum(sizes.values())


# --- disk -------------------------------------------------------------------------------------------


class _Disk:
    """The size of folders. It is measured in small steps, when the call has written something. A call
    that did not make them larger is never to blame."""

    def __init__(self, folders: Sequence[str], most: int) -> None:
        self._folders = folders
        self._most = most
        self._step = most // _SHARE
        self._began = self._measured = time.monotonic()
        self._free_at_start = self._free_measured = _free(folders)
        self._written_at_start = self._written_measured = _written()
        self._first: int | None = None  # the size when it was first measured
        self._steps: Iterator[int] | None = None
        self._size = 0

    def is_full(self, now: float) -> bool:
        if self._steps is None:
            if now - self._began < _MEASURE_AFTER:
                return False
            if now - self._measured < _MEASURE_EVERY and not self._is_due():
                return False
            self._begin(now)
        hurry = _written() - self._written_at_start > self._most // 2
        return self._go_on(_LOOK_SECONDS / (2 if hurry else _SHARE))

    def is_full_at_end(self) -> bool:
        if self._steps is None and not self._is_due():
            return False
        self._begin(time.monotonic())
        return self._go_on(_MEASURE_AT_END)

    def _is_due(self) -> bool:
        """Return True if the call has written much since the last time, or something has taken space
        without writing (fallocate(2))."""
        if _written() - self._written_measured >= self._step:
            return True
        return self._free_measured - _free(self._folders) > self._most // 2

    def _begin(self, now: float) -> None:
        self._measured, self._size = now, 0
        self._free_measured, self._written_measured = _free(self._folders), _written()
        self._steps = _sizes(self._folders)

    def _go_on(self, seconds: float) -> bool:
        """Measure for some time; return True if the call has made the folders too large."""
        until = time.monotonic() + seconds
        for size in self._steps or ():
            self._size += size
            if time.monotonic() > until:
                return False
        self._steps = None
        larger = self._written_measured - self._written_at_start >= self._step
        if self._first is None:  # what was before is not known
            self._first = self._size
            larger = larger or self._free_at_start - self._free_measured > self._most // 2
        return self._size > self._most and (larger or self._size - self._first >= self._step)


def _free(folders: Sequence[str]) -> int:
    """Return the free bytes of the file systems of folders."""
    free = {}
    for folder in folders:
        try:
            told = os.statvfs(folder)
            free[os.stat(folder).st_dev] = told.f_bfree * told.f_frsize
        except OSError:
            continue
    return sum(free.values())


def _written() -> int:
    """Return the bytes that this process has sent to disks, all below it, and all that it or they have
    waited for; 0 where the kernel does not count them."""
    written = 0
    for pid in (os.getpid(), *descendants(os.getpid())):
        try:
            with open(f"/proc/{pid}/io", "rb") as file:
                written += sum(int(line.split()[1]) for line in file if line.startswith(b"write_b"))
        except OSError:
            continue
    return written


def _sizes(folders: Sequence[str]) -> Iterator[int]:
    """Yield the bytes on disk of each file below folders, and of files without a name that the call's
    processes hold open; each file once, whatever names it has."""
    seen: set[tuple[int, int]] = set()
    for told in _files(folders):
        if stat.S_ISDIR(told.st_mode) or (told.st_dev, told.st_ino) not in seen:
            yield told.st_blocks * 512
        if told.st_nlink != 1:
            seen.add((told.st_dev, told.st_ino))


def _files(folders: Sequence[str]) -> Iterator[os.stat_result]:
    rest = list(folders)
    while rest:
        try:
            with os.scandir(rest.pop()) as entries:
                for entry in entries:
                    told = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(told.st_mode):
                        rest.append(entry.path)
                    yield told
        except OSError:  # it has been removed meanwhile
            continue
    for pid in descendants(os.getpid()):
        try:
            for number in os.listdir(f"/proc/{pid}/fd"):
                told = os.stat(f"/proc/{pid}/fd/{number}")
                if stat.S_ISREG(told.st_mode) and told.st_nlink == 0:
                    yield told
        except OSError:
            continue

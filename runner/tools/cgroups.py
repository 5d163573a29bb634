"""A cgroup (v2) for each call, where this process may make one: the kernel holds the call's processes to
their limits, and kills all of them at once.

Keepers are forked with this module in them: it imports little, and only the standard library.
https://docs.kernel.org/admin-guide/cgroup-v2.html
"""

# ruff: noqa: PTH102, PTH103, PTH106, PTH110, PTH118, PTH119, PTH120, PTH208

from __future__ import annotations

import os
import time

from runner.tools.process_tree import descendants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

MEMORY, PROCESSES, CPUS = "memory", "processes", "cpu"  # as the job file names them
CONTROLLERS = {MEMORY: "memory", PROCESSES: "pids", CPUS: "cpu"}

_LEAF = "runner-worker"
_CALL = "runner-call-"
_PERIOD = 100_000  # microseconds: of cpu.max
# Programs hardly run with less memory than this for their pages: bytes, or this part of a small limit.
_ROOM = 8 << 20
_SMALL_ROOM = 32
_PATIENCE = 5.0  # seconds


class Cgroup:
    """The cgroup of one call."""

    def __init__(self, folder: str, held: Collection[str], memory: float = 0) -> None:
        self.held = held  # the limits that the kernel holds
        self._folder = folder
        self._memory = memory  # bytes: the limit
        # Since when it is full, and how often it had met the limit by then.
        self._full: tuple[float, int] | None = None

    @classmethod
    def make(cls, folder: str, asked: Mapping[str, float]) -> Cgroup | None:
        """Make it with the limits that can be set; None if it cannot be made."""
        try:
            os.mkdir(folder)
        except OSError:
            return None
        held = {name for name in CONTROLLERS if name in asked and _limit(folder, name, asked[name])}
        return cls(folder, held, asked.get(MEMORY, 0))

    def join(self) -> None:
        """Move this process into it. Raises ``OSError``."""
        _write(self._folder, "cgroup.procs", "0")

    def passed(self) -> str:
        """Return the limit that a process has run into; empty if none has."""
        if MEMORY in self.held and (
            _count(self._folder, "memory.events", b"oom_kill") or self._stays_full()
        ):
            return MEMORY
        if PROCESSES in self.held and _count(self._folder, "pids.events", b"max"):
            return PROCESSES
        return ""

    def _stays_full(self) -> bool:
        """Return True if for some time it has had no room for programs and kept asking for memory. The
        kernel may then read programs from the disk page by page for minutes before it kills one."""
        anon, shmem, kernel, given_back = (
            _count(self._folder, "memory.stat", each)
            for each in (b"anon", b"shmem", b"kernel", b"slab_reclaimable")
        )
        used = anon + shmem + kernel - given_back  # the kernel frees these slabs, as file pages
        if used < self._memory - min(_ROOM, self._memory / _SMALL_ROOM):
            self._full = None
            return False
        now, met = time.monotonic(), _count(self._folder, "memory.events", b"max")
        since, before = self._full = self._full or (now, met)
        return now - since > _PATIENCE and met > before

    def kill(self) -> None:
        """Kill all processes in it."""
        try:
            _write(self._folder, "cgroup.kill", "1")
        except OSError:
            return  # older than Linux 5.14: they are found as descendants

    def remove(self) -> None:
        """Remove it, if it is empty."""
        try:
            os.rmdir(self._folder)
        except OSError:
            return  # the next worker removes it


def prepare() -> tuple[str, frozenset[str]]:
    """Get ready to make a cgroup for each call. Return the beginning of their paths, which a number has
    to follow, empty if none can be made; and the limits that they hold.

    That is so below a cgroup that was delegated to this process (``Delegate=yes`` in a systemd unit),
    and in a container whose cgroups can be written. A cgroup with processes in it can set no limits to
    cgroups below it, so this process moves into one of its own, with its children.
    """
    base = _delegated()
    if not base:
        return "", frozenset()
    _remove_calls_of_the_dead(base)
    wanted = [CONTROLLERS[name] for name in _offered(base)]
    if any(each.encode() not in _words(base, "cgroup.subtree_control") for each in wanted):
        try:
            _enable(base, wanted)
        except OSError:
            try:
                _move_into_leaf(base)
                _enable(base, wanted)
            except OSError:
                pass  # other processes are in it, too
    enabled = _words(base, "cgroup.subtree_control")
    held = frozenset(name for name, each in CONTROLLERS.items() if each.encode() in enabled)
    return os.path.join(base, f"{_CALL}{os.getpid()}-"), held


def offered() -> list[str]:
    """Return the limits that the kernel can hold calls of this process to; changes nothing."""
    base = _delegated()
    return _offered(base) if base else []


def _offered(base: str) -> list[str]:
    there = _words(base, "cgroup.controllers")
    return [name for name, each in CONTROLLERS.items() if each.encode() in there]


def _delegated() -> str:
    """Return the cgroup below which this process may make others; empty if there is none."""
    mount = own = ""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                if line.split()[2] == "cgroup2":
                    mount = line.split()[1]
        with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                if line.startswith("0::"):
                    own = line[3:].strip()
    except OSError:
        return ""
    if not mount or not own or ".." in own:
        return ""
    own = os.path.join(mount, own.strip("/")).rstrip("/")
    above = os.path.dirname(own)
    # An earlier worker has moved itself into a leaf, or systemd's DelegateSubgroup= did.
    if os.path.basename(own) == _LEAF or (own != mount and _is_marked(above)):
        own = above
    if not os.access(os.path.join(own, "cgroup.procs"), os.W_OK):
        return ""
    return own if own == mount or os.geteuid() or _is_marked(own) else ""


def _is_marked(folder: str) -> bool:
    """Return True if systemd says that it leaves a cgroup to others. Root can write all of them."""
    for name in ("user.delegate", "trusted.delegate"):
        try:
            if os.getxattr(folder, name) == b"1":
                return True
        except OSError:
            continue
    return False


def _enable(base: str, controllers: Collection[str]) -> None:
    _write(base, "cgroup.subtree_control", " ".join(f"+{each}" for each in controllers))


def _move_into_leaf(base: str) -> None:
    leaf, own = os.path.join(base, _LEAF), {os.getpid(), *descendants(os.getpid())}
    os.makedirs(leaf, exist_ok=True)
    for pid in map(int, _words(base, "cgroup.procs")):
        if pid in own:
            _write(leaf, "cgroup.procs", str(pid))


def _remove_calls_of_the_dead(base: str) -> None:
    """Kill what is left of calls whose worker is gone, and remove their cgroups."""
    for name in os.listdir(base):
        worker = name.removeprefix(_CALL).partition("-")[0]
        if name.startswith(_CALL) and not os.path.exists(f"/proc/{worker}"):
            left = Cgroup(os.path.join(base, name), ())
            left.kill()
            left.remove()


def _limit(folder: str, name: str, most: float) -> bool:
    """Set a limit; return False if the cgroup cannot hold it."""
    try:
        if name == MEMORY:
            _write(folder, "memory.max", f"{most:.0f}")
            _write(folder, "memory.oom.group", "1")
            if os.path.exists(os.path.join(folder, "memory.swap.max")):
                _write(folder, "memory.swap.max", "0")
        elif name == PROCESSES:
            _write(folder, "pids.max", f"{most:.0f}")
        else:
            _write(folder, "cpu.max", f"{most * _PERIOD:.0f} {_PERIOD}")
    except OSError:
        return False
    return True


def _count(folder: str, file: str, event: bytes) -> int:
    words = _words(folder, file)
    return int(words[words.index(event) + 1]) if event in words else 0


def _words(folder: str, name: str) -> list[bytes]:
    try:
        with open(os.path.join(folder, name), "rb") as file:
            return file.read().split()
    except OSError:
        return []


def _write(folder: str, name: str, text: str) -> None:
    # Not created, where the kernel has no such file. The kernel takes a value in one write.
    descriptor = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)

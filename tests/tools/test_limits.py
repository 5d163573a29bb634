"""A call that uses more than its job allows is ended, says which limit it was, and harms nobody else.

Each hog stops by itself at a few times its limit, so that nothing here can take a machine down.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.core.conversation import ToolResult
from runner.core.sandbox import Sandbox
from runner.ports import Interrupt
from runner.tools import cgroups

from .conftest import Workbench

MB = 2**20
PYTHON = "python3 -c '{}'"
MEMORY_HOG = PYTHON.format("""
import time
kept = []
for _ in range(300):
    kept.append(bytearray(b"x") * 2**20)
    time.sleep(0.002)
time.sleep(100)""")
MEMORY_HOGS = f"for n in 1 2 3 4; do {MEMORY_HOG.replace('300', '40')} & done; wait"
SHARED_MEMORY_HOG = PYTHON.format("""
import mmap, time
kept = mmap.mmap(-1, 300 * 2**20)
for at in range(300):
    kept[at * 2**20:(at + 1) * 2**20] = bytes(2**20)
    time.sleep(0.002)
time.sleep(100)""")
# Doubles eight times, and then sleeps.
FORK_BOMB = """
bomb() { if [ $1 = 0 ]; then sleep 100; else bomb $(($1 - 1)) | bomb $(($1 - 1)) & wait; fi; }
bomb 8
"""
DETACHED_FORK_BOMB = """
cat > bomb <<'end'
[ $1 = 0 ] && exec sleep 100
setsid sh bomb $(($1 - 1)) &
setsid sh bomb $(($1 - 1)) &
end
sh bomb 8; sleep 100
"""
THREAD_BOMB = PYTHON.format("""
import threading, time
for _ in range(100): threading.Thread(target=time.sleep, args=(100,)).start()""")


def run(bench: Workbench, command: str, mode: Any = "off", **limits: Any) -> ToolResult:
    call = replace(bench.call("Bash", command=command), sandbox=Sandbox(mode, **limits))
    return bench.tools.run(call, Interrupt())


def passed(bench: Workbench, command: str, mode: Any = "off", **limits: Any) -> str:
    """Run a command that passes a limit; return its last line."""
    result = run(bench, command, mode, **limits)
    assert result.outcome == "failed"
    assert bench.run("Bash", command="echo again").content == "again\n"
    return result.content.splitlines()[-1]


@pytest.mark.parametrize("hog", [MEMORY_HOG, MEMORY_HOGS, SHARED_MEMORY_HOG])
def test_memory_hog_is_ended_and_told_so(bench: Workbench, hog: str) -> None:
    assert passed(bench, hog, memory=64 * MB) == (
        "The command was ended: it used more than 64 MB of memory, the most that [sandbox] memory of "
        "the job allows. Use less."
    )


@pytest.mark.slow
def test_memory_that_processes_share_is_counted_once(bench: Workbench) -> None:
    command = PYTHON.format("""
import os, time
kept = bytearray(b"x") * (50 * 2**20)
for _ in range(4):
    if not os.fork(): time.sleep(1); os._exit(0)
for _ in range(4): os.wait()
print("done")""")
    assert run(bench, command, memory=120 * MB).content == "done\n"


@pytest.mark.parametrize("bomb", [FORK_BOMB, DETACHED_FORK_BOMB, THREAD_BOMB])
def test_fork_bomb_is_ended_and_told_so(bench: Workbench, bomb: str) -> None:
    assert passed(bench, bomb, processes=50) == (
        "The command was ended: it had more than 50 processes and threads, the most that [sandbox] "
        "processes of the job allows. Use less."
    )


DISK_HOGS = [
    "for n in $(seq 60); do head -c 1048576 /dev/urandom > f$n; sleep 0.05; done; sleep 100",
    "dd if=/dev/zero of=big bs=1M count=60 2>&1; echo done",
    "fallocate -l 60M big; echo done",
    "exec 3> big; rm big; dd if=/dev/zero bs=1M count=60 >&3; sleep 100",
]


@pytest.mark.slow
@pytest.mark.parametrize("hog", DISK_HOGS)
def test_disk_hog_is_ended_and_told_so(bench: Workbench, hog: str) -> None:
    assert passed(bench, hog, disk=20 * MB) == (
        "The command was ended: it made the workspace larger than 20 MB, the most that [sandbox] disk "
        "of the job allows. Use less."
    )


@pytest.mark.slow
def test_call_that_makes_a_large_workspace_no_larger_is_left_alone(bench: Workbench) -> None:
    with (bench.workspace / "big").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 210 * MB)
    assert run(bench, "sleep 1.5; rm big; echo done", disk=200 * MB).content == "done\n"
    with (bench.workspace / "big").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 210 * MB)
    more = "head -c 20000000 /dev/urandom > more; echo done"
    assert "[sandbox] disk" in passed(bench, more, disk=200 * MB)


def test_call_has_the_cores_that_the_job_gives_it(bench: Workbench) -> None:
    assert run(bench, "nproc", cpu=1).content == "1\n"


def test_call_within_its_limits_is_left_alone(bench: Workbench) -> None:
    limits = {"memory": 500 * MB, "processes": 50, "disk": 100 * MB, "cpu": 2}
    result = run(bench, "sleep 0.5; echo done", **limits)
    assert (result.outcome, result.content) == ("succeeded", "done\n")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bwrap is not on this machine's PATH")
@pytest.mark.parametrize("place", ["/dev/shm", "/var/tmp"])
def test_files_in_the_memory_of_a_sandbox_are_memory(bench: Workbench, place: str) -> None:
    hog = f"df {place}; dd if=/dev/zero of={place}/big bs=1M count=200; sleep 100"
    assert "memory" in passed(bench, hog, "required", memory=64 * MB)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bwrap is not on this machine's PATH")
@pytest.mark.parametrize(
    ("hog", "limit"), [(MEMORY_HOG, "memory"), (FORK_BOMB, "processes"), (DISK_HOGS[0], "disk")]
)
def test_limits_hold_in_a_sandbox(bench: Workbench, hog: str, limit: str) -> None:
    limits = {"memory": 64 * MB, "processes": 50, "disk": 20 * MB}
    assert f"[sandbox] {limit}" in passed(bench, hog, "required", **{limit: limits[limit]})


# --- cgroups ----------------------------------------------------------------------------------------


def in_unified_hierarchy() -> str:
    """The beginning of the path of a call's cgroup; empty if none can be made here."""
    return cgroups.prepare()[0]


def test_call_has_a_cgroup_that_is_gone_after_it(bench: Workbench) -> None:
    path = in_unified_hierarchy()
    if not path:
        pytest.skip("no cgroup (v2) is delegated to this process")
    command = "cat /proc/self/cgroup; setsid sleep 100 & echo done"
    result = run(bench, command, processes=50)
    assert Path(path).name in result.content
    assert [
        each for each in Path(path).parent.iterdir() if each.name.startswith(Path(path).name)
    ] == []


@pytest.mark.parametrize(
    ("hog", "limit"), [(MEMORY_HOG, {"memory": 64 * MB}), (FORK_BOMB, {"processes": 50})]
)
def test_kernel_holds_a_call_to_its_limits_by_its_cgroup(
    bench: Workbench, hog: str, limit: dict[str, int]
) -> None:
    if not {*limit} <= {*cgroups.prepare()[1]}:
        pytest.skip("the controllers of cgroup v2 are not delegated to this process")
    assert f"[sandbox] {next(iter(limit))}" in passed(bench, hog, **limit)

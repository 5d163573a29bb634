"""A call that uses more than its job allows is ended, says which limit it was, and harms nobody else.

Each hog stops by itself at a few times its limit, so that nothing here can take a machine down.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.core.conversation import ToolResult
from runner.core.sandbox import Sandbox
from runner.ports import Interrupt
from runner.tools import cgroups
from runner.tools.host import CallLimits

from .conftest import Workbench, running, wait_until

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


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder on a disk: Runner notices later what a call writes to memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def run(bench: Workbench, command: str, mode: Any = "off", **limits: Any) -> ToolResult:
    call = replace(bench.call("Bash", command=command), sandbox=Sandbox(mode, **limits))
    return bench.tools.run(call, Interrupt())


def passed(bench: Workbench, command: str, mode: Any = "off", **limits: Any) -> str:
    """Run a command that passes a limit; return its last line."""
    result = run(bench, command, mode, **limits)
    assert result.outcome == "failed"
    assert bench.run("Bash", command="echo again").content == "again\n"
    return result.content.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("hog", [MEMORY_HOG, MEMORY_HOGS, SHARED_MEMORY_HOG])
def test_memory_hog_is_ended_and_told_so(patient: Workbench, hog: str) -> None:
    assert passed(patient, hog, memory=64 * MB) == (
        "The command was ended: it used more than 64 MB of memory, the most that [sandbox] memory of "
        "the job allows. Use less."
    )


@pytest.mark.slow
def test_memory_that_processes_share_is_counted_once(patient: Workbench) -> None:
    command = PYTHON.format("""
import os, time
kept = bytearray(b"x") * (50 * 2**20)
for _ in range(4):
    if not os.fork(): time.sleep(1); os._exit(0)
for _ in range(4): os.wait()
print("done")""")
    assert run(patient, command, memory=120 * MB).content == "done\n"


@pytest.mark.slow
@pytest.mark.parametrize("bomb", [FORK_BOMB, DETACHED_FORK_BOMB, THREAD_BOMB])
def test_fork_bomb_is_ended_and_told_so(patient: Workbench, bomb: str) -> None:
    assert passed(patient, bomb, processes=50) == (
        "The command was ended: it had more than 50 processes and threads, the most that [sandbox] "
        "processes of the job allows. Use less."
    )


@pytest.mark.slow
def test_the_keeper_of_a_call_of_root_runs_before_what_it_counts(patient: Workbench) -> None:
    if os.geteuid() or "processes" in cgroups.prepare()[1] or not may_run_first():
        pytest.skip("this process is not root, may not run first, or has cgroups of version 2")
    report = PYTHON.format("""
import os
for pid in (os.getpid(), '$PPID'):
    print(os.sched_getscheduler(int(pid)), os.getpriority(os.PRIO_PROCESS, int(pid)))""")
    told = run(patient, report, processes=50).content.split()
    scheduler, priority, of_keeper, priority_of_keeper = map(int, told)
    assert (scheduler, priority) == (os.SCHED_OTHER, os.getpriority(os.PRIO_PROCESS, 0))
    assert of_keeper & os.SCHED_RR or priority_of_keeper == -20
    again = run(patient, report, memory=500 * MB).content.split()
    assert again[2:] == [str(os.SCHED_OTHER), str(priority)]


def may_run_first() -> bool:
    """True if this process has CAP_SYS_NICE (capabilities(7))."""
    status = Path("/proc/self/status").read_text()
    return bool(int(status.partition("CapEff:")[2].split()[0], 16) >> 23 & 1)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bwrap is not on this machine's PATH")
def test_a_large_tree_of_processes_in_a_sandbox_is_ended_at_once(patient: Workbench) -> None:
    tree = "for n in $(seq 40); do (for m in $(seq 29); do sleep 100 & done; wait) & done; wait"
    assert "more than 256 processes" in passed(patient, tree, "required", processes=256)


DISK_HOGS = [
    "for n in $(seq 60); do head -c 1048576 /dev/urandom > f$n; sleep 0.05; done; sleep 100",
    "dd if=/dev/zero of=big bs=1M count=60 2>&1; echo done",
    "fallocate -l 60M big; echo done",
    "exec 3> big; rm big; dd if=/dev/zero bs=1M count=60 >&3; sleep 100",
]


@pytest.mark.slow
@pytest.mark.parametrize("hog", DISK_HOGS)
def test_disk_hog_is_ended_and_told_so(patient: Workbench, hog: str) -> None:
    assert passed(patient, hog, disk=20 * MB) == (
        "The command was ended: it made the workspace larger than 20 MB, the most that [sandbox] disk "
        "of the job allows. Use less."
    )


@pytest.mark.slow
def test_call_that_makes_a_large_workspace_no_larger_is_left_alone(patient: Workbench) -> None:
    with (patient.workspace / "big").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 210 * MB)
    assert run(patient, "sleep 1.5; rm big; echo done", disk=200 * MB).content == "done\n"
    with (patient.workspace / "big").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 210 * MB)
    more = "head -c 20000000 /dev/urandom > more; echo done"
    assert "[sandbox] disk" in passed(patient, more, disk=200 * MB)


def test_call_has_the_cores_that_the_job_gives_it(patient: Workbench) -> None:
    if "cpu" in cgroups.prepare()[1]:  # the kernel gives it the time of one on all of them
        of_cgroup = "cat /sys/fs/cgroup$(grep ^0 /proc/self/cgroup | cut -d: -f3)/cpu.max"
        assert run(patient, of_cgroup, cpu=1).content == "100000 100000\n"
    else:
        assert run(patient, "nproc", cpu=1).content == "1\n"


@pytest.mark.slow
def test_call_records_who_held_it_to_its_limits(patient: Workbench) -> None:
    by_kernel = "memory" in cgroups.prepare()[1]
    by = (
        "; the kernel enforces memory; Runner enforces disk"
        if by_kernel
        else "; Runner enforces memory, disk"
    )
    assert run(patient, "true", memory=500 * MB, disk=100 * MB).containment == f"none{by}"
    assert run(patient, "true").containment == "none"
    limits = CallLimits(500 * MB, 50, cpus=1, disk=100 * MB)
    assert limits.holders(["memory", "processes"]) == (
        "; the kernel enforces memory, processes; Runner enforces cpu, disk"
    )


@pytest.mark.slow
def test_call_within_its_limits_is_left_alone(patient: Workbench) -> None:
    limits = {"memory": 500 * MB, "processes": 50, "disk": 100 * MB, "cpu": 2}
    result = run(patient, "sleep 0.5; echo done", **limits)
    assert (result.outcome, result.content) == ("succeeded", "done\n")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bwrap is not on this machine's PATH")
@pytest.mark.parametrize("place", ["/dev/shm"])
def test_files_in_the_memory_of_a_sandbox_are_memory(patient: Workbench, place: str) -> None:
    hog = f"df {place}; dd if=/dev/zero of={place}/big bs=1M count=200; sleep 100"
    assert "memory" in passed(patient, hog, "required", memory=64 * MB)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bwrap is not on this machine's PATH")
@pytest.mark.parametrize(
    ("hog", "limit"), [(MEMORY_HOG, "memory"), (FORK_BOMB, "processes"), (DISK_HOGS[0], "disk")]
)
def test_limits_hold_in_a_sandbox(patient: Workbench, hog: str, limit: str) -> None:
    limits = {"memory": 64 * MB, "processes": 50, "disk": 20 * MB}
    assert f"[sandbox] {limit}" in passed(patient, hog, "required", **{limit: limits[limit]})


# --- cgroups ----------------------------------------------------------------------------------------


def test_cgroup_ends_all_of_its_processes_at_once() -> None:
    path, _ = cgroups.prepare()
    if not path:
        pytest.skip("no cgroup of version 2 is delegated to this process")
    group = cgroups.Cgroup.make(f"{path}1", {})
    assert group is not None
    with subprocess.Popen(
        ["bash", "-c", "(setsid sleep 1000 &); sleep 1000 & echo started; wait"],
        stdout=subprocess.PIPE,
        preexec_fn=group.join,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        pids = [int(pid) for pid in (Path(f"{path}1") / "cgroup.procs").read_text().split()]
        assert len(pids) == 3
        group.kill()
        process.wait(30)
    wait_until(lambda: running(pids) == [], "all are killed")
    group.remove()
    assert not Path(f"{path}1").exists()


def test_call_whose_programs_have_no_room_left_is_over_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "_PATIENCE", 0.0)
    group = cgroups.Cgroup(str(tmp_path), ["memory"], 64 * MB)

    def passed(anon: int, met: int, names: int = 0) -> str:
        caches = f"file {MB}\nkernel {(1 + names) * MB}\nslab_reclaimable {names * MB}\n"
        (tmp_path / "memory.stat").write_text(f"anon {anon * MB}\n{caches}")
        (tmp_path / "memory.events").write_text(f"low 0\nmax {met}\noom 0\noom_kill 0\n")
        return group.passed()

    assert passed(50, 5) == passed(50, 6) == ""  # files fill the rest, and give way
    assert passed(2, 6, 60) == passed(2, 7, 60) == ""  # so do the names of files
    assert passed(62, 7) == passed(62, 7) == ""  # it asks for no more
    assert passed(62, 8) == "memory"


@pytest.mark.parametrize(
    ("hog", "limit"), [(MEMORY_HOG, {"memory": 64 * MB}), (FORK_BOMB, {"processes": 50})]
)
def test_kernel_holds_a_call_to_its_limits_by_its_cgroup(
    patient: Workbench, hog: str, limit: dict[str, int]
) -> None:
    if not {*limit} <= {*cgroups.prepare()[1]}:
        pytest.skip("no cgroup of version 2 with controllers is delegated to this process")
    assert f"[sandbox] {next(iter(limit))}" in passed(patient, hog, **limit)

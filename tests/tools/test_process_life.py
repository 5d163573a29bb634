"""No process of a call outlives the call, its worker, or its worker's lease."""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from runner.core.conversation import ToolResult
from runner.errors import HostFaultError, Interrupted
from runner.ports import Interrupt
from runner.tools import host as host_module
from runner.tools import keeper
from runner.tools.host_process import run_is_quiet

from .conftest import PATIENCE, Workbench, process_ids, running, wait_until

# A plain child, one in a session of its own, a daemon that forked twice, one deaf to signals: each
# writes its process id, then the shell waits.
FAMILY = """
note='echo $BASHPID >> pids; exec sleep 1000'
bash -c "$note" &
setsid bash -c "$note" &
( setsid nohup bash -c "( $note ) & exit" & )
bash -c "trap '' TERM HUP INT; $note" &
echo $$ >> pids
wait
"""
FAMILY_SIZE = 5


@contextmanager
def worker(bench: Workbench, watchdog: float, command: str) -> Iterator[subprocess.Popen[str]]:
    script = Path(__file__).with_name("worker_process.py")
    arguments = [str(bench.home), str(bench.workspace), str(watchdog), command]
    with subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def in_background(
    bench: Workbench, command: str, interrupt: Interrupt, seconds: float = PATIENCE
) -> threading.Thread:
    """Start a call; the thread's ``ended`` holds its result or what it raised."""

    def run() -> None:
        try:
            ended.append(bench.tools.run(bench.call("Bash", seconds, command=command), interrupt))
        except Interrupted as interrupted:
            ended.append(interrupted)

    ended: list[ToolResult | Interrupted] = []
    thread = threading.Thread(target=run)
    thread.ended = ended  # type: ignore[attr-defined]
    thread.start()
    return thread


def outcome(thread: threading.Thread) -> ToolResult | Interrupted:
    thread.join(PATIENCE)
    ended: list[ToolResult | Interrupted] = thread.ended  # type: ignore[attr-defined]
    assert ended, "the call did not end"
    return ended[0]


def host_of_this_process() -> psutil.Process:
    (host,) = guard_of_this_process().children()
    return host


def guard_of_this_process() -> psutil.Process:
    (host,) = [
        child
        for child in psutil.Process().children()
        if "runner.tools.host" in " ".join(child.cmdline())
    ]
    return host


def left_in(folder: Path) -> list[str]:
    """The processes that work in a folder, whoever their parents are."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(folder):
                found.append(" ".join(process.cmdline()))
    return found


@pytest.mark.slow
def test_background_children_die_when_bash_returns(bench: Workbench) -> None:
    command = FAMILY.replace(
        "wait", f"until [ $(wc -l < pids) = {FAMILY_SIZE} ]; do :; done; echo done"
    )
    result = bench.run("Bash", command=command)
    assert (result.outcome, result.content) == ("succeeded", "done\n")
    assert running(process_ids(bench.workspace / "pids", FAMILY_SIZE)) == []


@pytest.mark.slow
def test_timeout_kills_all_descendants_and_keeps_what_was_printed(bench: Workbench) -> None:
    result = bench.run("Bash", command="echo begun; " + FAMILY, seconds=8)
    assert result.outcome == "timed_out"
    assert result.content.startswith("begun\n")
    assert left_in(bench.workspace) == []


@pytest.mark.slow
@pytest.mark.parametrize("reason", ["dropped", "shutdown"])
def test_interrupt_kills_all_descendants_before_it_is_raised(bench: Workbench, reason: str) -> None:
    interrupt = Interrupt()
    call = in_background(bench, FAMILY, interrupt)
    pids = process_ids(bench.workspace / "pids", FAMILY_SIZE)
    interrupt.set(reason)  # type: ignore[arg-type]
    interrupt.set(reason)  # type: ignore[arg-type]
    ended = outcome(call)
    assert running(pids) == []
    assert isinstance(ended, Interrupted)
    assert ended.reason == reason


@pytest.mark.slow
def test_killed_worker_leaves_no_process_and_the_run_is_quiet_only_then(bench: Workbench) -> None:
    with worker(bench, 60, FAMILY) as process:
        pids = process_ids(bench.workspace / "pids", FAMILY_SIZE)
        assert not run_is_quiet(bench.lock_dir, "run_1")
        assert run_is_quiet(bench.lock_dir, "run_2")
        process.send_signal(signal.SIGKILL)
        wait_until(lambda: run_is_quiet(bench.lock_dir, "run_1"), "the lock is released")
        assert running(pids) == []


@pytest.mark.slow
def test_killed_worker_and_host_leave_no_process(bench: Workbench) -> None:
    with worker(bench, 60, FAMILY) as process:
        pids = process_ids(bench.workspace / "pids", FAMILY_SIZE)
        (host,) = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGKILL)
        with suppress(psutil.NoSuchProcess):  # it ends soon, too
            host.kill()
        wait_until(lambda: run_is_quiet(bench.lock_dir, "run_1"), "the lock is released")
        assert running(pids) == []


@pytest.mark.slow
def test_stopped_worker_loses_its_tools_and_learns_that_it_was_dropped(bench: Workbench) -> None:
    with worker(bench, 4.0, FAMILY) as process:
        pids = process_ids(bench.workspace / "pids", FAMILY_SIZE)
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: run_is_quiet(bench.lock_dir, "run_1"), "the watchdog")
        assert running(pids) == []
        assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate(timeout=PATIENCE)
        assert output == "interrupted (dropped)\n"


@pytest.mark.slow
def test_tools_of_a_worker_that_says_it_is_alive_are_left_alone(bench: Workbench) -> None:
    with worker(bench, 4.0, "sleep 5") as process:
        output, _ = process.communicate(timeout=PATIENCE)
        assert output == "succeeded\n"


@pytest.mark.slow
def test_idle_host_needs_no_sign_of_life(bench: Workbench) -> None:
    bench.tools.close()
    tools = type(bench.tools)(bench.home, bench.lock_dir, watchdog_seconds=4.0)
    try:
        assert tools.run(bench.call("Bash", command="echo 1"), Interrupt()).content == "1\n"
        subprocess.run(["sleep", "5"], check=True)
        assert tools.run(bench.call("Bash", command="echo 2"), Interrupt()).content == "2\n"
    finally:
        tools.close()


@pytest.mark.slow
def test_killed_host_ends_its_calls_and_is_replaced(bench: Workbench) -> None:
    call = in_background(bench, FAMILY, Interrupt())
    pids = process_ids(bench.workspace / "pids", FAMILY_SIZE)
    host_of_this_process().kill()
    ended = outcome(call)
    assert isinstance(ended, ToolResult)
    assert ended.outcome == "interrupted"
    assert running(pids) == []
    assert bench.run("Bash", command="echo again").content == "again\n"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_call_given_to_a_host_that_ends_before_it_begins_it_is_begun_by_the_next(
    bench: Workbench, number: signal.Signals
) -> None:
    for _ in range(20):
        bench.run("Bash", command="true")
        host_of_this_process().send_signal(number)
        assert bench.run("Bash", command="echo again").content == "again\n"


@pytest.mark.slow
def test_killed_keeper_ends_its_call_and_what_it_kept(bench: Workbench) -> None:
    result = bench.run("Bash", command="kill -9 $PPID; " + FAMILY)
    assert result.outcome == "interrupted"
    assert left_in(bench.workspace) == []
    assert bench.run("Bash", command="echo again").content == "again\n"


def test_run_without_a_lock_file_is_quiet(tmp_path: Path) -> None:
    assert run_is_quiet(tmp_path, "run_1")


@pytest.mark.slow
def test_two_calls_of_a_run_are_both_waited_for(bench: Workbench) -> None:
    first, second = Interrupt(), Interrupt()
    calls = [in_background(bench, "echo $$ >> pids; sleep 1000", each) for each in (first, second)]
    process_ids(bench.workspace / "pids", 2)
    first.set("dropped")
    outcome(calls[0])
    assert not run_is_quiet(bench.lock_dir, "run_1")
    second.set("dropped")
    outcome(calls[1])
    wait_until(lambda: run_is_quiet(bench.lock_dir, "run_1"), "the lock is released")


def test_interrupt_before_the_call_starts_nothing(bench: Workbench) -> None:
    interrupt = Interrupt()
    interrupt.set("shutdown")
    with pytest.raises(Interrupted):
        bench.tools.run(bench.call("Bash", command="touch made"), interrupt)
    assert not (bench.workspace / "made").exists()


@pytest.mark.slow
def test_hundred_calls_run_side_by_side(bench: Workbench) -> None:
    # Each waits for all: only calls that run at the same time can end.
    command = "touch here.$$; until set -- here.*; [ $# = 100 ]; do sleep 1; done; echo done"
    calls = [in_background(bench, command, Interrupt()) for _ in range(100)]
    results = [outcome(call) for call in calls]
    assert {result.content for result in results if isinstance(result, ToolResult)} == {"done\n"}


@pytest.mark.slow
def test_worker_that_calls_often_keeps_no_descriptor_and_no_process(bench: Workbench) -> None:
    bench.run("Bash", command="true")
    before = psutil.Process().num_fds()
    for _ in range(20):
        bench.run("Bash", command="sleep 1000 & true")
    assert psutil.Process().num_fds() == before
    wait_until(lambda: not host_of_this_process().children(), "keepers end")


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let this process open so many more files and no others."""
    taken = set()
    for number in (int(path.name) for path in Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # the one that listed the folder
            os.fstat(number)
            taken.add(number)
    limit = next(n for n in range(len(taken) + count + 1) if n - sum(t < n for t in taken) == count)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.parametrize("count", range(6))
def test_call_for_which_no_descriptor_is_left_is_the_hosts_trouble_and_starts_nothing(
    bench: Workbench, count: int
) -> None:
    bench.run("Bash", command="true")
    bench.tools.close()  # so that a host has to be started, which takes more of them
    before = psutil.Process().num_fds()
    with descriptors_left(count), pytest.raises(HostFaultError, match="Too many open files"):
        bench.run("Bash", command="touch made")
    assert not (bench.workspace / "made").exists()
    assert psutil.Process().num_fds() == before
    assert bench.run("Bash", command="echo again").content == "again\n"


@pytest.mark.slow
def test_call_that_cannot_be_handed_over_leaves_the_calls_of_others_alone(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:  # unix(7) says when; to root the kernel never does
        raise OSError(errno.ETOOMANYREFS, "Too many references: cannot splice")

    interrupt = Interrupt()
    call = in_background(bench, FAMILY, interrupt)
    pids = process_ids(bench.workspace / "pids", FAMILY_SIZE)
    with monkeypatch.context() as patched:
        patched.setattr(socket, "send_fds", refuse)
        result = bench.run("Bash", command="true")
    assert (result.outcome, "could not be started" in result.content) == ("failed", True)
    assert len(running(pids)) == FAMILY_SIZE
    interrupt.set("shutdown")
    outcome(call)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["shut", "closed"])
def test_host_that_is_found_gone_when_a_call_is_handed_over_is_replaced(
    bench: Workbench, end: str
) -> None:
    bench.run("Bash", command="true")
    running_host = bench.tools.host._running
    assert running_host is not None
    if end == "shut":
        running_host.control.shutdown(socket.SHUT_RDWR)
    else:
        running_host.control.close()
    assert bench.run("Bash", command="echo again").content == "again\n"


@pytest.mark.slow
def test_host_that_another_call_ends_while_this_one_looks_at_it_is_not_well(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run("Bash", command="true")
    looked_at = bench.tools.host._running
    assert looked_at is not None
    poll = select.poll

    def meanwhile() -> select.poll:
        looked_at.control.close()
        return poll()

    with monkeypatch.context() as patched:
        patched.setattr(select, "poll", meanwhile)
        assert not looked_at.well()
    assert bench.run("Bash", command="echo again").content == "again\n"


@pytest.mark.slow
def test_lock_that_cannot_be_taken_is_a_result_and_starts_nothing(bench: Workbench) -> None:
    bench.lock_dir.rmdir()
    result = bench.run("Bash", command="touch made")
    assert result.outcome == "failed"
    assert result.content.startswith("the command could not be started: ")
    assert not (bench.workspace / "made").exists()


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux has this clock")
def test_time_that_the_machine_sleeps_counts_for_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([1_000.0, 1_000.0])
    clock = {time.CLOCK_BOOTTIME: lambda: next(readings, 5_000.0)}
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock[which]())
    monkeypatch.setattr(keeper, "LOOK_AT_CLOCK", 0.01)
    call, other = socket.socketpair()
    life, held = os.pipe()
    with call, other, os.fdopen(life), os.fdopen(held, "w"):
        process: Any = SimpleNamespace(
            _pid=1, _timeout=3_600.0, _limits=keeper.Limits({}, (), ""), _gate=None
        )
        process._output, process._errors = keeper._Collected(9), keeper._Collected(9)
        ended = keeper._Process.watch(process, call.fileno(), life, life)
        assert ended == (keeper.TIMED_OUT, 0)


def test_close_ends_the_host(bench: Workbench) -> None:
    bench.run("Bash", command="true")
    host, guard = host_of_this_process(), guard_of_this_process()
    bench.tools.close()
    assert not host.is_running()
    assert not guard.is_running()


DEPTH = 1_200
# Each starts a new program: forks of forks would cost the kernel time with the square of the depth.
DEEP = f"""
cat > deep <<'end'
if [ $1 = 0 ]; then echo $$ > reached; exec sleep 1000; fi
sh deep $(($1 - 1))
:
end
setsid sh deep {DEPTH} &
until [ -s reached ]; do sleep 0.1; done
"""


@pytest.mark.slow
@pytest.mark.parametrize("then", ["echo done", "kill -9 $PPID; sleep 1000"])
def test_deep_tree_ends_with_its_call_and_disturbs_no_other(bench: Workbench, then: str) -> None:
    interrupt = Interrupt()
    innocent = in_background(bench, "until [ -e over ]; do sleep 0.1; done; echo fine", interrupt)
    result = bench.run("Bash", command=DEEP + then)
    assert result.outcome == ("succeeded" if "echo" in then else "interrupted")
    assert running(process_ids(bench.workspace / "reached", 1)) == []
    (bench.workspace / "over").touch()
    ended = outcome(innocent)
    assert isinstance(ended, ToolResult)
    assert ended.content == "fine\n"
    assert left_in(bench.workspace) == []
    assert bench.run("Bash", command="echo again").content == "again\n"


# Of the tool's shell: its keeper, the host, the guard.
ANCESTORS = """
parent() { set -- $(cat /proc/$1/stat); echo $4; }
K=$PPID; H=$(parent $K); G=$(parent $H)
"""
ATTACKS = [
    "kill -STOP $K",
    "kill -STOP $H",
    "kill -STOP $G",
    "kill -STOP $G $H $K",
    "kill -STOP $H $K; kill -9 $G",
    "kill -9 $H $K",
    "kill -9 $G",
    "kill -9 $G $K",
    "kill -STOP $K; kill -9 $G",
    "kill -TERM $K $H $G; kill -HUP $K $H $G; kill -STOP $K",
]


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_on_what_watches_over_a_call_ends_the_call_and_all_of_it(
    bench: Workbench, attack: str
) -> None:
    result = bench.run("Bash", command=f"{ANCESTORS} {attack}; {FAMILY}", seconds=1000)
    assert result.outcome == "interrupted"
    wait_until(lambda: left_in(bench.workspace) == [], "all is killed")
    assert bench.run("Bash", command="echo again").content == "again\n"


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["true", *ATTACKS])
def test_killed_worker_leaves_nothing_of_a_call_that_attacked_what_watched_over_it(
    bench: Workbench, attack: str
) -> None:
    command = f"{ANCESTORS} echo $G > guard; kill -9 $W & {attack}; {FAMILY}".replace(
        "$W", "$(parent $G)"
    )
    with worker(bench, 60, command) as process:
        (guard,) = process_ids(bench.workspace / "guard", 1)
        process.wait(PATIENCE)
        wait_until(lambda: left_in(bench.workspace) == [], "all is killed")
        wait_until(lambda: running([guard]) == [], "the guard ends")
        assert run_is_quiet(bench.lock_dir, "run_1")


# To trace a process stops it, and its parent is not told.
TRACE = """python3 -c '
import ctypes, os, sys, time
if ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), None, None): sys.exit("not allowed")
open("traced", "w").write("yes\\n")
time.sleep(1000)' """


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["$K", "$H"])
@pytest.mark.parametrize("end", ["timeout", "shutdown"])
def test_call_whose_keeper_does_nothing_any_more_ends_at_the_workers_deadline(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, whom: str, end: str
) -> None:
    monkeypatch.setattr(host_module, "KEEPER_PATIENCE", 1.0)
    monkeypatch.setattr(host_module, "_END_PATIENCE", 1.0)
    interrupt = Interrupt()
    attack = f"{ANCESTORS} {TRACE} {whom}"
    if whom == "$H":
        attack += " & until [ -s traced ]; do :; done; kill -9 $K; sleep 1000"
    seconds = 10.0 if end == "timeout" else 1_000.0
    call = in_background(bench, attack, interrupt, seconds)
    wait_until((bench.workspace / "traced").exists, "the process is traced")
    if end == "shutdown":
        interrupt.set("shutdown")
    ended = outcome(call)
    assert (ended.outcome if isinstance(ended, ToolResult) else "interrupted") == (
        "timed_out" if end == "timeout" else "interrupted"
    )
    wait_until(lambda: left_in(bench.workspace) == [], "all is killed")
    assert bench.run("Bash", command="echo again").content == "again\n"


NO_FILES = """python3 -c '
import resource, sys
for pid in map(int, sys.argv[1:]): resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0))' """


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["$K", "$H $K"])
def test_failure_of_what_watches_over_a_call_ends_in_kills(bench: Workbench, whom: str) -> None:
    command = f"{ANCESTORS} {NO_FILES} {whom}; setsid sleep 1000 & kill -9 $$"
    result = bench.run("Bash", command=command)
    assert result.outcome == "interrupted"
    wait_until(lambda: left_in(bench.workspace) == [], "all is killed")
    assert bench.run("Bash", command="echo again").content == "again\n"

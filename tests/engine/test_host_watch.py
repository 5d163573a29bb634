"""A worker whose host has a fault takes no runs until the host is well."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
from pathlib import Path

import pytest

from runner.engine.host_watch import HostWatch
from runner.errors import HostFaultError, UnreachableError, WorkspaceError, host_fault
from runner.workspace.host_check import find_host_fault


class Stopping(threading.Event):
    """Notes the pauses that were waited for; they take no time."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self._most = most

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.pauses.append(timeout)
        return len(self.pauses) >= self._most


class Host:
    """A host whose faults are given, one for each look at it."""

    def __init__(self, *found: str | None, looks: int = 99) -> None:
        self.found = [*found]
        self.marks: list[str | None] = []
        self.claims = "allowed"
        self.well = threading.Event()
        self.stopping = Stopping(looks)
        self.watch = HostWatch(
            lambda met: self.found.pop(0), self.mark, self.pause, self.resume, self.stopping
        )

    def mark(self, fault: str | None) -> None:
        self.marks.append(fault)

    def pause(self) -> None:
        self.claims = "paused"

    def resume(self) -> None:
        self.claims = "allowed"
        self.well.set()

    def meet(self, fault: str) -> None:
        self.well.clear()
        self.watch.report(fault)
        assert self.well.wait(60)


def test_pauses_grow_until_the_host_is_well_and_begin_short_once_it_worked() -> None:
    host = Host(*["still full"] * 7, None, None, None)
    host.meet("no space")
    assert host.stopping.pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert host.marks == ["no space", *["still full"] * 7, None]
    host.meet("no space")  # it only looked well: no run was worked
    assert host.stopping.pauses[8:] == [60]
    host.watch.worked()
    host.meet("no space")
    assert host.stopping.pauses[9:] == [1]


def test_many_runs_that_meet_a_fault_make_one_line_and_one_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looked, look = threading.Event(), threading.Event()

    def find(met: str) -> None:
        looked.set()
        look.wait(60)

    host = Host()
    host.watch.find_fault = find
    with caplog.at_level(logging.WARNING):
        host.watch.report("no space")
        assert looked.wait(60)
        assert host.claims == "paused"
        for _ in range(5):
            host.watch.report("no space")
        look.set()
        assert host.well.wait(60)
    first, second = (record.getMessage() for record in caplog.records)
    assert (first, second) == (
        "this host cannot work, so its worker takes no runs for now: no space",
        "this host can work again: its worker takes runs",
    )


def test_a_host_is_looked_at_before_the_first_claim() -> None:
    host = Host("no space", None)
    host.watch.look()
    assert host.well.wait(60)
    assert host.marks == ["no space", None]


def test_a_fault_that_a_run_meets_as_claims_are_resumed_pauses_them_again() -> None:
    host = Host(None, looks=2)
    host.found.append("still full")
    meeting = threading.Thread(target=host.watch.report, args=("no space",))

    def resume() -> None:
        meeting.start()
        meeting.join(0.5)  # it has to wait until claims are resumed
        host.resume()

    host.watch.resume = resume
    host.meet("no space")
    meeting.join(60)
    assert (host.claims, host.watch.fault) == ("paused", "no space")


def test_a_worker_that_drains_looks_no_more() -> None:
    host = Host("still full", looks=2)
    host.watch.report("no space")
    for thread in threading.enumerate():
        if thread.name == "runner-host":
            thread.join(60)
    assert (host.claims, host.found) == ("paused", [])


def test_a_fault_is_waited_for_though_the_database_is_away() -> None:
    host = Host("still full", None)

    def fail(_: str | None) -> None:
        raise UnreachableError("the database does not answer")

    host.watch.mark = fail
    host.meet("no space")
    assert host.claims == "allowed"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EMFILE, errno.ENOMEM])
def test_an_error_of_the_system_is_a_fault_of_the_host_however_it_is_wrapped(number: int) -> None:
    error = WorkspaceError("cannot copy the workspace")
    error.__cause__ = OSError(number, os.strerror(number), "/data/x")
    assert host_fault(error) == "cannot copy the workspace"


def test_other_errors_are_none() -> None:
    assert host_fault(FileNotFoundError(errno.ENOENT, "gone")) is None
    assert host_fault(WorkspaceError("the repository has no commit 1")) is None
    assert host_fault(RuntimeError("can't start new thread")) == "can't start new thread"
    assert host_fault(MemoryError()) == "no memory is left"
    assert host_fault(HostFaultError("git is\nmissing")) == "git is missing"


def test_a_host_is_looked_at_whole(tmp_path: Path) -> None:
    environment = dict(os.environ)
    assert find_host_fault(tmp_path, environment) is None
    assert list(tmp_path.iterdir()) == []
    gone = find_host_fault(tmp_path / "gone", environment)
    assert gone == f"RUNNER_HOME {tmp_path / 'gone'} is gone: put it back"
    programs = tmp_path / "bin"
    programs.mkdir()
    told = find_host_fault(tmp_path, {"PATH": str(programs)})
    assert str(told).startswith("git is not on the PATH: install it")
    (programs / "git").symlink_to(str(shutil.which("git")))
    told = find_host_fault(tmp_path, {"PATH": str(programs)})
    assert told == "bash is not on the PATH of this worker: install it there"
    assert find_host_fault(tmp_path, {"PATH": str(programs)}, "no space") is None
    assert find_host_fault(tmp_path, {"PATH": str(programs)}, str(told)) == told

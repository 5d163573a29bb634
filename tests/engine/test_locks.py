"""Who is alive on this host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from runner.errors import RunnerError
from runner.store.host_locks import HostLocks, gone_from_here

HOLDER = """
import sys, time
from pathlib import Path
from runner.store.host_locks import HostLocks
locks = HostLocks(Path(sys.argv[1]))
locks.hold("worker_a")
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def locks(tmp_path: Path) -> HostLocks:
    return HostLocks(tmp_path / "locks")


def test_a_worker_is_dead_when_its_process_was_killed(locks: HostLocks) -> None:
    command = [sys.executable, "-c", HOLDER, str(locks.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert not locks.is_dead("worker_a")
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    assert locks.is_dead("worker_a")


def test_a_worker_whose_file_was_swept_away_is_not_taken_for_dead(locks: HostLocks) -> None:
    locks.hold("worker_a")
    (locks.folder / "worker_a.lock").unlink()
    assert not HostLocks(locks.folder).is_dead("worker_a")
    locks.release("worker_a")


def test_all_processes_of_a_folder_are_one_host(locks: HostLocks, tmp_path: Path) -> None:
    assert HostLocks(locks.folder).host_id == locks.host_id
    assert HostLocks(tmp_path / "other").host_id != locks.host_id


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(RunnerError, match="only you can use"):
        HostLocks(tmp_path / "open")


LOOK = "from runner.store.host_locks import gone_from_here; print(gone_from_here([('a', 'here')]))"


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostLocks:
    """The locks of this user in the folder of temporary files, where others may be first. The worker
    ``a`` is gone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    locks = HostLocks()
    (locks.folder / "a.lock").touch()
    return locks


def test_nothing_is_known_from_a_folder_that_somebody_else_may_write_to(shared: HostLocks) -> None:
    worker = ("a", shared.host_id)
    assert gone_from_here([worker]) == ["a"]
    shared.folder.chmod(0o777)
    assert gone_from_here([worker]) == []
    shared.folder.chmod(0o700)
    if os.getuid() == 0:
        os.chown(shared.folder, 12345, 12345)
        assert gone_from_here([worker]) == []


def test_nobody_waits_for_a_host_id_that_is_no_file(shared: HostLocks) -> None:
    (shared.folder / "host-id").unlink()
    os.mkfifo(shared.folder / "host-id")
    looked = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=60, check=True
    )
    assert looked.stdout == "[]\n"


def test_a_host_id_that_is_no_text_names_no_host(shared: HostLocks) -> None:
    (shared.folder / "host-id").write_bytes(b"\xff\xfe")
    assert gone_from_here([("a", shared.host_id)]) == []

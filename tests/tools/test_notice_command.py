"""The command that tells people of a job: a real shell below a real worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runner.tools.notice_command import run_command

ABOUT = {"job_id": "job_1", "questions": []}


@pytest.mark.slow
def test_command_gets_the_notice_on_its_input(tmp_path: Path) -> None:
    command = f'cat > {tmp_path}/told; test "$NOTE" = yes'
    assert run_command(command, ABOUT, {"NOTE": "yes"}) == ""
    assert json.loads((tmp_path / "told").read_text()) == ABOUT


@pytest.mark.slow
def test_command_that_reads_nothing_of_many_questions_is_no_failure() -> None:
    assert run_command("true", {**ABOUT, "questions": ["x" * 1_000_000]}, {}) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "most_seconds", "expected"),
    [
        ("exit 3 # password", 60.0, "ended with exit code 3"),
        ("sleep 1000 # password", 0.2, "was ended after 0.2 s"),
        ("sleep 1000 & sleep 1000 # password", 0.2, "was ended after 0.2 s"),
    ],
)
def test_a_failure_is_reported_without_the_command(
    command: str, most_seconds: float, expected: str
) -> None:
    assert run_command(command, ABOUT, dict(os.environ), most_seconds) == expected


def test_a_shell_that_cannot_be_started_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert run_command("true", ABOUT, {}) == "could not be run: No such file or directory"


@pytest.mark.slow
def test_command_is_ended_in_time_when_its_worker_was_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    command = f"(sleep 1000 & exec sleep 1000) > {tmp_path}/pipe"
    program = (
        "from runner.tools.notice_command import run_command; "
        f"run_command({command!r}, {{}}, {{'PATH': '/bin:/usr/bin'}}, most_seconds=5)"
    )
    worker = subprocess.Popen([sys.executable, "-c", program])
    with open(tmp_path / "pipe", "rb") as pipe:  # open when the command runs
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        assert pipe.read() == b"", "ends when nothing of the command is left"

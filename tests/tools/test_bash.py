"""Bash: what a command gets, what is made of what it prints, and that it can harm nobody."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.errors import HostFaultError
from runner.ports import Interrupt
from runner.tools import shell
from runner.tools.host import MOST_OUTPUT_BYTES, Ended, Start
from runner.tools.toolbox import LocalTools

from .conftest import SECRET, Workbench


def test_command_runs_in_the_workspace_with_output_and_errors_in_order(bench: Workbench) -> None:
    result = bench.run("Bash", command="pwd; echo wrong >&2; echo right")
    assert result.content == f"{bench.workspace}\nwrong\nright\n"
    assert result.outcome == "succeeded"
    assert result.duration > 0


def test_exit_code_is_told_and_is_an_error(bench: Workbench) -> None:
    result = bench.run("Bash", command="echo no; exit 3")
    assert (result.outcome, result.content) == ("failed", "no\nExit code 3")


def test_signal_is_told(bench: Workbench) -> None:
    assert bench.run("Bash", command="kill -SEGV $$").content == "Killed by signal 11"


@pytest.mark.parametrize("command", ["true", "echo", "printf '  \\n\\t'"])
def test_nothing_printed_is_said_in_words(bench: Workbench, command: str) -> None:
    assert bench.run("Bash", command=command).content == "(no output)"


def test_environment_holds_no_setting_and_no_secret(bench: Workbench) -> None:
    result = bench.run("Bash", command="env; cat /proc/$PPID/environ")
    assert "HARMLESS=yes" in result.content
    assert SECRET not in result.content
    assert "RUNNER_" not in result.content
    assert "sk-ant-secret" not in result.content


@pytest.mark.slow
def test_no_variable_of_the_worker_changes_what_a_command_means(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "steering").write_text("echo steered by $0; ls() { echo steered; }")
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "steering"))
    monkeypatch.setenv("ENV", str(tmp_path / "steering"))
    monkeypatch.setenv("BASH_FUNC_true%%", "() { echo steered; }")
    monkeypatch.setenv("SHELLOPTS", "xtrace")
    monkeypatch.setenv("PS4", "$(echo steered)")
    monkeypatch.setenv("CDPATH", "/")
    given = (bench.home, bench.home / "locks", [], bench.stored.get)
    with closing(LocalTools(*given, watchdog_seconds=300)) as tools:
        steered = replace(bench, tools=tools)
        command = "ls /dev/null; true; bash -c 'true'; sh -c 'true'; mkdir usr && cd usr && pwd"
        result = steered.run("Bash", command=command)
    assert result.content.split() == ["/dev/null", f"{bench.workspace}/usr"]


def test_command_has_no_stdin_and_no_terminal(bench: Workbench) -> None:
    assert (
        bench.run("Bash", command="cat; (: < /dev/tty) 2> /dev/null || echo none").content
        == "none\n"
    )


def test_command_inherits_no_descriptor(bench: Workbench, tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file:
        os.set_inheritable(file.fileno(), True)
        result = bench.run("Bash", command="ls /proc/self/fd")
    # The fourth is the one that ls reads the folder by.
    assert result.content.split() == ["0", "1", "2", "3"]


@pytest.mark.slow
def test_timeout_argument_is_milliseconds(bench: Workbench) -> None:
    result = bench.run("Bash", command="echo begun; sleep 1000", timeout=4_500)
    assert result.outcome == "timed_out"
    assert result.content.startswith("begun\nThe command was killed: it took more than 4.5 s")


@pytest.mark.parametrize("timeout", [600_001, 0, -1, "10"])
def test_timeout_past_the_bounds_is_invalid_input(bench: Workbench, timeout: object) -> None:
    assert bench.run("Bash", command="true", timeout=timeout).outcome == "invalid_input"


@pytest.mark.parametrize(
    ("asked", "of_the_job", "timeout", "hint"),
    [
        ({}, 120, 120.0, " A longer timeout (at most 600000 ms) can be given."),
        ({"timeout": 5_000}, 10_800, 5.0, " Without a timeout it may take 10800 s."),
        ({"timeout": 600_000}, 120, 600.0, ""),
        ({"timeout": 600_000}, 10_800, 10_800.0, ""),
        ({}, 10_800, 10_800.0, ""),
    ],
)
def test_longest_timeout_that_a_call_asks_for_is_the_jobs_if_that_is_longer(
    bench: Workbench, asked: dict[str, Any], of_the_job: float, timeout: float, hint: str
) -> None:
    class Impatient:
        def call(self, start: Start, interrupt: Interrupt) -> Ended:
            assert start.timeout == timeout
            return Ended("timed_out")

    call = bench.call("Bash", of_the_job, command="make", **asked)
    said = shell.bash(call, Impatient(), os.environ, Interrupt()).content
    assert said == f"The command was killed: it took more than {timeout:g} s.{hint}"


@pytest.mark.slow
def test_flood_is_cut_at_ten_megabytes_and_says_so(bench: Workbench) -> None:
    result = bench.run("Bash", command="yes | head -c 30000000")
    assert result.outcome == "succeeded"
    assert result.output is not None
    assert len(result.output) == MOST_OUTPUT_BYTES
    assert "only the first 10,000,000 bytes of the output were kept" in result.content


@pytest.mark.slow
def test_endless_flood_ends_at_its_timeout(bench: Workbench) -> None:
    result = bench.run("Bash", command="yes", timeout=500)
    assert result.outcome == "timed_out"
    assert len(result.content) <= 50_000


def test_long_output_is_shown_by_head_and_tail_and_can_be_read_whole(bench: Workbench) -> None:
    result = bench.run("Bash", command="seq 1 20000")
    assert len(result.content) <= 50_000
    assert result.content.startswith("1\n2\n")
    assert result.content.endswith("19999\n20000\n")
    copy = bench.outputs / "call_1.txt"
    assert str(copy) in result.content
    whole = "".join(f"{number}\n" for number in range(1, 20_001)).encode()
    assert result.output == whole
    assert copy.read_bytes() == whole


def test_bytes_that_are_not_text_are_shown_harmlessly(bench: Workbench) -> None:
    result = bench.run("Bash", command=r"printf 'a\xff\x00\x1b[31mred\r\nb\xed\xa0\x80\n'")
    assert result.content == "a\ufffd\\x00\\x1b[31mred\nb\ufffd\ufffd\ufffd\n"
    json.dumps(result.content).encode()


@pytest.mark.parametrize("command", ["a\0b", "echo \ud800", "x" * 100_001])
def test_command_that_cannot_be_passed_is_invalid_input(bench: Workbench, command: str) -> None:
    result = bench.run("Bash", command=command)
    assert result.outcome == "invalid_input"
    result.content.encode()


def test_job_without_a_workspace_has_no_bash(bench: Workbench) -> None:
    call = bench.call("Bash", command="true")
    call = replace(call, surroundings=replace(call.surroundings, workspace=None))
    result = bench.tools.run(call, Interrupt())
    assert (result.outcome, "no workspace" in result.content) == ("failed", True)


def test_workspace_that_is_gone_is_said(bench: Workbench, tmp_path: Path) -> None:
    call = bench.call("Bash", command="true")
    call = replace(call, surroundings=replace(call.surroundings, workspace=tmp_path / "gone"))
    result = bench.tools.run(call, Interrupt())
    assert result.outcome == "failed"
    assert "No such file or directory" in result.content


def test_worker_without_bash_says_so(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    tools = type(bench.tools)(bench.home, bench.lock_dir)
    with pytest.raises(HostFaultError, match="bash is not on the PATH"):
        tools.run(bench.call("Bash", command="true"), Interrupt())
    tools.close()


def test_git_in_a_copy_does_not_find_the_repository_around_runner_home(bench: Workbench) -> None:
    subprocess.run(["git", "init", "-q", bench.home.parent], check=True)
    copied = bench.home / "workspaces" / "run_1"
    copied.mkdir(parents=True)
    call = bench.call("Bash", command="git rev-parse --show-toplevel")
    inside = replace(call, surroundings=replace(call.surroundings, workspace=copied))
    result = bench.tools.run(inside, Interrupt())
    assert "not a git repository" in result.content


@pytest.mark.parametrize(
    ("limit", "asked", "given"),
    [(120, None, 120), (120, 500_000, 500), (7_200, None, 7_200), (7_200, 500_000, 500)],
)
def test_a_call_may_take_what_it_asks_for_and_else_what_its_job_allows(
    bench: Workbench, limit: float, asked: int | None, given: float
) -> None:
    starts: list[Start] = []

    class Starter:
        def call(self, start: Start, interrupt: Interrupt) -> Ended:
            starts.append(start)
            return Ended("exited")

    asking = {} if asked is None else {"timeout": asked}
    call = bench.call("Bash", limit, command="make", **asking)
    shell.bash(call, Starter(), bench.tools.environment, Interrupt())
    assert [start.timeout for start in starts] == [given]

"""The sandbox of a job's calls: what contains them, and what is recorded of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from runner.core.conversation import ToolResult
from runner.core.hooks import Hook
from runner.core.sandbox import Sandbox
from runner.errors import HostFaultError, SandboxMissing
from runner.ports import Command, HookCall, Interrupt
from runner.tools import sandbox_mounts, shell
from runner.tools.registry import resolve_tools
from runner.tools.sandbox import Sandboxes
from runner.tools.sandbox_gate import UNMADE, Gate

from .conftest import EVERYTHING, Workbench

HERE = Sandboxes(Path("/nowhere"), os.environ).probe()
with_sandbox = pytest.mark.skipif(
    HERE.kind != "bubblewrap", reason=f"this host has no bubblewrap: {HERE.missing}"
)


def bash(bench: Workbench, command: str, sandbox: Sandbox | None) -> ToolResult:
    call = replace(bench.call("Bash", command=command), sandbox=sandbox)
    return bench.tools.run(call, Interrupt())


@with_sandbox
def test_a_command_in_the_sandbox_writes_the_workspace_and_nothing_else(
    bench: Workbench, tmp_path: Path
) -> None:
    mine = Path("/tmp", f"runner-{uuid4()}")
    command = f"echo x > made; echo x > {mine}; echo x > {tmp_path}/beside; echo x > /usr/no"
    result = bash(bench, command, Sandbox())
    assert result.content.count("Read-only file system") == 1
    assert (bench.workspace / "made").exists()
    assert not (tmp_path / "beside").exists()
    assert not mine.exists()
    assert result.containment == "bubblewrap"


@pytest.mark.slow
@with_sandbox
def test_nothing_of_the_host_can_be_seen_or_signalled_from_the_sandbox(bench: Workbench) -> None:
    result = bash(bench, "kill -STOP $PPID; ls -d /proc/[0-9]* | wc -l", Sandbox())
    assert int(result.content.split()[-1]) < 10
    assert result.outcome == "succeeded"


@pytest.mark.slow
@with_sandbox
def test_verify_commands_and_hooks_that_ask_for_it_run_in_the_sandbox(
    bench: Workbench, tmp_path: Path
) -> None:
    text = f"touch made {tmp_path}/beside"
    for sandbox, made in ((Sandbox(), False), (None, True)):
        command = Command("verify_1", "run_1", text, bench.surroundings, 60, sandbox, EVERYTHING)
        result = bench.tools.command(command, Interrupt())
        assert (tmp_path / "beside").exists() == made
        assert result.containment == ("none" if made else "bubblewrap")
        (tmp_path / "beside").unlink(missing_ok=True)
        hook = Hook("TurnEnd", command=text)
        told = HookCall("run_1", hook, {}, bench.surroundings, sandbox)
        said = bench.tools.hook(told, Interrupt())
        assert said.containment == (None if made else "bubblewrap")
        assert (tmp_path / "beside").exists() == made
        (tmp_path / "beside").unlink(missing_ok=True)


@pytest.mark.slow
@with_sandbox
def test_a_tool_of_your_own_runs_in_the_sandbox(bench: Workbench, tmp_path: Path) -> None:
    module = """
def keep(path: str) -> str:
    \"\"\"Write a file.\"\"\"
    try:
        open(path, "w").close()
    except OSError as error:
        return error.strerror
    return "written"
"""
    (tmp_path / "mine.py").write_text(module)
    ((tool,), _) = resolve_tools(["mine:keep"], tmp_path)
    for path, said in ((tmp_path / "beside", "Read-only file system"), ("made", "written")):
        call = replace(bench.call(tool, path=str(path)), sandbox=Sandbox())
        result = bench.tools.run(call, Interrupt())
        assert (result.content, result.containment) == (said, "bubblewrap")


def test_a_host_that_is_not_linux_says_that_it_contains_nothing(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "waitid")
    with pytest.raises(SandboxMissing, match="there is no sandbox on darwin: only on Linux"):
        bench.tools.require(Sandbox("required"))
    limited = Sandbox("auto", memory=2**30, disk=2**30)
    for _ in range(2):
        result = bash(bench, "echo done", limited)
        assert result.content == "done\n"
        assert result.containment == "none; Runner enforces disk; nobody enforces memory"


@pytest.mark.slow
def test_what_contained_a_call_is_recorded_also_if_nothing_did(bench: Workbench) -> None:
    assert bash(bench, "true", None).containment == "none"
    assert bash(bench, "true", Sandbox("off")).containment == "none"
    # Landlock cannot hold that the state folder in this workspace is hidden, and says so.
    assert str(bash(bench, "exit 3", Sandbox()).containment).startswith(HERE.kind)
    assert bench.run("Glob", pattern="*").containment is None


@pytest.mark.slow
def test_a_host_without_bubblewrap_runs_no_call_of_a_job_that_requires_a_sandbox(
    bench: Workbench, tmp_path: Path
) -> None:
    bench.tools.sandboxes = without = Sandboxes(tmp_path, {"PATH": str(tmp_path)})
    missing = "requires a sandbox, and this host has none: bwrap is not on the PATH"
    with pytest.raises(HostFaultError, match=missing):
        bash(bench, "touch made", Sandbox("required"))
    assert not (bench.workspace / "made").exists()
    assert bash(bench, "touch made", Sandbox("auto")).containment == without.probe().kind
    assert without.probe().kind in ("landlock", "none")


@pytest.mark.slow
@with_sandbox
def test_a_sandbox_that_fails_is_told_as_such_and_never_as_the_command_s_output(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount that is gone is the call's; namespaces that are refused halfway are the host's."""
    (bench.workspace / "a.lock").touch()
    made = sandbox_mounts._variables

    def meanwhile(*arguments: Any) -> Iterator[str]:
        (bench.workspace / "a.lock").unlink()
        return made(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(sandbox_mounts, "_variables", meanwhile)
        result = bash(bench.under("allow Bash", "deny Edit(*.lock)"), "touch made", Sandbox())
    lock = bench.workspace / "a.lock"
    why = f"bwrap: Can't find source path {lock}: No such file or directory"
    said = f"the command could not be started: its sandbox could not be made: {why}"
    assert (result.content, result.outcome) == (said, "failed")
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: loopback: refused' >&2\nexit 1\n")
    program.chmod(0o755)
    bench.tools.sandboxes.environment["PATH"] = f"{tmp_path}:/usr/bin:/bin"
    with pytest.raises(HostFaultError, match="sandbox could not be made: bwrap: loopback: refused"):
        bash(bench, "touch made", Sandbox())
    assert not (bench.workspace / "made").exists()


@pytest.mark.slow
@with_sandbox
def test_a_program_that_cannot_be_executed_is_told_as_without_a_sandbox(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program := bench.workspace / "program").touch(0o600)
    monkeypatch.setattr(shell, "bash_path", lambda environment: str(program))
    said = f"the command could not be started: {program}: Permission denied"
    for sandbox in (None, Sandbox()):
        assert bash(bench, "true", sandbox).content == said
    program.unlink()
    for sandbox in (None, Sandbox()):
        with pytest.raises(HostFaultError, match=f"the program {program} is gone: install it"):
            bash(bench, "true", sandbox)
    monkeypatch.undo()
    hidden = bench.under("deny Read(//usr/bin/bash)", "deny Read(//bin/bash)")
    assert "could not be started: /" in bash(hidden, "true", Sandbox()).content


def test_a_gate_stays_shut_if_bubblewrap_does_not_tell_its_process(tmp_path: Path) -> None:
    """Without the process nobody can check the mounts."""
    gate = Gate([str(tmp_path)], 0, "", 0)
    assert not gate.open()
    assert gate.problem(-9, "") == f"{UNMADE}: bubblewrap did not tell its process"
    assert gate.problem(1, "bwrap: no") == f"{UNMADE}: bwrap: no"


@pytest.mark.slow
@with_sandbox
def test_a_signal_that_ends_a_command_is_named(bench: Workbench) -> None:
    said = bash(bench, "kill -KILL $$", Sandbox()).content
    assert said == "Exit code 137: killed by signal 9, or ended with this code"
    assert bash(bench, "exit 3", Sandbox()).content == "Exit code 3"


@pytest.mark.slow
@with_sandbox
def test_the_kernel_bounds_a_fork_bomb_before_its_keeper_has_counted_it(bench: Workbench) -> None:
    assert bash(bench, "ulimit -u", Sandbox(processes=50)).content == "110\n"
    if os.geteuid():  # root has no such limit
        said = bash(bench, ":(){ :|:& };: ; sleep 60", Sandbox(processes=50)).content
        assert "The command was ended: it had more than 50 processes" in said

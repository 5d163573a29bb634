"""Commands of the job itself: run like Bash's, without an authorization and for as long as the job says."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from runner.core.conversation import ToolResult
from runner.errors import Interrupted
from runner.ports import Command, Interrupt, Surroundings

from .conftest import SECRET, Workbench, process_ids, running, wait_until


def run(bench: Workbench, text: str, seconds: float = 60.0) -> ToolResult:
    command = Command("verify_1", "run_1", text, bench.surroundings, seconds)
    return bench.tools.command(command, Interrupt())


def test_a_command_runs_in_the_workspace_and_needs_no_permit(bench: Workbench) -> None:
    result = run(bench.under("deny Bash"), "echo made > here; pwd")
    assert result.outcome == "succeeded"
    assert result.content.strip() == str(bench.workspace)
    assert (bench.workspace / "here").exists()


def test_output_and_errors_come_in_order_with_the_exit_code(bench: Workbench) -> None:
    result = run(bench, "echo first; echo second >&2; exit 3")
    assert (result.content, result.outcome) == ("first\nsecond\nExit code 3", "failed")


@pytest.mark.slow
def test_a_command_may_take_longer_than_a_tool_and_is_killed_at_its_own_timeout(
    bench: Workbench,
) -> None:
    result = run(bench, "sleep 60", seconds=0.2)
    assert result.outcome == "timed_out"
    assert result.content == "The command was killed: it took more than 0.2 s."


def test_a_command_finds_no_secrets(bench: Workbench) -> None:
    result = run(bench, "env")
    assert SECRET not in result.content
    assert "HARMLESS=yes" in result.content


def test_a_long_output_is_kept_under_the_commands_name(bench: Workbench) -> None:
    result = run(bench, "seq 100000")
    assert result.output is not None
    assert (bench.outputs / "verify_1.txt").read_bytes() == result.output


def test_without_a_workspace_the_result_says_so(bench: Workbench, tmp_path: Path) -> None:
    nowhere = Surroundings(None, tmp_path)
    result = bench.tools.command(Command("setup_1", "run_1", "true", nowhere, 1.0), Interrupt())
    assert result.outcome == "failed"
    assert "no workspace" in result.content


def test_a_cut_command_leaves_no_process(bench: Workbench) -> None:
    interrupt = Interrupt()
    ended: list[BaseException] = []

    def work() -> None:
        command = Command(
            "setup_1", "run_1", "sleep 60 & echo $! > pid; wait", bench.surroundings, 60
        )
        try:
            bench.tools.command(command, interrupt)
        except Interrupted as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    pids = process_ids(bench.workspace / "pid", 1)
    interrupt.set("dropped")
    thread.join()
    assert [type(error) for error in ended] == [Interrupted]
    wait_until(lambda: not running(pids), "the command's process ends")


def test_a_cut_one_does_not_begin(bench: Workbench) -> None:
    interrupt = Interrupt()
    interrupt.set("shutdown")
    with pytest.raises(Interrupted):
        bench.tools.command(
            Command("setup_1", "run_1", "touch begun", bench.surroundings, 60), interrupt
        )
    assert not (bench.workspace / "begun").exists()

"""The originals of results that hooks replace: people find them, the run's tools find them nowhere."""

from __future__ import annotations

import shlex
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from sqlalchemy import select

from runner.core.commands import Reply
from runner.core.hooks import WITHHELD, Hook
from runner.core.run import Ended, Waiting
from runner.permissions import Rule
from runner.queries.transcript import show_call
from runner.store import ids
from runner.store.leases import give_back
from runner.store.tables import tool_calls
from runner.tools.output import restore_output
from tests.engine.hooks.bench import Bench, bash, says, telling
from tests.engine.test_asking import reply

SUCCEEDED = Ended("succeeded", "end_turn")
PRINTS = bash("python3 -c 'print(\"hunter2 \" * 20_000)'")
ANSWER = {"hookSpecificOutput": {"hookEventName": "PostToolUse", "updatedToolOutput": "a walnut"}}


def folder(bench: Bench) -> Path:
    return bench.folder.parent / "home" / "outputs"


def looks(bench: Bench) -> dict[str, Any]:
    """A command that finds the secret in what the run's tools can read."""
    return bash(f"grep -rl hunter2 {folder(bench)}; echo looked")


def redacts(bench: Bench) -> Hook:
    """A hook that replaces a long result, and keeps the files that it finds beside its transcript."""
    aside = shlex.quote(str(bench.folder.parent / "aside"))
    finds = (
        """path=$(tail -n 2 told.jsonl | grep -o '"transcript_path": "[^"]*"' | cut -d '"' -f 4)"""
    )
    says_so = says("PostToolUse", ANSWER, matcher=("Bash(python3 *)",))
    keeps = f'{finds}; cp -r "$(dirname "$path")" {aside}'
    note, _, answer = str(says_so.command).rpartition("; ")
    return Hook("PostToolUse", says_so.matcher, f"{note}; {keeps}; {answer}")


def killed(*given: object) -> None:
    raise KeyboardInterrupt


def check_hook_saw_original(bench: Bench, run_id: str) -> None:
    """So do people."""
    seen = [path.name for path in (bench.folder.parent / "aside").iterdir()]
    assert sorted(seen) == [f"{ids.call_id(run_id, 1, 0)}.txt", f"{run_id}.jsonl"]
    for path in (bench.folder.parent / "aside").iterdir():
        assert "hunter2" in path.read_text()
    assert "hunter2" in show_call(bench.database, ids.call_id(run_id, 1, 0))["output"]


def test_tools_find_no_original_once_a_hook_has_replaced_it(bench: Bench) -> None:
    lease = bench.run_with([redacts(bench)], PRINTS, looks(bench))
    assert bench.work(lease) == SUCCEEDED
    assert bench.model.results == ["a walnut", "looked\n"]
    check_hook_saw_original(bench, lease.run_id)


@pytest.mark.slow
def test_tools_find_no_original_whose_hook_was_cut_off(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = bench.run_with([redacts(bench)], PRINTS, looks(bench))
    with monkeypatch.context() as patch:
        patch.setattr("runner.engine.attempt_workspace.read_answer", killed)
        with pytest.raises(KeyboardInterrupt):
            bench.work(lease)
    give_back(bench.database, lease, bench.ports.clock.now())
    assert bench.work() == SUCCEEDED
    assert bench.model.results == [WITHHELD, "looked\n"]
    check_hook_saw_original(bench, lease.run_id)


@pytest.mark.slow
def test_tools_find_no_original_on_a_host_that_had_the_run_before_the_hook(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither do they find a file that a killed worker had begun to write there."""
    rules = [Rule("ask", "Bash(touch *)"), Rule("allow", "*")]
    calls = PRINTS, bash("touch made"), looks(bench)
    lease = bench.run_with([redacts(bench)], *calls, rules=rules)
    assert bench.work(lease) == Waiting("approval")
    outputs = folder(bench) / lease.run_id
    copytree(bench.folder.parent / "aside", outputs, dirs_exist_ok=True)
    (outputs / f".{lease.run_id}.jsonl.1f").write_text("hunter2")
    with monkeypatch.context() as patch:
        patch.setattr("runner.tools.output.os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            restore_output(outputs / f"{ids.call_id(lease.run_id, 1, 0)}.txt", b"hunter2")
    (outputs / "call_other.txt").write_text("kept")
    bench.answer(Reply("approved", "ann"))
    assert bench.work() == SUCCEEDED
    assert bench.model.results[-1] == "looked\n"
    assert (outputs / "call_other.txt").exists()


@pytest.mark.slow
def test_details_of_a_replaced_result_are_in_no_transcript(bench: Bench) -> None:
    (bench.folder / "a").write_text("one\nhunter2\n")
    edit = {"name": "Edit", "input": {"file_path": "a", "old_string": "one", "new_string": "1"}}
    lease = bench.run_with([says("PostToolUse", ANSWER), telling("RunEnd")], reply(edit))
    assert bench.work(lease) == SUCCEEDED
    details = bench.database.read(
        lambda connection: connection.scalar(select(tool_calls.c.details))
    )
    assert "hunter2" in str(details)
    (path,) = folder(bench).rglob("*.jsonl")
    assert "a walnut" in path.read_text()
    assert "hunter2" not in path.read_text()

"""Completion by a shell, and what is proposed for what nearly is a command, an option or a state."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runner.store import jobs as jobs_store
from runner.store.database import Database
from tests.cli.conftest import Result
from tests.store.examples import NOW, SPEC, submission

Complete = Callable[[str], list[str]]


@pytest.fixture
def complete(command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> Complete:
    """What bash is given for the last word of a line."""

    # Else it ends this process, and all tests in it, on a busy machine.
    monkeypatch.setattr("runner.cli.main._COMPLETION_SECONDS", 60)

    def completed(line: str) -> list[str]:
        monkeypatch.setenv("_RUNNER_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        shown = command()
        assert shown.err == ""
        return [value.partition(",")[2] for value in shown.out.split()]

    return completed


def submit(database: Database, name: str, *items: str, key: str | None = None) -> None:
    jobs_store.submit(database, submission(*items, spec=replace(SPEC, name=name)), NOW, key)


def test_commands_options_and_states_are_completed(complete: Complete) -> None:
    assert complete("runner sh") == ["show"]
    assert complete("runner approv") == ["approvals", "approve"]
    assert complete("runner list --sta") == ["--state"]
    assert complete("runner list --state s") == ["succeeded", "stopped"]


def test_jobs_and_runs_are_completed(complete: Complete, database: Database) -> None:
    submit(database, "nightly", "src/a.py", key="monday")
    submit(database, "nightly", "src/a.py", "docs/b.md")
    submit(database, "other", "c")
    assert complete("runner list ") == ["last", "other", "nightly", "monday"]
    assert complete("runner report n") == ["nightly"]
    assert complete("runner transcript n") == ["nightly/src/a.py", "nightly/docs/b.md"]
    assert complete("runner transcript last/") == ["last/c"]
    assert complete("runner show mon") == ["monday", "monday/src/a.py"]
    assert complete("runner cancel x") == []


def test_names_that_mean_something_to_a_shell_are_not_proposed(
    complete: Complete, database: Database
) -> None:
    submit(database, "$(reboot)", "`x`", "a;b", "two words", "--all", "good.py", "-rf")
    assert complete("runner list ") == ["last"]
    assert complete("runner diff last/") == ["last/--all", "last/good.py", "last/-rf"]


def test_nothing_is_completed_or_said_without_a_database(complete: Complete, folder: Path) -> None:
    assert complete("runner list ") == []
    assert not [*folder.iterdir()]
    (folder / ".runner").mkdir()
    (folder / ".runner" / "runner.db").write_bytes(b"no database")
    assert complete("runner list ") == []


@pytest.mark.slow
def test_bash_completes_with_what_is_printed_for_it(database: Database, folder: Path) -> None:
    submit(database, "nightly", "a")
    program = folder / "bin" / "runner"
    program.parent.mkdir()
    patient = "from runner.cli import main\nmain._COMPLETION_SECONDS = 60\nmain.main()\n"
    program.write_text(f"#!{sys.executable}\n{patient}")
    program.chmod(0o755)
    script = (
        f'PATH="{program.parent}:$PATH"; eval "$(runner completion bash)"\n'
        "COMP_WORDS=(runner show nig); COMP_CWORD=2; _runner_completion runner\n"
        'echo "${COMPREPLY[@]}"'
    )
    told = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True)
    assert (told.stdout, told.stderr) == ("nightly nightly/a\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_completion(command: Callable[..., Result], shell: str) -> None:
    assert "_RUNNER_COMPLETE" in command("completion", shell).out


def test_the_shell_is_the_one_of_the_person(
    command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert command("completion").out == command("completion", "fish").out
    monkeypatch.setenv("SHELL", "/bin/sh")
    refused = command("completion")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "name bash, zsh or fish" in refused.err


@pytest.mark.parametrize(
    ("arguments", "proposed"),
    [
        (("lsit",), "Did you mean one of: 'list', 'submit'?"),
        (("list", "--stat", "failed"), "Did you mean one of: '--after', '--state'?"),
        (("list", "--state", "suceeded"), "Did you mean 'succeeded'?"),
        (("audit", "comands"), "Did you mean 'commands'?"),
    ],
)
def test_what_is_nearly_right_is_proposed(
    command: Callable[..., Result], arguments: tuple[str, ...], proposed: str
) -> None:
    refused = command(*arguments)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert proposed in refused.err

"""``runner run`` at a real terminal, and without one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.store.database import Database
from tests.cli.conftest import Result
from tests.cli.person import PATIENCE, at_terminal
from tests.cli.questions import approval_row, ask, job_of, submit_runs
from tests.cli.test_work import DONE, bash, finish, wait_for, write_job
from tests.runner_process import RunnerProcess

Command = Callable[..., Result]
Start = Callable[..., RunnerProcess]
PROMPT = "all): "


@pytest.fixture
def waiting(database: Database) -> tuple[str, str]:
    """A job whose only run waits for a person; its approval."""
    (run_id,) = submit_runs(database, "a")
    return job_of(database, run_id), ask(database, run_id)


def test_ctrl_d_parks_and_exits_with_3(
    folder: Path, database: Database, waiting: tuple[str, str]
) -> None:
    job_id, approval_id = waiting
    with at_terminal(folder, "run", "--resume", job_id) as (process, person):
        person.wait_for(PROMPT)
        person.type("\x04")
        assert process.wait(PATIENCE) == 3
    shown = person.screen.getvalue()
    assert "a asks to use Bash" in shown
    assert "1 tool call waits for an answer" in shown
    assert f"runner approvals {job_id[-8:]}" in shown
    assert approval_row(database, approval_id).answer is None


@pytest.mark.slow
def test_ctrl_c_in_a_question_is_that_of_the_run(
    folder: Path, database: Database, waiting: tuple[str, str]
) -> None:
    job_id, approval_id = waiting
    with at_terminal(folder, "run", "--resume", job_id) as (process, person):
        person.wait_for(PROMPT)
        person.type("\x03")
        assert process.wait(PATIENCE) == 130
    assert f"go on with `runner run --resume {job_id[-8:]}`" in person.screen.getvalue()
    assert approval_row(database, approval_id).answer is None


@pytest.mark.slow
def test_with_no_input_nothing_is_asked(folder: Path, waiting: tuple[str, str]) -> None:
    job_id, _ = waiting
    with at_terminal(folder, "run", "--resume", job_id, "--no-input") as (process, person):
        assert process.wait(PATIENCE) == 3
    shown = person.screen.getvalue()
    assert PROMPT not in shown
    assert f"runner approvals {job_id[-8:]}" in shown


@pytest.mark.slow
def test_without_a_terminal_nothing_is_asked(start: Start, waiting: tuple[str, str]) -> None:
    job_id, _ = waiting
    result = finish(start("run", "--resume", job_id, stdin=subprocess.PIPE))
    assert result.code == 3
    assert PROMPT not in result.err
    assert (
        f"1 tool call waits for an answer, in 1 run: runner approvals {job_id[-8:]}" in result.out
    )


@pytest.mark.slow
def test_call_that_is_approved_at_the_terminal_runs(folder: Path) -> None:
    job = write_job(folder, {"a": [bash("touch x"), DONE]}, rule="ask")
    with at_terminal(folder, "run", job) as (process, person):
        person.wait_for(PROMPT)
        assert not (folder / "workspace" / "x").exists()
        person.type("y\n")
        assert process.wait(PATIENCE) == 0, person.screen.getvalue()
    assert (folder / "workspace" / "x").exists()
    assert "succeeded" in person.screen.getvalue()


@pytest.mark.slow
def test_call_that_is_denied_at_the_terminal_does_not_run_and_the_model_is_told(
    folder: Path, command: Command
) -> None:
    job = write_job(folder, {"a": [bash("touch x"), DONE]}, rule="ask")
    with at_terminal(folder, "run", job) as (process, person):
        person.wait_for(PROMPT)
        person.type("n Leave x alone.\n")
        assert process.wait(PATIENCE) == 0, person.screen.getvalue()
    assert not (folder / "workspace" / "x").exists()
    (found,) = command("list", "--json").json
    (run,) = command("list", found["id"], "--json").json
    messages = command("transcript", run["id"], "--json").json
    assert "Leave x alone." in str(messages[2]["content"])
    assert "denied by " in command("show", run["id"]).out
    assert "1 tool call was denied" in person.screen.getvalue()


@pytest.mark.slow
def test_other_runs_go_on_while_it_asks(folder: Path) -> None:
    wait = "until [ -e asked ]; do sleep 0.05; done; touch b"
    script = {"a": [bash("touch x"), DONE], "b": [bash(wait), DONE]}
    rules = 'ask = ["Bash(touch x)"]\nallow = ["Bash"]'
    job = write_job(folder, script)
    text = (folder / job).read_text().replace('allow = ["Bash"]', rules)
    (folder / job).write_text(text)
    with at_terminal(folder, "run", job) as (process, person):
        person.wait_for(PROMPT)
        (folder / "workspace" / "asked").touch()
        wait_for(folder / "workspace" / "b")
        person.type("y\n")
        assert process.wait(PATIENCE) == 0, person.screen.getvalue()


@pytest.mark.slow
def test_always_answers_the_other_runs(folder: Path) -> None:
    script = {key: [bash("touch x"), DONE] for key in "abcd"}
    with at_terminal(folder, "run", write_job(folder, script, rule="ask")) as (process, person):
        person.wait_for(PROMPT)
        person.type("a\n")
        assert process.wait(PATIENCE) == 0, person.screen.getvalue()


@pytest.mark.slow
def test_parked_run_goes_on_when_it_is_answered_elsewhere(
    start: Start, folder: Path, command: Command
) -> None:
    job = write_job(folder, {"a": [bash("touch x"), DONE], "b": [DONE]}, rule="ask")
    parked = finish(start("run", job))
    assert parked.code == 3, parked.err
    (group,) = command("approvals", "--json").json
    assert command("approve", group["id"], "--edit", "touch y").code == 0
    result = finish(start("run", "--resume", group["job_id"]))
    assert result.code == 0, result.err
    assert (folder / "workspace" / "y").exists()
    assert not (folder / "workspace" / "x").exists()

"""A worker that is killed in the middle of a call, also of one that reaches beyond its workspace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from runner.cli import exit_codes
from runner.queries.jobs import list_jobs, list_runs
from runner.store.database import Database
from tests.cli.conftest import Result
from tests.cli.own_folders import make_source, worktree, write_job
from tests.cli.test_work import bash, wait_for
from tests.runner_process import RunnerProcess

PATIENCE = 120.0
SANDBOX_OFF = '\n[sandbox]\nmode = "off"'  # the command has an effect outside of the workspace

Start = Callable[..., RunnerProcess]
Command = Callable[..., Result]


def resume(start: Start, job_id: str) -> int:
    """Work the job until nothing is left to do or everything waits; the exit code."""
    process = start("run", "--resume", job_id)
    process.communicate(timeout=PATIENCE)
    return process.returncode


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "seen", "told"),
    [
        ("approve", "0\n", "pushed"),
        ("deny", None, "does not want it run again: I looked, it is there."),
    ],
)
def test_person_decides_whether_it_runs_again(
    folder: Path,
    start: Start,
    command: Command,
    database: Database,
    answer: str,
    seen: str | None,
    told: str,
) -> None:
    """It runs again from the files as they were before it; else these are what the model finds."""
    started = folder / "started"
    push = f"cat count >> seen; test -e {started} || {{ touch {started}; sleep 600; }}; echo pushed"
    more = 'external = ["Bash(touch *)"]\non_unknown = "ask"'
    more += SANDBOX_OFF
    script = [bash(push), {"text": "Done."}]
    job = write_job(folder, make_source(folder), "git", script, more)
    first = start("run", job)
    wait_for(started)
    first.kill()
    first.wait()
    (found,) = list_jobs(database)
    assert resume(start, found["id"]) == exit_codes.WAITING
    (group,) = command("approvals", "--json").json
    assert [call["asked_again"] for call in group["calls"]] == [True]
    result = command(answer, group["id"], "--reason", "I looked, it is there.")
    assert result.code == 0
    assert resume(start, found["id"]) == exit_codes.SUCCEEDED
    (run,) = list_runs(database, found["id"])
    assert run["state"] == "succeeded"
    file = worktree(database, run["id"]) / "seen"
    assert (file.read_text() if file.exists() else None) == seen
    assert told in command("transcript", run["id"]).out


@pytest.mark.slow
def test_a_run_is_shown_as_interrupted_as_soon_as_its_worker_was_killed(
    folder: Path, start: Start, command: Command
) -> None:
    started = folder / "workspaces-started"
    script = [bash(f"touch {started}; sleep 600")]
    worker = start("run", write_job(folder, make_source(folder), "git", script, SANDBOX_OFF))
    wait_for(started)
    assert [job["shown_state"] for job in command("list", "--json").json] == ["running"]
    worker.kill()
    worker.wait()
    lost = "interrupted (no worker alive)"
    assert [job["shown_state"] for job in command("list", "--json").json] == [lost]
    assert [run["shown_state"] for run in command("list", "last", "--json").json] == [lost]
    assert command("workers", "--json").json == []
    assert [each["state"] for each in command("workers", "--all", "--json").json] == ["dead"]

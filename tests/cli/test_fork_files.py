"""``fork``, worked to the end: the files of a run go with its conversation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from runner.queries.jobs import list_jobs, list_runs
from runner.queries.transcript import show_run
from runner.store.database import Database
from tests.cli.conftest import Result
from tests.cli.own_folders import make_source, worktree, write_job
from tests.cli.test_work import bash
from tests.runner_process import RunnerProcess
from tests.workspace.places import git

Start = Callable[..., RunnerProcess]
Command = Callable[..., Result]

PATIENCE = 120.0


@pytest.fixture
def source(folder: Path) -> Path:
    return make_source(folder)


def work(start: Start, *arguments: str) -> None:
    process = start("run", *arguments)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, (out, err)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["git", "copy"])
def test_fork_goes_on_with_the_files_of_its_turn_in_a_folder_of_its_own(
    folder: Path, source: Path, start: Start, command: Command, database: Database, mode: str
) -> None:
    count = "cat count >> seen; echo $(($(cat count) + 1)) > count"
    script = [bash(count), bash(count), {"text": "Done."}]
    work(start, write_job(folder, source, mode, script))
    (job,) = list_jobs(database)
    (original,) = list_runs(database, job["id"])
    fork_id = command("fork", f"{original['id']}@1", "--json").json["id"]
    work(start, "--resume", job["id"])
    run = show_run(database, fork_id)
    assert (run["state"], run["turns"]) == ("succeeded", 3), run["detail"]
    first, second = worktree(database, original["id"]), worktree(database, fork_id)
    assert first != second
    for place in (first, second):
        assert (place / "seen").read_text() == "0\n1\n"
        assert (place / "count").read_text() == "2\n"
    assert (source / "count").read_text() == "0\n"
    assert not (source / "seen").exists()


@pytest.mark.slow
def test_fork_says_where_it_works_and_leaves_the_other_s_folder_alone(
    folder: Path, source: Path, start: Start, command: Command, database: Database
) -> None:
    script = [bash("pwd"), bash("echo more > more"), {"text": "Done."}, {"text": "Done."}]
    work(start, write_job(folder, source, "git", script))
    (job,) = list_jobs(database)
    (original,) = list_runs(database, job["id"])
    before = git(worktree(database, original["id"]), "log", "--format=%H %s")
    fork_id = command("fork", f"{original['id']}@3", "--say", "Look again.", "--json").json["id"]
    work(start, "--resume", job["id"])
    said = command("transcript", fork_id).out
    assert fork_id.removeprefix("run_") in said
    assert "Look again." in said
    assert (worktree(database, fork_id) / "more").read_text() == "more\n"
    assert git(worktree(database, original["id"]), "log", "--format=%H %s") == before
    branches = git(source, "branch", "--list", "runner/*", "--format=%(refname:short)").split()
    assert len(branches) == 2

"""``workspace list`` and ``prune``: what is left on a host, and what may go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from runner.core.commands import Target
from runner.store.control import cancel
from runner.store.database import Database
from tests.cli.conftest import Result
from tests.cli.out.recorded import AtWork, begin, git, git_spec, put, submit
from tests.cli.test_terminal import HOSTILE, steers
from tests.store.attempts import run_row
from tests.store.examples import NOW


@pytest.fixture
def works(database: Database, home: Path, repository: Path) -> list[AtWork]:
    """One run that was delivered, one that was cancelled with work in hand, one that goes on."""
    _, found = submit(database, git_spec(repository), "done", "cancelled", "going")
    done, cancelled, going = works = [begin(database, home, run_id) for run_id in found]
    for work in works:
        work.write({"a.txt": b"changed\n"})
    done.end()
    put(cancelled.worktree.path, {"a.txt": b"not recorded\n"})
    cancel(database, Target("run", cancelled.id), NOW)
    assert going.path.is_dir()
    return works


@pytest.mark.slow
def test_they_are_listed_with_what_is_saved_nowhere_else(
    command: Callable[..., Result], works: list[AtWork]
) -> None:
    listed = command("workspace", "list", "--json")
    assert listed.code == 0
    assert [(each["item_key"], each["state"], each["here"]) for each in listed.json] == [
        ("done", "succeeded", True),
        ("cancelled", "cancelled", True),
        ("going", "running", True),
    ]
    assert listed.json[0]["branch"] == "runner/mend/done"
    assert listed.json[0]["path"] == str(works[0].path)
    assert listed.json[0]["bytes"] > 0
    assert [bool(each["unsaved"]) for each in listed.json] == [False, True, True]
    shown = command("workspace", "list").out.splitlines()
    assert len(shown) == 4
    assert "runner/mend/done" in shown[1]
    assert " B" in shown[1]


@pytest.mark.slow
def test_only_what_is_saved_and_done_with_is_removed(
    command: Callable[..., Result], works: list[AtWork], repository: Path
) -> None:
    done = works[0]
    told = command("workspace", "prune")
    assert told.code == 0
    assert "1 of 3 workspaces removed" in told.err
    assert [work.path.is_dir() for work in works] == [False, True, True]
    assert git(repository, "rev-parse", done.branch)
    assert str(done.path) not in git(repository, "worktree", "list")
    assert "+changed" in command("diff", done.id).out
    forced = command("workspace", "prune", "--force", "--json").json
    assert [(each["item_key"], each["removed"]) for each in forced] == [
        ("cancelled", True),
        ("going", False),
    ]
    assert "has not ended" in forced[1]["why_kept"]
    assert [work.path.is_dir() for work in works] == [False, False, True]


@pytest.mark.slow
def test_another_job_s_are_left_alone(
    command: Callable[..., Result], database: Database, works: list[AtWork], repository: Path
) -> None:
    other, _ = submit(database, git_spec(repository, name="other"), "x")
    assert command("workspace", "list", "--job", other, "--json").json == []
    command("workspace", "prune", "--force", "--job", other)
    assert all(work.path.is_dir() for work in works)
    own = run_row(database, works[0].id).job_id
    assert len(command("workspace", "list", "--job", own, "--json").json) == 3


@pytest.mark.slow
def test_hostile_names_steer_no_terminal(
    command: Callable[..., Result], database: Database, home: Path, repository: Path
) -> None:
    key = HOSTILE.replace("\x00", "").replace("\ud800", "")
    _, (run_id,) = submit(database, git_spec(repository), key)
    begin(database, home, run_id)
    (home / "workspaces/\x1b[2Jstranger").mkdir()
    for arguments in (("list",), ("prune",)):
        told = command("workspace", *arguments)
        assert told.code == 0
        assert len(told.out.splitlines()) == 3
        assert not any(map(steers, (told.out + told.err).replace("\n", "")))


def test_nothing_is_listed_where_nothing_is(
    command: Callable[..., Result], database: Database
) -> None:
    assert command("workspace", "list", "--json").json == []
    assert "0 of 0 workspaces removed" in command("workspace", "prune").err

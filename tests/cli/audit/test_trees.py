"""``runner audit files`` knows from recorded trees what a command did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.conversation import Tool
from runner.store.database import Database
from runner.workspace.diffs import RecordedChanges, Whereabouts
from runner.workspace.snapshot_store import make_store
from tests.cli.conftest import Result
from tests.cli.out.recorded import begin, git, git_spec, put, submit

BASH = Tool("Bash", "Runs a command.", {"type": "object"})
Command = Callable[..., Result]


def work(database: Database, home: Path, repository: Path) -> str:
    """A run of two turns: a command that changes files, and a Write; its id."""
    spec = git_spec(repository)
    _, (run_id,) = submit(database, replace(spec, tools=(*spec.tools, BASH)), "a.txt")
    at_work = begin(database, home, run_id)

    def change() -> None:
        put(at_work.worktree.path, {"a.txt": None, "new/b é\n.txt": b"b", "c.txt": b"c"})

    at_work.call("Bash", change, command="sh build.sh > c.txt")
    at_work.call("Bash", lambda: None, command="true")
    at_work.write({"c.txt": b"cc"})
    at_work.end()
    return run_id


@pytest.mark.slow
def test_trees_tell_what_a_command_did(
    command: Command, database: Database, home: Path, repository: Path
) -> None:
    run_id = work(database, home, repository)
    rows = command("audit", "files", "--json").json
    assert sorted(
        (r["turn"], r["tool"], r["action"], r["known_from"], r["path"]) for r in rows
    ) == [
        (1, "Bash", "created", "trees", "c.txt"),
        (1, "Bash", "created", "trees", "new/b é\n.txt"),
        (1, "Bash", "deleted", "trees", "a.txt"),
        (1, "Bash", "read", "command", "build.sh"),
        (3, "Write", "changed", "input", "c.txt"),
    ]
    assert {row["run_id"] for row in rows} == {run_id}
    (row,) = command("audit", "files", "a.txt", "--json").json
    assert (row["action"], row["turn"]) == ("deleted", 1)


@pytest.mark.slow
def test_command_tells_what_it_wrote_where_the_trees_are_gone(
    command: Command, database: Database, home: Path, repository: Path, tmp_path: Path
) -> None:
    work(database, home, repository)
    (home / "snapshots").rename(tmp_path / "away")
    rows = command("audit", "files", "--json").json
    assert sorted((row["turn"], row["action"], row["path"]) for row in rows) == [
        (1, "read", "build.sh"),
        (1, "written", "c.txt"),
        (3, "changed", "c.txt"),
    ]


def test_trees_that_are_partly_gone_are_passed_over(home: Path, repository: Path) -> None:
    make_store(home, str(repository), repository / ".git")
    first = git(repository, "rev-parse", "HEAD^{tree}")
    put(repository, {"a.txt": b"other", "b": b""})
    git(repository, "add", "-A")
    second = git(repository, "write-tree")
    gone = "0123456789" * 4
    pairs = [(first, gone), (first, second), (second, second), (second, first)]
    where = Whereabouts(("run_1",), str(repository), None, None, None)
    known = RecordedChanges(home, {}).touched(where, pairs)
    assert known == {
        (first, second): [("changed", "a.txt"), ("created", "b")],
        (second, second): [],
        (second, first): [("changed", "a.txt"), ("deleted", "b")],
    }

"""Who read or changed what: by the inputs of tools, by commands, by recorded trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from sqlalchemy import insert, update

from runner.core.conversation import Block, ToolOutcome
from runner.errors import UsageError
from runner.queries import accesses as files_module
from runner.queries import tool_calls as calls
from runner.queries.accesses import Action, SnapshotPair, file_rows
from runner.queries.filters import Filters
from runner.store.database import Database
from runner.store.tables import hook_runs, tool_calls
from tests.store.attempts import claim, tool_use
from tests.store.audit.played import bash, finish, questions, reply_to, submit, turn
from tests.store.examples import NOW

ALL = Filters()


def found(database: Database, pattern: str | None = None, **options: Any) -> list[tuple[str, str]]:
    return [(row["action"], row["path"]) for row in file_rows(database, ALL, pattern, **options)]


def call(
    database: Database, *uses: Block, result: tuple[str, ToolOutcome] = ("ok", "succeeded")
) -> str:
    """A run with one turn of these calls; its id."""
    (run_id,) = submit(database, "a").runs
    turn(claim(database, run_id), *uses, results=[result] * len(uses))
    return run_id


def recorded(database: Database, run_id: str, before: str, after: str, position: int = 0) -> None:
    """A call of a run was recorded with these trees."""

    def work(connection: Any) -> None:
        change = update(tool_calls).where(
            tool_calls.c.run_id == run_id, tool_calls.c.position == position
        )
        connection.execute(change.values(tree_before=before, tree_after=after))

    database.write(work)


@pytest.mark.parametrize(
    ("use", "result", "touched"),
    [
        (tool_use(1, "Read", file_path="src/a.py"), "1\tx", ("read", "src/a.py")),
        (tool_use(1, "Edit", file_path="/w/a.py"), "Edited a.py", ("changed", "/w/a.py")),
        (tool_use(1, "Write", file_path="a"), "Made a (1 bytes).", ("created", "a")),
        (tool_use(1, "Write", file_path="a"), "Replaced a (1 bytes).", ("changed", "a")),
        (tool_use(1, "Grep", pattern="x", path="src"), "", ("searched", "src")),
        (tool_use(1, "Grep", pattern="x"), "", ("searched", ".")),
    ],
)
def test_file_tools_tell_by_their_input(
    database: Database, use: Block, result: str, touched: tuple[str, str]
) -> None:
    call(database, use, result=(result or "none", "succeeded"))
    (row,) = file_rows(database, ALL)
    assert ((row["action"], row["path"]), row["known_from"]) == (touched, "input")
    assert (row["turn"], row["item"], row["at"]) == (1, "a", NOW)


@pytest.mark.parametrize("outcome", ["failed", "invalid_input", "denied"])
def test_call_that_did_nothing_touched_nothing(database: Database, outcome: ToolOutcome) -> None:
    call(database, tool_use(1, "Edit", file_path="a.py"), result=("no", outcome))
    assert found(database) == []


def test_call_whose_outcome_nobody_knows_may_have_changed_its_file(database: Database) -> None:
    call(database, tool_use(1, "Edit", file_path="a.py"), result=("?", "unknown"))
    assert found(database) == [("changed", "a.py")]


@pytest.mark.parametrize("arguments", [{}, {"file_path": 3}, {"file_path": ""}, {"path": "x"}])
def test_input_that_names_no_file_is_passed_over(
    database: Database, arguments: dict[str, Any]
) -> None:
    call(database, tool_use(1, "Read", **arguments))
    assert found(database) == []


def test_commands_tell_what_they_write_and_read(database: Database) -> None:
    call(database, *bash("ls -l > out.txt < in.txt", "ls -l"))
    assert sorted(found(database)) == [("read", "in.txt"), ("written", "out.txt")]
    assert {row["known_from"] for row in file_rows(database, ALL)} == {"command"}


def test_command_that_was_not_run_wrote_nothing(database: Database) -> None:
    call(database, *bash("rm x > out.txt", "make > all.txt"))
    assert found(database) == []


@pytest.mark.slow
def test_what_a_person_had_it_run_instead_counts(database: Database) -> None:
    (run_id,) = submit(database, "a").runs
    turn(claim(database, run_id), *bash("make > bad.txt"))
    reply_to(database, questions(database, run_id)[0], edited={"command": "make > good.txt"})
    turn_on(database, run_id)
    assert found(database) == [("written", "good.txt")]
    assert found(database, "good.txt") == [("written", "good.txt")]
    assert found(database, "bad.txt") == []


def turn_on(database: Database, run_id: str) -> None:
    """The run goes on, and what was answered runs."""
    finish(claim(database, run_id, NOW + 70))


@pytest.fixture(params=["index", "no index"])
def index(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls to look at are found by the index, or the index cannot tell."""
    if request.param == "no index":
        monkeypatch.setattr(calls, "MOST_CANDIDATES", -1)


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("a.py", ["src/a.py"]),
        ("src/a.py", ["src/a.py"]),
        ("src/*", ["src/a.py", "/w/src/b.py"]),
        ("*.py", ["src/a.py", "/w/src/b.py"]),
        ("/w/src/b.py", ["/w/src/b.py"]),
        ("b.p", []),
        ("rc/a.py", []),
    ],
)
def test_pattern_finds_paths(database: Database, pattern: str, paths: list[str]) -> None:
    uses = [
        tool_use(number, "Read", file_path=path)
        for number, path in enumerate(["src/a.py", "/w/src/b.py", "other.txt"])
    ]
    call(database, *uses)
    assert sorted(path for _, path in found(database, pattern)) == sorted(paths)


@pytest.mark.parametrize("pattern", ["", " ", "*", "/", "**"])
def test_pattern_that_names_no_path_is_refused(database: Database, pattern: str) -> None:
    with pytest.raises(UsageError, match="names no path"):
        file_rows(database, ALL, pattern)


def changes(*told: tuple[Action, str]) -> Any:
    def differences(
        pairs: Sequence[SnapshotPair],
    ) -> Mapping[SnapshotPair, Sequence[tuple[Action, str]]]:
        return {pair: told for pair in pairs if pair.before == "t1"}

    return differences


def test_trees_tell_what_a_command_did(database: Database) -> None:
    run_id = call(database, *bash("ls > out.txt"))
    recorded(database, run_id, "t1", "t2")
    told = changes(("created", "out.txt"), ("deleted", "old.txt"))
    rows = list(file_rows(database, ALL, differences=told))
    assert sorted((row["action"], row["path"], row["known_from"]) for row in rows) == [
        ("created", "out.txt", "trees"),
        ("deleted", "old.txt", "trees"),
    ]
    assert found(database, "old.txt", differences=told) == [("deleted", "old.txt")]


def test_command_tells_where_the_trees_are_elsewhere(database: Database) -> None:
    run_id = call(database, *bash("ls > out.txt"))
    recorded(database, run_id, "t8", "t9")
    assert found(database, differences=changes(("created", "x"))) == [("written", "out.txt")]


def test_trees_that_are_the_same_are_not_compared(database: Database) -> None:
    run_id = call(database, *bash("ls"))
    recorded(database, run_id, "t1", "t1")
    assert found(database, differences=changes(("created", "x"))) == []


def hooked(database: Database, run_id: str, event: str, position: int | None, at: float) -> None:
    """A hook of a run's first turn was recorded as changing files."""
    row = {
        "run_id": run_id,
        "number": at - NOW,
        "hook": 0,
        "event": event,
        "name": "fmt",
        "turn": 1,
    }
    row |= {"message": None if position is None else 1, "position": position, "attempt": 1}
    row |= {"started_at": at, "tree_before": "t1", "tree_after": "t2"}
    database.write(lambda connection: connection.execute(insert(hook_runs).values(row)))


def test_trees_tell_what_hooks_did(database: Database) -> None:
    run_id = call(database, *bash("ls > out.txt"))
    hooked(database, run_id, "PostToolUse", 0, NOW + 1)
    hooked(database, run_id, "TurnEnd", None, NOW + 2)
    told = changes(("changed", "out.txt"))
    rows = list(file_rows(database, ALL, differences=told))
    at_turn_end, after_call, by_command = rows
    assert (at_turn_end["tool"], at_turn_end["call_id"], at_turn_end["turn"]) == (
        "TurnEnd",
        None,
        1,
    )
    assert (after_call["tool"], after_call["known_from"]) == ("PostToolUse", "trees")
    assert after_call["call_id"] == by_command["call_id"] is not None
    # What a hook did after the command says nothing of what that wrote.
    assert (by_command["tool"], by_command["action"]) == ("Bash", "written")
    assert found(database, "other.txt", differences=told) == []
    assert file_rows(database, Filters(limit=1), differences=told).note.startswith(
        "only the newest 1"
    )


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        (Filters(tool="TurnEnd"), 1),
        (Filters(tool="Bash"), 0),
        (Filters(since=NOW + 2), 1),
        (Filters(until=NOW + 2), 1),
        (Filters(model="claude-test"), 2),
        (Filters(model="claude-other"), 0),
        (Filters(item="b"), 0),
    ],
)
def test_filters_hold_for_what_hooks_did(database: Database, filters: Filters, count: int) -> None:
    run_id = call(database, *bash("ls"))
    hooked(database, run_id, "PostToolUse", 0, NOW + 1)
    hooked(database, run_id, "TurnEnd", None, NOW + 2)
    rows = file_rows(database, filters, differences=changes(("changed", "a")))
    assert len(list(rows)) == count


@pytest.mark.slow
def test_pattern_says_how_many_trees_were_compared(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "MOST_COMPARED", 2)
    run_id = call(database, *bash("ls", "ls -l", "ls -a"))
    for position in range(3):
        recorded(database, run_id, "t1", f"t{position + 2}", position)
    told = changes(("changed", "a"))
    rows = file_rows(database, Filters(limit=1), "a", differences=told)
    assert "newest 2 calls were compared" in rows.note
    assert file_rows(database, ALL, "a", differences=told).note == ""

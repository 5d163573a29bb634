"""Commands are found by patterns as in rules and by words, the newest first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import Connection

from runner.core.search import Term, words_of
from runner.errors import UsageError
from runner.permissions import Request, Rule
from runner.permissions.decisions import Policy, evaluate
from runner.queries import tool_calls as calls
from runner.queries.filters import Filters
from runner.queries.tool_calls import command_pattern, command_rows, path_pattern
from runner.store.database import Database
from tests.store.attempts import claim, tool_use
from tests.store.audit.played import PLAYED, bash, finish, play, questions, reply_to, submit, turn
from tests.store.examples import NOW

ALL = Filters()


def found(database: Database, pattern: str | None = None, **options: Any) -> list[str]:
    return [row["command"] for row in command_rows(database, Filters(**options), pattern)]


@pytest.mark.slow
def test_newest_commands_come_first(database: Database) -> None:
    play(database)
    assert found(database) == [
        "make test",
        "git push",
        "make all",
        "rm -rf build",
        "cd app && git push origin",
        "ls -l",
    ]


@pytest.fixture(scope="module")
def played(shared_database: Database) -> Database:
    """The runs of ``play``, to be read only."""
    play(shared_database)
    return shared_database


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("pattern", "commands_found"),
    [
        ("git push *", ["git push", "cd app && git push origin"]),
        ("git push:*", ["git push", "cd app && git push origin"]),
        ("* push", ["git push"]),
        ("push", ["git push", "cd app && git push origin"]),
        ("push app", ["cd app && git push origin"]),
        ("rm -rf", ["rm -rf build"]),
        ("Push ORIGIN", ["cd app && git push origin"]),
        ("pus", []),
        ("git pus* origin", ["cd app && git push origin"]),
        ("*h origin", ["cd app && git push origin"]),
        (
            "*",
            [
                "make test",
                "git push",
                "make all",
                "rm -rf build",
                "cd app && git push origin",
                "ls -l",
            ],
        ),
        ("git fetch *", []),
    ],
)
def test_pattern_finds_commands(played: Database, pattern: str, commands_found: list[str]) -> None:
    assert found(played, pattern) == commands_found


@pytest.mark.parametrize("pattern", ["", "  ", "&&", "* *", " git *", "a:*b*"])
def test_pattern_that_can_find_nothing_is_refused(database: Database, pattern: str) -> None:
    with pytest.raises(UsageError) as refused:
        command_rows(database, ALL, pattern)
    assert "\n" not in str(refused.value)


def test_what_is_spelled_to_hide_is_found_by_unanalyzable(database: Database) -> None:
    attempt = claim(database, submit(database, "a").runs[0])
    turn(attempt, *bash("$cmd now", "ls -l", "mv a b", "eval $x"))
    assert found(database, ":unanalyzable") == ["eval $x", "$cmd now"]


def test_pattern_without_a_word_is_tried_on_the_newest_commands_alone(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "MOST_TAKEN_APART", 2)
    attempt = claim(database, submit(database, "a").runs[0])
    turn(attempt, *bash("$cmd old", "ls 1", "ls 2"))
    rows = command_rows(database, Filters(limit=5), ":unanalyzable")
    assert list(rows) == []
    assert rows.note.startswith("only the newest 2 commands were looked at")
    assert found(database, ":unanalyzable") == ["$cmd old"]
    assert command_rows(database, Filters(limit=5), "ls *").note == ""


@pytest.fixture(params=["index", "no index"])
def index(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls to look at are found by the index, or the index cannot tell."""
    if request.param == "no index":
        monkeypatch.setattr(calls, "MOST_CANDIDATES", -1)


@pytest.mark.slow
@pytest.mark.usefixtures("index")
def test_all_calls_are_searched_however_old(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "BATCH", 2)
    monkeypatch.setattr(calls, "MORE", 2)
    attempt = claim(database, submit(database, "a").runs[0])
    turn(attempt, *bash("ls needle", "ls 0"), at=NOW + 1)
    for number in range(8):
        turn(attempt, *bash(f"ls {number}", f"git log {number}"), at=NOW + 2 + number)
    turn(attempt, *bash("ls 8", "ls needle too"), at=NOW + 20)
    assert found(database, "needle", limit=2) == ["ls needle too", "ls needle"]
    assert found(database, "ls needle *", limit=2) == ["ls needle too", "ls needle"]
    assert found(database, "git *", limit=3) == ["git log 7", "git log 6", "git log 5"]
    assert len(found(database)) == 20
    assert len(set(found(database, "ls"))) == 11


@pytest.mark.slow
@pytest.mark.parametrize("newest_runs", [1, 2, 3])
def test_newest_commands_are_given_whichever_runs_they_are_of(
    database: Database, monkeypatch: pytest.MonkeyPatch, newest_runs: int
) -> None:
    monkeypatch.setattr(calls, "BATCH", 1)
    monkeypatch.setattr(calls, "NEWEST_RUNS", newest_runs)
    for place, run_id in enumerate(submit(database, "a", "b", "c").runs):
        attempt = claim(database, run_id)
        for number in range(3):
            turn(attempt, *bash(f"ls {run_id}.{number}"), at=NOW + (7 * place + 5 * number) % 11)
    everything = found(database)
    assert len(everything) == 9
    for limit in range(1, 10):
        assert found(database, limit=limit) == everything[:limit]


@pytest.mark.slow
def test_no_call_is_left_out_where_the_database_knows_how_many_rows_it_has(
    database: Database,
) -> None:
    """SQLite 3.40 passes over rows where an OR of IN lists goes from later keys to earlier ones, with
    statistics and more than 50 values in a list."""
    spec = replace(PLAYED, limits=replace(PLAYED.limits, max_turns=100))
    old, new, *others = submit(database, *"abcdefgh", spec=spec).runs
    for run_id in others:
        turn(claim(database, run_id), *bash("ls other"), at=NOW - 1)
    attempt = claim(database, old)
    for number in range(70):
        turn(attempt, *bash(f"ls {number}"), at=NOW + number)
    attempt = claim(database, new)
    for number in range(4):
        turn(attempt, *bash(f"ls new {number}"), at=NOW + 100 + number)

    def analyse(connection: Connection) -> None:
        connection.exec_driver_sql("ANALYZE")

    database.write(analyse)
    assert len(found(database)) == 80
    assert len(found(database, "ls")) == 80
    assert len(found(database, "ls", limit=80)) == 80


@pytest.mark.slow
def test_more_than_the_limit_is_told(database: Database) -> None:
    play(database)
    rows = command_rows(database, Filters(limit=2))
    assert len(list(rows)) == 2
    assert rows.note == "only the newest 2: there are more (--limit 0 gives all)"
    assert command_rows(database, Filters(limit=6)).note == ""


def test_what_a_person_had_it_run_instead_is_told_and_found(database: Database) -> None:
    (run_id,) = submit(database, "a").runs
    turn(claim(database, run_id), *bash("make all"))
    reply_to(database, questions(database, run_id)[0], edited={"command": "make safe"})
    for pattern in ("make safe", "make *", "all"):
        (row,) = command_rows(database, ALL, pattern)
        assert (row["command"], row["ran"], row["answered_by"]) == ("make all", "make safe", "lena")
    assert found(database, "unsafe") == []


@pytest.mark.slow
@pytest.mark.usefixtures("index")
def test_what_it_ran_instead_is_found_however_old(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "BATCH", 1)
    monkeypatch.setattr(calls, "MORE", 1)
    old, new = submit(database, "a", "b").runs
    turn(claim(database, old), *bash("make all"))
    reply_to(database, questions(database, old)[0], edited={"command": "make safe"})
    attempt = claim(database, new)
    for number in range(4):
        turn(attempt, *bash(f"ls {number}"), at=NOW + 100 + number)
    assert found(database, "safe", limit=1) == ["make all"]
    assert found(database, "make safe *", limit=1) == ["make all"]


def test_each_call_has_its_own_command(database: Database) -> None:
    attempt = claim(database, submit(database, "a").runs[0])
    uses = [
        tool_use(7, "Bash", command="ls 1"),
        tool_use(7, "Read", file_path="x"),
        tool_use(7, "Bash", command="ls 2"),
    ]
    turn(attempt, *uses)
    rows = {
        row["call_id"].rpartition("_")[2]: row["command"] for row in command_rows(database, ALL)
    }
    assert rows == {"1": "ls 1", "3": "ls 2"}


@pytest.mark.parametrize("arguments", [{}, {"command": 7}, {"command": None}, {"cmd": "x"}])
def test_call_without_a_command_is_listed_without_one(
    database: Database, arguments: dict[str, Any]
) -> None:
    attempt = claim(database, submit(database, "a").runs[0])
    turn(attempt, tool_use(1, "Bash", **arguments))
    assert found(database) == [None]
    assert found(database, "x") == []


WORDS = st.sampled_from(["git", "push", "-f", "origin", "rm", "&&", ";", "'a b'", "$x", "x=1", "é"])
COMMANDS = st.lists(WORDS, min_size=1, max_size=7).map(" ".join)


@pytest.mark.slow
@given(COMMANDS, st.sampled_from(["git *", "git push *", "* origin", "rm -f *", "git * origin"]))
def test_pattern_finds_what_a_rule_would_catch(command: str, pattern: str) -> None:
    policy = Policy((Rule("deny", f"Bash({pattern})"),), "ask")
    decision = evaluate(policy, Request("Bash", {"command": command}))
    assert command_pattern(pattern).matches(command) == (decision.effect == "deny")


def has(text: str, term: Term) -> bool:
    """Whether a text has a term, as the index of searches sees both."""
    words, wanted = words_of(text), term.words
    for at in range(len(words) - len(wanted) + 1):
        *before, last = words[at : at + len(wanted)]
        fits = last.startswith(wanted[-1]) if term.is_prefix else last == wanted[-1]
        if fits and tuple(before) == wanted[:-1]:
            return True
    return False


PIECES = st.lists(
    st.sampled_from(["git", "push", "*", " ", "-", "Push", "straße", "7"]), max_size=6
)


@pytest.mark.slow
@given(COMMANDS, COMMANDS | PIECES.map("".join))
def test_index_knows_every_command_that_is_found(command: str, text: str) -> None:
    try:
        pattern = command_pattern(text)
    except UsageError:
        return
    if pattern.matches(command):
        assert all(has(command, term) for term in pattern.terms)
        assert all(needle.lower() in command.lower() for needle in pattern.needles)


@pytest.mark.slow
@given(
    st.text("abc1é/*._", min_size=1).filter(lambda text: text.strip("*/ ")),
    st.text("abc1é/._", min_size=1),
)
@example("/_", "_")
@example("/a", "./a")
def test_index_knows_every_path_that_is_found(text: str, path: str) -> None:
    pattern = path_pattern(text)
    if pattern.matches(path):
        assert all(has(path, term) for term in pattern.terms)
        assert all(needle in path for needle in pattern.needles)


@pytest.mark.slow
def test_index_says_which_calls_to_look_at(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(database)
    told = {text: found(database, text) for text in ("push", "git push *", "make *", "nothing")}

    def never(*_: object) -> None:
        raise AssertionError("all calls are looked at")

    monkeypatch.setattr(calls, "unindexed_lots", never)
    assert {text: found(database, text) for text in told} == told
    assert [len(each) for each in told.values()] == [2, 2, 2, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"),
    [("MOST_CANDIDATES", 0), ("MOST_UNINDEXED", -1)],
    ids=["too many", "far behind"],
)
def test_calls_are_looked_at_where_the_index_cannot_tell(
    database: Database, monkeypatch: pytest.MonkeyPatch, name: str, value: int
) -> None:
    monkeypatch.setattr(calls, name, value)
    play(database)
    terms = command_pattern("push").terms
    assert calls.candidates(database, ALL, terms) is None
    assert found(database, "push") == ["git push", "cd app && git push origin"]


@pytest.mark.slow
def test_index_is_asked_about_the_job_and_the_run_of_the_filters(database: Database) -> None:
    job = play(database)
    other = submit(database, "c")
    turn(claim(database, other.runs[0]), *bash("git push"))
    terms = command_pattern("push").terms

    def runs(**only: str) -> set[str]:
        known = calls.candidates(database, Filters(**only), terms)
        assert known is not None
        return {run_id for run_id, _ in known}

    assert runs() == {*job.runs, *other.runs}
    assert runs(job_id=other.id) == set(other.runs)
    assert runs(run_id=job.runs[0]) == {job.runs[0]}


def test_call_that_began_long_after_it_was_asked_for_is_found_by_its_time(
    database: Database,
) -> None:
    (run_id,) = submit(database, "a").runs
    turn(claim(database, run_id), *bash("make all"))
    reply_to(database, questions(database, run_id)[0], NOW + 900_000)
    finish(claim(database, run_id, NOW + 900_000))
    late = Filters(since=NOW + 800_000)
    assert [row["command"] for row in command_rows(database, late, "all")] == ["make all"]

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import update

from runner.store.database import Database
from runner.store.tables import tool_outputs
from tests.cli.conftest import Result
from tests.queries.search.record import record
from tests.store.attempts import submit_one

Command = Callable[..., Result]


@pytest.fixture
def told(database: Database) -> str:
    """The id of a run in which much was said."""
    run = record(database, "app.py")
    run.say("Look at the walnut tree.", "user").say("Walnuts, I think.", kind="thinking")
    run.call("Bash", {"command": "grep -rn walnut src/"}, "src/tree.py:3: walnut = 'brown'")
    return run.store().run_id


def test_a_hit_tells_its_place_and_shows_its_text(command: Command, told: str) -> None:
    result = command("search", "walnut", "src/")
    assert result.code == 0
    place, text, second, _ = result.out.splitlines()
    short = told[-8:]
    assert place.startswith(
        f"{short}  app.py  turn 3, block 3.0  assistant input  Bash  {short}_3_1  "
    )
    assert text == "    grep -rn walnut src/"
    assert f"user output  Bash  {short}_4_1  " in second
    assert result.err == "1 to 2 of 2 matches\n"


def test_nothing_found_is_said_and_no_failure(command: Command, told: str) -> None:
    result = command("search", "almond")
    assert (result.code, result.out, result.err) == (0, "", "no match for almond\n")


@pytest.mark.slow
def test_options_narrow_it(command: Command, told: str) -> None:
    def texts(*options: str) -> list[str]:
        return [hit["excerpt"] for hit in command("search", *options, "--json").json]

    assert texts("walnut*", "--in", "thinking,system") == ["Walnuts, I think."]
    assert texts("walnut", "--role", "user", "--tool", "Bash") == [
        "src/tree.py:3: walnut = 'brown'"
    ]
    assert texts("--exact", "nut = 'bro") == ["src/tree.py:3: walnut = 'brown'"]
    assert texts("walnut", "--without", "tree", "--run", told[-8:]) == ["grep -rn walnut src/"]
    assert texts("walnut", "--limit", "1", "--offset", "2") != []
    assert texts("walnut", "--since", "2030-01-01") == []


def test_every_format_gives_the_same_hits(command: Command, told: str) -> None:
    rows = command("search", "walnut", "--format", "json").json
    lines = command("search", "walnut", "--format", "jsonl").out.splitlines()
    assert [json.loads(line) for line in lines] == rows
    assert len(command("search", "walnut", "--format", "csv").out.splitlines()) == 1 + len(rows)
    (start, end) = rows[0]["marks"][0]
    assert rows[0]["excerpt"][start:end] == "walnut"


def test_a_command_is_searched_as_it_is_written(command: Command, told: str) -> None:
    assert command("search", "grep -rn walnut").err == "1 to 1 of 1 matches\n"
    assert command("search", "grep", "-rn", "walnut").err == "1 to 1 of 1 matches\n"
    assert command("search", "walnut -rn").err == 'no match for "walnut rn"\n'


def test_words_are_excluded_by_name_and_an_empty_answer_says_so(
    command: Command, told: str
) -> None:
    assert command("search", "walnut", "NOT", "tree").err == "1 to 1 of 1 matches\n"
    excluded = command("search", "brown", "--without", "wal*", "--without", "two words")
    assert excluded.err == 'no match for brown, without wal* or "two words"\n'


def test_an_option_that_there_is_not_is_refused(command: Command, told: str) -> None:
    result = command("search", "walnut", "--rolle", "user")
    assert result.code == 2
    assert "--rolle" in result.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["NOT", "tree"], "only words to exclude"),
        (['"open'], "a phrase has no closing quote"),
        ([], "the search has no words"),
        (["--exact", "=>"], "give more of the text"),
        (["walnut", "--in", "dreams"], "'dreams' is not one of text, thinking"),
        (["walnut", "--offset", "99999999999999999999"], "is not in the range 0<=x<=2147483647"),
        (["walnut", "--limit", "9999999999999999999999"], "is not in the range 0<=x<=2147483647"),
    ],
)
def test_a_bad_search_is_refused_in_one_line(
    command: Command, told: str, arguments: list[str], why: str
) -> None:
    result = command("search", *arguments)
    assert (result.code, result.out) == (2, "")
    assert why in result.err
    assert result.err.count("\n") == 1


@pytest.mark.slow
def test_nothing_that_is_printed_steers_a_terminal(command: Command, database: Database) -> None:
    hostile = "walnut \x1b]0;title\x07\x1b[2J\u202e\r\u2028 after"
    record(database, "it\x1b[1mem").call("Ba\x1bsh", {"x": hostile}, hostile).store()
    for options in ([], ["--format", "csv"], ["--json"], ["--exact", "title\x07"]):
        result = command("search", "walnut", *options)
        assert not any(code in result.err for code in "\x1b\x07\u202e")
        if "--format" not in options:  # of CSV a program gets the very text
            assert not any(code in result.out for code in "\x1b\x07\u202e\r\u2028")
    assert "␛]0;title" in command("search", "walnut").out


@pytest.mark.slow
def test_the_index_can_be_made_anew(command: Command, told: str, home: Path) -> None:
    assert command("search", "walnut").code == 0
    result = command("db", "reindex")
    assert (result.code, result.out) == (0, "6 texts indexed\n")
    assert command("db", "reindex", "--json").json == {"texts": 6}
    assert command("search", "walnut").err == "1 to 3 of 3 matches\n"
    assert (home / "runner.search.db").exists()


def test_a_damaged_index_is_made_anew_and_that_is_said_in_one_line(
    command: Command, told: str, home: Path
) -> None:
    command("search", "walnut")
    (home / "runner.search.db").write_bytes(b"nothing of the kind" * 500)
    (home / "runner.search.db-wal").unlink(missing_ok=True)
    result = command("search", "walnut")
    said, summary = result.err.splitlines()
    assert said.endswith("is made anew: it is damaged")
    assert summary == "1 to 3 of 3 matches"


@pytest.mark.parametrize(
    "listing",
    [
        "list",
        "approvals",
        "search walnut",
        "workers",
        "schedule list",
        "workspace list",
        "audit errors",
    ],
)
def test_without_a_database_a_listing_is_empty(command: Command, listing: str) -> None:
    told = command(*listing.split())
    assert (told.code, told.out) == (0, "")
    assert "no jobs yet" in told.err
    assert command(*listing.split(), "--json").json == []


def test_without_a_database_no_job_is_found(command: Command) -> None:
    for named in (["list", "job_1"], ["search", "walnut", "--job", "job_1"], ["show", "last"]):
        result = command(*named)
        assert (result.code, result.out) == (2, "")
        assert "no jobs yet" in result.err


def test_a_command_in_a_subfolder_names_the_state_folder_above(
    command: Command, database: Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_one(database)
    (folder / "src" / "app").mkdir(parents=True)
    monkeypatch.chdir(folder / "src" / "app")
    for arguments, code in ((["list"], 0), (["show", "last"], 2)):
        told = command(*arguments)
        assert (told.code, told.out) == (code, "")
        assert f"some are in {folder / '.runner'}; use --home" in told.err


def test_a_question_without_an_answer_says_so(command: Command, database: Database) -> None:
    submit_one(database)
    told = command("audit", "commands")
    assert (told.code, told.out, told.err) == (0, "", "nothing found\n")
    assert command("audit", "commands", "--json").json == []


@pytest.mark.slow
def test_a_text_that_cannot_be_read_is_said_in_one_line(
    command: Command, told: str, database: Database
) -> None:
    record(database, "other.py").call("Bash", {"command": "x"}, "y", whole=b"walnut").store()
    damaged = update(tool_outputs).values(compressed=b"damaged")
    database.write(lambda connection: connection.execute(damaged))
    first, second = command("search", "walnut").err.splitlines()
    assert "cannot be read" in first
    assert second.startswith("1 to 3 of 3 matches: 1 text could not be read")
    result = command("search", "almond")
    assert result.err.startswith("no match for almond: 1 text could not be read")
    assert "cannot be read" in command("db", "reindex").err

"""Finding what a shortened id means."""

from __future__ import annotations

import pytest

from runner.errors import NotFoundError
from runner.queries.find import Found, find
from runner.store.database import Database
from tests.store.attempts import claim, run_row, submit_one, tool_use


def test_whole_ids_are_found(database: Database) -> None:
    run_id = submit_one(database)
    job_id = run_row(database, run_id).job_id
    assert find(database, run_id, "job", "run", "call") == Found("run", run_id)
    assert find(database, job_id, "job", "run", "call") == Found("job", job_id)


def test_beginnings_and_endings_are_found(database: Database) -> None:
    run_id = submit_one(database)
    job_id = run_row(database, run_id).job_id
    assert find(database, "run_", "job", "run") == Found("run", run_id)
    assert find(database, "job_0", "job", "run") == Found("job", job_id)
    assert find(database, run_id[-6:], "job", "run") == Found("run", run_id)
    assert find(database, run_id[-12:].upper(), "job", "run") == Found("run", run_id)


def test_endings_under_six_characters_are_not_enough(database: Database) -> None:
    run_id = submit_one(database)
    with pytest.raises(NotFoundError, match="no job or run"):
        find(database, run_id[-5:], "job", "run")


def test_what_could_be_several_is_listed(database: Database) -> None:
    found = [submit_one(database, key) for key in ("a", "b")]
    with pytest.raises(NotFoundError) as refused:
        find(database, "run_", "run")
    assert all(run_id in str(refused.value) for run_id in found)
    for number in range(5):
        submit_one(database, str(number))
    with pytest.raises(NotFoundError, match="and more"):
        find(database, "run_", "run")


def test_only_the_kinds_that_are_asked_for_are_found(database: Database) -> None:
    run_id = submit_one(database)
    with pytest.raises(NotFoundError, match="no job is named"):
        find(database, run_id, "job")


def test_tool_calls_are_found_by_their_id_shortened_and_by_the_api_s(database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id).reply(tool_use(7), tool_use(8), stop="tool_use")
    name = f"call_{run_id.removeprefix('run_')}_1_2"
    for text in (name, name.removeprefix("call_")[-10:], name[:-4] + "_1_2", "toolu_8"):
        assert find(database, text, "job", "run", "call") == Found("call", name)
    with pytest.raises(NotFoundError, match=r"could be call_.*_1_1, call_.*_1_2"):
        find(database, name[:-2], "call")
    for wrong in (name[:-1] + "3", name + "0", name[:-1] + "99999999999999999999", "call_x_²_1"):
        with pytest.raises(NotFoundError):
            find(database, wrong, "call")


def test_runs_and_calls_are_told_apart(database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id).reply(tool_use(1), stop="tool_use")
    assert find(database, run_id[-8:], "job", "run", "call") == Found("run", run_id)


@pytest.mark.parametrize(
    "text",
    ["", "%", "______", "run%", "' OR 1=1 --", "\0\0\0\0\0\0", "\udce9" * 6, "é" * 6, "9" * 99],
)
def test_text_that_names_nothing_finds_nothing(database: Database, text: str) -> None:
    submit_one(database)
    with pytest.raises(NotFoundError):
        find(database, text, "job", "run", "call")


def test_error_shows_no_control_characters(database: Database) -> None:
    with pytest.raises(NotFoundError) as refused:
        find(database, "\x1b[2J\u202e", "run")
    assert str(refused.value).isascii()
    assert str(refused.value).isprintable()

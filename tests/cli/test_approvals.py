"""``approvals``, ``approve`` and ``deny``."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable

import pytest

from runner.core.commands import Target
from runner.store.control import cancel as cancel_runs
from runner.store.database import Database
from runner.store.rules import list_rules
from tests.cli.conftest import Result
from tests.cli.questions import approval_row, ask, call_id, job_of, submit_runs
from tests.cli.test_show import STORABLE_HOSTILE
from tests.cli.test_terminal import steers
from tests.store.attempts import run_row
from tests.store.examples import NOW

Command = Callable[..., Result]


def group_id(command: Command, key: str = "uv lock") -> str:
    (found,) = [each for each in command("approvals", "--json").json if each["group_key"] == key]
    return str(found["id"])


def test_what_asks_for_the_same_is_one_group_over_all_runs(
    command: Command, database: Database
) -> None:
    runs = submit_runs(database, "a", "b", "c")
    for run_id in runs[:2]:
        ask(database, run_id)
    ask(database, runs[2], "uv sync")
    shown = command("approvals")
    assert shown.code == 0
    job_id = job_of(database, runs[0])
    heads = [line for line in shown.out.splitlines() if line and not line.startswith(" ")]
    assert [head.rsplit(" — ", 1)[0] for head in heads] == [
        f"uv lock — 2 runs of {job_id[-8:]}",
        f"uv sync — 1 run of {job_id[-8:]}",
    ]
    assert "the rule ask Bash(uv *) (It changes the lock file.)" in shown.out
    assert "Bash(uv lock)" in shown.out
    first, second = command("approvals", "--json").json
    assert (first["group_key"], first["runs"], first["tool"]) == ("uv lock", 2, "Bash")
    assert [call["run_id"] for call in first["calls"]] == runs[:2]
    assert first["calls"][0]["input"] == {"command": "uv lock"}
    assert second["calls"][0]["call_id"] == call_id(runs[2])


def test_approvals_of_a_job_or_a_run_are_listed_alone(command: Command, database: Database) -> None:
    mine, other = submit_runs(database, "a"), submit_runs(database, "b", "c")
    for run_id in (*mine, *other):
        ask(database, run_id)
    listed = command("approvals", job_of(database, mine[0]), "--json").json
    assert [call["run_id"] for group in listed for call in group["calls"]] == mine
    listed = command("approvals", other[1][-8:], "--json").json
    assert [call["run_id"] for group in listed for call in group["calls"]] == [other[1]]
    assert len(command("approvals", "--json").json) == 2


def test_nothing_that_waits_is_said(command: Command, database: Database) -> None:
    submit_runs(database, "a")
    shown = command("approvals")
    assert (shown.code, shown.out) == (0, "")
    assert "nothing waits" in shown.err
    assert command("approvals", "--json").json == []


def test_inputs_that_differ_within_a_group_are_all_shown(
    command: Command, database: Database
) -> None:
    runs = submit_runs(database, *"abcdefg")
    for number, run_id in enumerate(runs):
        ask(database, run_id, f"uv lock -P p{number}", group="uv lock", rule="")
    shown = command("approvals").out
    assert all(f"uv lock -P p{number}" in shown for number in range(5))
    assert "and 2 other inputs" in shown
    assert command("approvals", "--json").json[0]["suggested_rule"] is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["call", "approval", "run", "job", "group", "group's key"])
def test_call_is_approved_by_any_name(command: Command, database: Database, name: str) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id)
    names = {
        "call": (call_id(run_id),),
        "approval": (approval_id,),
        "run": (run_id,),
        "job": (job_of(database, run_id),),
        "group": (group_id(command),),
        "group's key": ("--group", "uv lock"),
    }
    result = command("approve", *names[name], "--as", "lena", "--reason", "Go on.")
    assert result.code == 0, result.err
    assert result.out.startswith(f"{run_id[-8:]} (a): approved")
    row = approval_row(database, approval_id)
    assert (row.answer, row.answered_by, row.reason) == ("approved", "lena", "Go on.")
    assert run_row(database, run_id).state == "queued"


@pytest.mark.parametrize("name", ["call", "approval", "group"])
def test_names_may_be_shortened(command: Command, database: Database, name: str) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id)
    short = {
        "call": call_id(run_id)[-10:],
        "approval": approval_id[-6:],
        "group": group_id(command)[:8],
    }
    assert command("approve", short[name]).code == 0
    assert approval_row(database, approval_id).answer == "approved"


def test_user_of_the_operating_system_answers(command: Command, database: Database) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id)
    command("deny", run_id)
    assert approval_row(database, approval_id).answered_by == getpass.getuser()


@pytest.mark.parametrize("name", ["", "  ", "le\x1bna", "le\u202ena"])
def test_name_that_is_none_is_refused(command: Command, database: Database, name: str) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id)
    result = command("approve", run_id, "--as", name)
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert approval_row(database, approval_id).answer is None


def test_group_of_one_job_is_answered_and_no_other(command: Command, database: Database) -> None:
    mine, other = submit_runs(database, "a", "b"), submit_runs(database, "c")
    asked = {run_id: ask(database, run_id) for run_id in (*mine, *other)}
    sync = ask(database, mine[0], "uv sync", position=1)
    job_id = job_of(database, mine[0])
    result = command("deny", job_id, "--group", "uv lock", "--json")
    assert [each["id"] for each in result.json] == [asked[run_id] for run_id in mine]
    assert all(each["changed"] for each in result.json)
    assert approval_row(database, asked[mine[0]]).answer == "denied"
    assert approval_row(database, asked[other[0]]).answer is None
    assert approval_row(database, sync).answer is None


def test_group_s_id_stays_while_its_questions_change(command: Command, database: Database) -> None:
    runs = submit_runs(database, "a", "b")
    ask(database, runs[0])
    before = group_id(command)
    ask(database, runs[1])
    command("approve", runs[0])
    assert group_id(command) == before


def test_remembered_rule_answers_the_others_and_says_so(
    command: Command, database: Database
) -> None:
    runs = submit_runs(database, "a", "b", "c")
    asked = [ask(database, run_id) for run_id in runs]
    result = command("approve", call_id(runs[0]), "--remember", "job", "--as", "lena")
    assert result.code == 0, result.err
    assert "1 of 1 answered, and 2 more by the rule" in result.err
    assert {approval_row(database, each).answer for each in asked} == {"approved"}
    assert approval_row(database, asked[1]).answered_via == "rule"
    rule = list_rules(database, job_of(database, runs[0]))[-1]
    assert (rule.effect, rule.rule, rule.origin) == ("allow", "Bash(uv lock)", "remembered")
    assert rule.author == "lena"


def test_rule_for_a_run_answers_no_other_run(command: Command, database: Database) -> None:
    runs = submit_runs(database, "a", "b")
    first, same_run, other = (
        ask(database, runs[0]),
        ask(database, runs[0], position=1),
        ask(database, runs[1]),
    )
    answered = command(
        *("approve", first, "--remember", "run", "--rule", "Bash(uv lock *)", "--json")
    ).json
    assert [(each["id"], each["by_rule"]) for each in answered] == [
        (first, False),
        (same_run, True),
    ]
    assert approval_row(database, other).answer is None


def test_rule_that_does_not_cover_the_call_is_refused(command: Command, database: Database) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id)
    for options in (("--remember", "job", "--rule", "Bash(ls)"), ("--rule", "Bash(uv lock)")):
        result = command("approve", run_id, *options)
        assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)
    assert approval_row(database, approval_id).answer is None


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        ("uv lock --offline", {"command": "uv lock --offline", "timeout": 5}),
        ('{"command": "true"}', {"command": "true"}),
        ("{ true; }", {"command": "{ true; }", "timeout": 5}),
        ("true", {"command": "true", "timeout": 5}),
        ("[ -e x ]", {"command": "[ -e x ]", "timeout": 5}),
    ],
)
def test_command_is_edited_as_text_or_json(
    command: Command, database: Database, text: str, edited: dict[str, object]
) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id, timeout=5)
    assert command("approve", run_id, "--edit", text).code == 0
    assert approval_row(database, approval_id).edited_input == edited


@pytest.mark.parametrize("text", ["[]", "null", "7", '"ls"', '{"command": "ls"', " "])
def test_json_that_is_no_input_is_not_taken_for_a_command(
    command: Command, database: Database, text: str
) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id)
    result = command("approve", run_id, "--edit", text)
    assert (result.code, "JSON object" in result.err) == (2, True)
    assert approval_row(database, approval_id).answer is None


def test_input_of_other_tools_is_edited_as_an_object(command: Command, database: Database) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id, tool="Write", file_path="x", content="y")
    result = command("approve", run_id, "--edit", "z")
    assert (result.code, "JSON object" in result.err) == (2, True)
    unfit = command("approve", run_id, "--edit", '{"content": "z"}')
    assert (unfit.code, "file_path" in unfit.err) == (2, True)
    assert approval_row(database, approval_id).answer is None
    edited = {"file_path": "x", "content": "z"}
    assert command("approve", run_id, "--edit", json.dumps(edited)).code == 0
    assert approval_row(database, approval_id).edited_input == edited


def test_calls_with_one_input_are_edited_together_and_others_are_not(
    command: Command, database: Database
) -> None:
    runs = submit_runs(database, "a", "b", "c")
    alike = [ask(database, run_id) for run_id in runs[:2]]
    other = ask(database, runs[2], "uv lock -q", group="uv lock")
    refused = command("approve", "--group", "uv lock", "--edit", "uv lock --offline")
    assert (refused.code, "different inputs" in refused.err) == (2, True)
    assert approval_row(database, alike[0]).answer is None
    result = command("approve", *alike, "--edit", "uv lock --offline")
    assert result.code == 0, result.err
    for approval_id in alike:
        assert approval_row(database, approval_id).edited_input == {"command": "uv lock --offline"}
    assert approval_row(database, other).answer is None


def test_denial_takes_no_edited_input(command: Command, database: Database) -> None:
    result = command("deny", ask(database, submit_runs(database, "a")[0]), "--edit", "true")
    assert (result.code, "--edit" in result.err) == (2, True)


def test_second_answer_changes_nothing_and_says_whose_the_first_was(
    command: Command, database: Database
) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id)
    command("approve", approval_id, "--as", "lena")
    for name in (approval_id, call_id(run_id)):
        again = command("deny", name)
        assert (again.code, "approved by lena" in again.out) == (1, True), again
        assert again.err.splitlines() == ["nothing was changed"]
    assert approval_row(database, approval_id).answer == "approved"
    nothing = command("deny", run_id)
    assert (nothing.code, nothing.out) == (1, "")
    assert "nothing there waits" in nothing.err


def test_cancelled_run_asks_nothing_more(command: Command, database: Database) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id)
    cancel_runs(database, Target("run", run_id), NOW)
    assert command("approvals", "--json").json == []
    (answered,) = command("approve", approval_id, "--json").json
    assert not answered["changed"]
    assert run_row(database, run_id).state == "cancelled"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("grp_0000000000",),
        ("apr_nothing",),
        ("call_x_1_1",),
        ("--group", "uv pip"),
        ("--group", "uv pip", "JOB"),
        ("\x1b[2J",),
        ("",),
    ],
)
def test_what_names_nothing_is_a_usage_error(
    command: Command, database: Database, arguments: tuple[str, ...]
) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id)
    job_id = job_of(database, run_id)
    result = command("approve", *(job_id if each == "JOB" else each for each in arguments))
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)
    assert not any(map(steers, result.err.replace("\n", "")))
    assert approval_row(database, approval_id).answer is None


def test_name_that_could_be_several_is_refused(command: Command, database: Database) -> None:
    asked = [ask(database, run_id) for run_id in submit_runs(database, "a", "b")]
    result = command("approve", asked[0][:8])
    assert (result.code, all(each[-8:] in result.err for each in asked)) == (2, True)
    assert approval_row(database, asked[0]).answer is None


@pytest.mark.slow
def test_answered_run_that_nobody_works_says_how_to_go_on(
    command: Command, database: Database
) -> None:
    (run_id,) = submit_runs(database, "a")
    first, second = ask(database, run_id), ask(database, run_id, "uv sync", position=1)
    assert "runner run --resume" not in command("approve", second).err
    assert f"runner run --resume {job_of(database, run_id)[-8:]}" in command("approve", first).err


@pytest.mark.slow
def test_what_models_wrote_steers_no_terminal(command: Command, database: Database) -> None:
    (run_id,) = submit_runs(database, STORABLE_HOSTILE)
    hostile = f"uv {STORABLE_HOSTILE}"
    approval_id = ask(database, run_id, hostile)
    ask(database, run_id, tool="Write", position=1, content=STORABLE_HOSTILE * 1000, file_path="x")
    for arguments in (
        ("approvals",),
        ("show", run_id),
        ("show", call_id(run_id)),
        ("transcript", run_id),
        ("deny", approval_id, "--reason", hostile),
        ("approve", run_id),
        ("show", call_id(run_id)),
        ("transcript", run_id),
    ):
        result = command(*arguments)
        assert result.code == 0, result.err
        assert not any(map(steers, result.out.replace("\n", ""))), arguments
        assert not any(map(steers, result.err.replace("\n", ""))), arguments


@pytest.mark.slow
def test_answer_to_a_run_that_is_told_to_pause_says_so(
    command: Command, database: Database
) -> None:
    (run_id,) = submit_runs(database, "a")
    ask(database, run_id)
    assert command("pause", run_id).code == 0
    result = command("approve", run_id)
    assert (result.code, "approved: the run pauses now" in result.out) == (0, True), result


@pytest.mark.slow
def test_answer_that_changes_some_of_what_was_named_is_one(
    command: Command, database: Database
) -> None:
    first, second = submit_runs(database, "a", "b")
    answered, open_still = ask(database, first), ask(database, second)
    command("approve", answered)
    result = command("deny", answered, open_still)
    assert (result.code, "1 of 2 answered" in result.err) == (0, True), result

"""Denials and questions, with their rule and reason, wherever a run is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import update

from runner.core.commands import Reply
from runner.core.conversation import ToolResult
from runner.core.entries import ToolFinished
from runner.permissions import Rule
from runner.queries import decisions
from runner.store import migrate
from runner.store.approvals import answer, expire
from runner.store.database import Database
from runner.store.questions import waiting
from runner.store.tables import runs, tool_calls
from tests.cli.conftest import Result
from tests.cli.questions import ASKING, ask, call_id, job_of, refuse, submit_runs
from tests.cli.test_budget import summarise_job
from tests.store.attempts import claim, run_row, submit_one, tool_use
from tests.store.examples import NOW

Command = Callable[..., Result]
WHY = "the rule deny Bash(rm *) (Nothing is deleted.)"


@pytest.mark.slow
def test_denial_is_shown_with_its_rule_and_reason(command: Command, database: Database) -> None:
    (run_id,) = submit_runs(database, "a")
    refuse(database, run_id, "rm -rf build")
    run = command("show", run_id)
    assert f"{call_id(run_id)[-12:]}  Bash rm -rf build: {WHY}" in run.out
    (call,) = command("show", run_id, "--json").json["denied_calls"]
    assert (call["id"], call["rule"], call["why"]) == (
        call_id(run_id),
        "Bash(rm *)",
        "Nothing is deleted.",
    )
    assert WHY in command("show", call_id(run_id)).out
    shown = command("show", call_id(run_id), "--json").json
    assert (shown["decision"], shown["matched"], shown["rule_why"], shown["approval"]) == (
        "deny",
        "rm -rf build",
        "Nothing is deleted.",
        None,
    )
    assert f"[denied: {WHY}]" in command("transcript", run_id).out


@pytest.mark.slow
def test_denial_at_the_file_is_counted_and_shown_with_its_reason(
    command: Command, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """The decision allowed the call; where its path led when it ran was denied."""
    run_id = submit_one(database, spec=replace(ASKING, rules=(Rule("allow", "Write"),)))
    attempt = claim(database, run_id)
    attempt.reply(tool_use(1, "Write", file_path="a"), stop="tool_use")
    said = "a: denied by the rule deny 'Write(/etc/**)'"
    attempt.append(ToolFinished(0, ToolResult(said + "\x1b[2J", "denied")))
    assert run_row(database, run_id).denials == 1
    assert said in command("show", run_id).out
    assert f"[denied: {said}" in command("transcript", run_id).out
    job_id = job_of(database, run_id)
    assert decisions.denied_counts(database, job_id) == (1, 1)
    summarise_job(database, job_id)
    out = capsys.readouterr().out
    assert "1 tool call was denied, in 1 run" in out
    assert said in out
    assert "\x1b" not in out


def test_denial_is_counted_once_whoever_denied(database: Database) -> None:
    run_id = submit_one(database, spec=ASKING)
    commands = ("rm x", "uv lock", "uv sync")
    uses = [tool_use(n, "Bash", command=command) for n, command in enumerate(commands)]
    claim(database, run_id).reply(*uses, stop="tool_use")
    lock, sync = waiting(database)
    answer(database, [lock.id], Reply("denied", "lena"), NOW)
    answer(database, [sync.id], Reply("denied", "lena"), NOW)
    claim(database, run_id)
    assert run_row(database, run_id).denials == 3
    assert decisions.denied_counts(database, job_of(database, run_id)) == (3, 1)
    called = decisions.denied_calls(database, run_id)
    assert [(call["rule"], call["answer"], call["denial"]) for call in called] == [
        ("Bash(rm *)", None, None),
        ("Bash(uv *)", "denied", None),
        ("Bash(uv *)", "denied", None),
    ]


@pytest.mark.slow
def test_question_is_shown_while_it_waits_and_with_its_answer(
    command: Command, database: Database
) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id)
    assert f"{call_id(run_id)[-12:]}  Bash uv lock" in command("show", run_id).out
    assert "[waits for an answer]" in command("transcript", run_id).out
    assert "waits for an answer" in command("show", call_id(run_id)).out
    command("deny", run_id, "--as", "lena", "--reason", "Not today.")
    said = "denied by lena: Not today."
    for arguments in (("show", run_id), ("show", call_id(run_id)), ("transcript", run_id)):
        assert said in command(*arguments).out, arguments
    approval = command("show", call_id(run_id), "--json").json["approval"]
    assert (approval["id"], approval["answer"], approval["answered_by"]) == (
        approval_id,
        "denied",
        "lena",
    )
    assert command("show", run_id, "--json").json["approvals"][0]["answer"] == "denied"


def test_question_of_a_run_that_has_ended_waits_no_more(
    command: Command, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_id,) = submit_runs(database, "a")
    ask(database, run_id)
    end = update(runs).where(runs.c.id == run_id).values(state="stopped", reason="deadline")
    database.write(lambda connection: connection.execute(end))
    assert "waits for an answer" not in command("show", run_id).out
    assert command("approvals", "--json").json == []
    summarise_job(database, job_of(database, run_id))
    assert "wait" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("outcome", "is_denial"), [("denied", True), ("interrupted", False)])
def test_question_that_expired_is_a_denial_only_where_it_denied(
    command: Command, database: Database, outcome: str, is_denial: bool
) -> None:
    (run_id,) = submit_runs(database, "a")
    ask(database, run_id, expires_at=NOW)
    expire(database, NOW)
    ended = update(tool_calls).values(outcome=outcome, ended_at=NOW, duration=0.0)
    database.write(lambda connection: connection.execute(ended))
    said = "no answer came in time"
    assert (said in command("show", run_id).out) is is_denial
    assert decisions.denied_counts(database, job_of(database, run_id))[0] == is_denial
    assert said in command("show", call_id(run_id)).out
    assert f"[{said}]" in command("transcript", run_id).out


@pytest.mark.slow
def test_edited_input_is_shown_beside_the_model_s(command: Command, database: Database) -> None:
    (run_id,) = submit_runs(database, "a")
    ask(database, run_id)
    command("approve", run_id, "--edit", "uv lock --offline", "--as", "lena")
    shown = command("show", call_id(run_id)).out
    assert '"uv lock"' in shown
    assert '"uv lock --offline"' in shown
    assert "[approved by lena, with another input]" in command("transcript", run_id).out


@pytest.mark.slow
def test_summary_counts_denials_by_reason_and_open_questions(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third, fourth = submit_runs(database, "a", "b", "c", "d")
    for run_id in (first, second):
        refuse(database, run_id, "rm -rf build")
    ask(database, third)
    ask(database, third, "uv sync", position=1)
    answer(database, [ask(database, fourth)], Reply("denied", "lena", "Not today."), NOW)
    job_id = job_of(database, first)
    assert summarise_job(database, job_id) == 3
    out = capsys.readouterr().out
    assert "3 tool calls were denied, in 3 runs" in out
    assert "  1 × Bash uv lock: denied by lena: Not today." in out
    assert f"  2 × Bash rm -rf build: {WHY}" in out
    assert f"2 tool calls wait for an answer, in 1 run: runner approvals {job_id[-8:]}" in out


def test_summary_says_where_one_reason_denied_unlike_calls(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = submit_runs(database, "a", "b")
    refuse(database, first, "rm -rf build")
    refuse(database, second, "rm x")
    summarise_job(database, job_of(database, first))
    assert f"  2 × Bash rm -rf build (and other calls): {WHY}" in capsys.readouterr().out


def test_summary_as_json_has_denials_and_open_questions(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = submit_runs(database, "a", "b")
    refuse(database, first, "rm -rf build")
    ask(database, second)
    summarise_job(database, job_of(database, first), as_json=True)
    summary = json.loads(capsys.readouterr().out)
    assert [run["open_approvals"] for run in summary["run_summaries"]] == [0, 1]
    (denied,) = summary["denied"]
    assert (denied["tool"], denied["rule"], denied["calls"], denied["runs"]) == (
        "Bash",
        "Bash(rm *)",
        1,
        1,
    )


@pytest.mark.slow
@pytest.mark.parametrize("empty_url", ["sqlite", "postgresql"], indirect=True)
def test_both_databases_tell_what_was_denied_and_asked(empty_url: str) -> None:
    database = Database(empty_url)
    migrate.upgrade(database)
    first, second, third = submit_runs(database, "a", "b", "c")
    for run_id in (first, second):
        refuse(database, run_id, "rm -rf build")
    approval_id = ask(database, third)
    job_id = job_of(database, first)
    (kind,) = decisions.denied_kinds(database, job_id)
    assert (kind["calls"], kind["runs"], kind["why"]) == (2, 2, "Nothing is deleted.")
    assert decisions.denied_counts(database, job_id) == (2, 2)
    assert decisions.open_approval_counts(database, job_id) == {third: 1}
    assert decisions.is_approval_open(database, approval_id)
    assert (
        decisions.whys(database, [approval_id])[approval_id]["why"] == "It changes the lock file."
    )
    assert decisions.find_approval(database, call_id(third)) == approval_id
    assert decisions.find_approval(database, call_id(first)) is None
    assert [call["id"] for call in decisions.denied_calls(database, first)] == [call_id(first)]
    assert decisions.decision_on_call(database, call_id(third))["approval"]["id"] == approval_id
    database.close()

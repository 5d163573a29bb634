"""``rules list`` and ``rules revoke``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runner.store.database import Database
from tests.cli.conftest import Result
from tests.cli.questions import ASKING, approval_row, ask, call_id, job_of, submit_runs
from tests.cli.test_terminal import steers

Command = Callable[..., Result]


def test_rules_of_a_job_are_listed_in_order(command: Command, database: Database) -> None:
    (run_id,) = submit_runs(database, "a")
    job_id = job_of(database, run_id)
    listed = command("rules", "list", job_id, "--json").json
    assert [(rule["effect"], rule["rule"], rule["why"]) for rule in listed] == [
        (rule.effect, rule.text, rule.why) for rule in ASKING.rules
    ]
    shown = command("rules", "list", job_id[-8:])
    assert shown.code == 0
    assert shown.out.splitlines()[0].split()[:4] == ["position", "effect", "rule", "from"]
    assert "It changes the lock file." in shown.out


@pytest.mark.slow
def test_remembered_rule_is_listed_and_revoked(command: Command, database: Database) -> None:
    runs = submit_runs(database, "a", "b")
    job_id = job_of(database, runs[0])
    ask(database, runs[0])
    assert command("approve", runs[0], "--remember", "job", "--as", "lena").code == 0
    rule = command("rules", "list", job_id, "--json").json[-1]
    assert (rule["origin"], rule["author"], rule["added_in"]) == ("remembered", "lena", 2)
    position = str(rule["position"])
    result = command("rules", "revoke", job_id, position, "--as", "nils")
    assert result.code == 0, result.err
    assert "allow Bash(uv lock) no longer holds" in result.out
    assert "by nils" in command("rules", "list", job_id).out
    assert "Bash(uv lock)" not in command("show", job_id).out
    again = command("rules", "revoke", job_id, position)
    assert (again.code, "is already revoked, by nils" in again.err) == (2, True)
    later = ask(database, runs[1])
    assert approval_row(database, later).answer is None


def test_remembered_rule_is_listed_with_the_call_that_it_came_from(
    command: Command, database: Database
) -> None:
    first, second = submit_runs(database, "a", "b")
    ask(database, first)
    ask(database, second)
    assert command("approve", second, "--remember", "job").code == 0
    job_id = job_of(database, first)
    listed = command("rules", "list", job_id, "--json").json
    assert [rule["call_id"] for rule in listed] == [None] * len(ASKING.rules) + [call_id(second)]
    assert f"remembered, asked for {call_id(second)[-12:]}" in command("rules", "list", job_id).out


def test_rule_that_the_job_was_submitted_with_is_revoked_only_by_force(
    command: Command, database: Database
) -> None:
    (run_id,) = submit_runs(database, "a")
    job_id = job_of(database, run_id)
    refused = command("rules", "revoke", job_id, "1")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "'Bash(rm *)'" in refused.err
    assert "--force" in refused.err
    assert command("rules", "list", job_id, "--json").json[1]["revoked_in"] is None
    assert command("rules", "revoke", job_id, "1", "--force").code == 0
    assert command("rules", "list", job_id, "--json").json[1]["revoked_in"] == 2


@pytest.mark.parametrize("position", ["99", "-1", "x", "999999999999"])
def test_rule_that_is_not_there_is_a_usage_error(
    command: Command, database: Database, position: str
) -> None:
    (run_id,) = submit_runs(database, "a")
    result = command("rules", "revoke", job_of(database, run_id), "--", position)
    assert (result.code, len(result.err.splitlines())) == (2, 1)


def test_stored_rules_steer_no_terminal(command: Command, database: Database) -> None:
    (run_id,) = submit_runs(database, "a")
    ask(database, run_id)
    reason = "\x1b[2J\u202eyes"
    assert command("approve", run_id, "--remember", "job", "--reason", reason).code == 0
    for arguments in (("rules", "list", job_of(database, run_id)), ("show", run_id)):
        result = command(*arguments)
        assert not any(map(steers, result.out.replace("\n", ""))), arguments


def test_a_standing_rule_is_added_listed_and_removed(command: Command, database: Database) -> None:
    reason = ("--reason", "It only locks.")
    added = command("rules", "standing", "add", "allow", "Bash(uv lock)", "--as", "lena", *reason)
    assert (added.code, added.out) == (0, "standing rule 1: allow Bash(uv lock)\n")
    again = command("rules", "standing", "add", "allow", "Bash(uv lock)")
    assert (again.code, "is already a standing rule" in again.err) == (2, True)
    wrong = command("rules", "standing", "add", "allow", "mcp__*")
    assert (wrong.code, "name the server" in wrong.err) == (2, True)
    (row,) = command("rules", "standing", "list", "--json").json
    assert (row["author"], row["why"], row["removed_by"]) == ("lena", "It only locks.", None)
    (run_id,) = submit_runs(database, "a")
    job_id = job_of(database, run_id)
    copy = command("rules", "list", job_id, "--json").json[-1]
    assert (copy["origin"], copy["rule"], copy["author"]) == ("standing", "Bash(uv lock)", "lena")
    assert "allow Bash(uv lock) (standing)" in command("show", job_id).out
    removed = command("rules", "standing", "rm", "1", "--as", "nils", "--reason", "No more.")
    assert removed.code == 0, removed.err
    assert command("rules", "standing", "list", "--json").json == []
    assert "by nils" in command("rules", "standing", "list", "--all").out
    assert "(standing)" in command("show", job_id).out  # a job's rules are its own


def test_an_answer_is_remembered_for_new_jobs_too(command: Command, database: Database) -> None:
    (run_id,) = submit_runs(database, "a")
    ask(database, run_id)
    assert command("approve", run_id, "--remember", "always", "--as", "lena").code == 0
    (row,) = command("rules", "standing", "list", "--json").json
    assert (row["rule"], row["author"], row["call_id"]) == (
        "Bash(uv lock)",
        "lena",
        call_id(run_id),
    )
    (later,) = submit_runs(database, "b")
    assert "Bash(uv lock) (standing)" in command("show", job_of(database, later)).out

"""Standing rules: what new jobs get copies of, and what stays on record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from runner.core.commands import Reply
from runner.core.run import Author
from runner.core.spec import Asking, JobSpec
from runner.core.workspace import Workspace
from runner.errors import NotFoundError, UsageError
from runner.permissions import Request, Rule
from runner.permissions.decisions import evaluate
from runner.store import jobs as jobs_store
from runner.store import schedules
from runner.store.approvals import answer
from runner.store.database import Database
from runner.store.rules import (
    add_standing,
    list_rules,
    list_standing,
    policy_for,
    remove_standing,
    rules_at,
)
from runner.store.schedules import Cron
from runner.store.tables import job_events
from tests.store.asked import ASKING, answers, ask_all, remembered, submit_asking
from tests.store.examples import NOW, submission

pytestmark = pytest.mark.dialect

LENA = Author("lena", "it only locks")


def add(database: Database, effect: Any, text: str, author: Author = LENA) -> int | None:
    rule = Rule(effect, text, author.why)
    return database.write(lambda connection: add_standing(connection, rule, author, NOW - 9))


def copies(database: Database, job_id: str) -> list[tuple[str, str]]:
    """The rules of a job that are copies of standing ones."""
    rules = list_rules(database, job_id)
    return [(rule.effect, rule.rule) for rule in rules if rule.origin == "standing"]


def decision(database: Database, job_id: str, command: str, spec: JobSpec = ASKING) -> str:
    rules = database.read(lambda connection: rules_at(connection, job_id, 1))
    policy = policy_for(rules, "run_1", spec, 1)
    return evaluate(policy, Request("Bash", {"command": command})).effect


def test_only_jobs_submitted_later_get_a_copy_with_its_author(database: Database) -> None:
    before = submit_asking(database)
    assert add(database, "allow", "Bash(uv lock)") == 1
    after = submit_asking(database)
    assert (copies(database, before), decision(database, before, "uv lock")) == ([], "ask")
    assert decision(database, after, "uv lock") == "allow"
    *own, copy = list_rules(database, after)
    assert {rule.author for rule in own} == {"ada"}
    assert (copy.author, copy.created_at, copy.why) == ("lena", NOW - 9, "it only locks")
    told = select(job_events.c.data["new"]).where(job_events.c.job_id == after)
    assert database.rows(told)[0][0]["standing_rules"] == 1


def test_a_standing_allow_stands_above_ask_rules_and_below_denials(database: Database) -> None:
    add(database, "allow", "Bash")
    job_id = submit_asking(database)
    commands = ("make", "rm -r build")  # the job asks about all commands, and denies rm
    assert [decision(database, job_id, each) for each in commands] == ["allow", "deny"]


def test_a_job_may_leave_out_what_standing_rules_allow_but_no_denial(database: Database) -> None:
    add(database, "allow", "Bash(make)")
    add(database, "ask", "Read(/secret/**)")
    add(database, "deny", "Bash(uv *)")
    job_id = submit_asking(database, asking=Asking("ask", standing=False))
    assert copies(database, job_id) == [("ask", "Read(/secret/**)"), ("deny", "Bash(uv *)")]


def test_a_removed_rule_reaches_no_new_job_and_stays_on_record(database: Database) -> None:
    number = add(database, "allow", "Bash(make)")
    assert number is not None
    assert add(database, "allow", "Bash(make)") is None  # it is there
    with_copy = submit_asking(database)
    remove_standing(database, number, Author("nils", "too broad"), NOW)
    assert copies(database, submit_asking(database)) == []
    assert copies(database, with_copy) == [("allow", "Bash(make)")]
    assert list_standing(database) == []
    (row,) = list_standing(database, removed=True)
    assert (row["author"], row["why"], row["created_at"]) == ("lena", "it only locks", NOW - 9)
    assert (row["removed_by"], row["removed_why"], row["removed_at"]) == ("nils", "too broad", NOW)
    with pytest.raises(UsageError, match="was removed before, by nils"):
        remove_standing(database, number, LENA, NOW + 1)
    with pytest.raises(NotFoundError, match="no standing rule 99"):
        remove_standing(database, 99, LENA, NOW)
    assert add(database, "allow", "Bash(make)") not in (None, number)
    assert len(list_standing(database, removed=True)) == 2


@pytest.mark.parametrize("text", ["mcp__*", "Bash(:unanalyzable)", "Bash(", "Reed(/x)"])
def test_what_no_job_file_may_allow_is_no_standing_rule(database: Database, text: str) -> None:
    with pytest.raises(UsageError, match="the rule"):
        add(database, "allow", text)
    asked = ask_all(database, submit_asking(database), "uv lock")
    for remember in ("job", "always"):
        reply: Any = Reply("approved", "bo", remember=remember, rule=text)
        with pytest.raises(UsageError, match="the rule"):
            answer(database, asked, reply, NOW)
    assert list_standing(database, removed=True) == []


def test_an_answer_for_always_is_a_rule_of_its_job_and_of_new_ones(database: Database) -> None:
    one, other = submit_asking(database, "a", "b"), submit_asking(database)
    asked = [*ask_all(database, one, "uv lock"), *ask_all(database, other, "uv lock")]
    always = Reply("approved", "bo", "locking is fine", remember="always")
    answer(database, asked, always, NOW + 3)
    assert answers(database, asked) == ["approved"] * 3
    for job_id in (one, other):
        assert remembered(database, job_id) == [("allow", "Bash(uv lock)", None)]
    (row,) = list_standing(database)
    assert (row["effect"], row["rule"], row["author"]) == ("allow", "Bash(uv lock)", "bo")
    assert (row["why"], row["created_at"]) == ("locking is fine", NOW + 3)
    assert row["call_id"].startswith("call_")
    assert decision(database, submit_asking(database), "uv lock") == "allow"


def test_a_denial_for_always_denies_in_new_jobs(database: Database) -> None:
    asked = ask_all(database, submit_asking(database), "uv lock")
    answer(database, asked, Reply("denied", "bo", "by hand", remember="always"), NOW)
    spec = replace(ASKING, asking=Asking("ask", standing=False))
    job_id = jobs_store.submit(database, submission(spec=spec), NOW)
    assert decision(database, job_id, "uv lock", spec) == "deny"


def test_a_schedule_submits_with_the_standing_rules_of_its_day(database: Database) -> None:
    spec = submission(spec=ASKING)
    schedules.add(database, spec, Cron("0 * * * *", "UTC"), None, NOW, Author("ada"))
    add(database, "allow", "Bash(make)")
    (job_id,) = schedules.fire_due(database, NOW + 3_600)
    assert copies(database, job_id) == [("allow", "Bash(make)")]


def test_a_path_into_the_workspace_holds_in_the_runs_copies(database: Database) -> None:
    add(database, "deny", "Edit(//srv/shop/docs/**)")
    add(database, "deny", "Edit(//data/shop/keys/**)")
    workspace = Workspace("/srv/shop", "copy", other_name="/data/shop")
    spec = replace(ASKING, workspace=workspace)
    job_id = jobs_store.submit(database, submission(spec=spec), NOW)
    assert [text for _, text in copies(database, job_id)] == [
        "Edit(//srv/shop/docs/**)",
        "Edit(/docs/**)",
        "Edit(//data/shop/keys/**)",
        "Edit(/keys/**)",
    ]

"""Answers that are remembered as rules, and what rules answer when they change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from runner.core.commands import Reply
from runner.core.run import Author
from runner.errors import UsageError
from runner.permissions import Decision, Request, Rule
from runner.permissions.decisions import Policy, evaluate
from runner.store import approvals
from runner.store import approvals as approvals_module
from runner.store.approvals import answer, apply_new_rules
from runner.store.database import Database
from runner.store.rules import list_rules, revoke
from tests.store.asked import (
    ASKING,
    add_rules,
    answer_events,
    answers,
    approval_row,
    ask,
    ask_all,
    remembered,
    run_ids,
    submit_asking,
)
from tests.store.attempts import run_row
from tests.store.examples import NOW

NO = Reply("denied", "bo", "not today")
FOR_THE_JOB = Reply("approved", "ada", remember="job")


@pytest.mark.slow
def test_many_runs_are_answered_in_lots(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals_module, "BATCH", 2)
    job_id = submit_asking(database, *"abcde")
    asked = ask_all(database, job_id, "uv lock")
    results = answer(database, list(reversed(asked)), FOR_THE_JOB, NOW)
    assert [one.id for one in results] == asked
    assert all(one.changed and not one.by_rule for one in results)
    assert remembered(database, job_id) == [("allow", "Bash(uv lock)", None)]
    assert {approval_row(database, one).remembered for one in asked} == {len(ASKING.rules)}


def test_nothing_to_suggest_wants_a_rule(database: Database, run_id: str) -> None:
    (asked,) = ask(database, run_id, "uv lock", suggested="")
    with pytest.raises(UsageError, match="no rule can be suggested"):
        answer(database, [asked], FOR_THE_JOB, NOW)
    answer(database, [asked], replace(FOR_THE_JOB, rule="Bash(uv *)"), NOW)
    assert answers(database, [asked]) == ["approved"]


def test_rule_for_the_job_answers_the_others_that_wait(database: Database) -> None:
    job_id, other = submit_asking(database, "a", "b", "c"), submit_asking(database)
    first, second, third = run_ids(database, job_id)
    (one,) = ask(database, first, "uv lock")
    (two,) = ask(database, second, "uv lock --upgrade")
    different, later = ask(database, third, "make", "uv lock")
    (elsewhere,) = ask_all(database, other, "uv lock")
    rule = replace(FOR_THE_JOB, rule="Bash(uv lock *)", reason="locking is fine")
    results = answer(database, [one], rule, NOW + 5)
    assert [(each.id, each.by_rule) for each in results] == [
        (one, False),
        (two, True),
        (later, True),
    ]
    assert remembered(database, job_id) == [("allow", "Bash(uv lock *)", None)]
    stored = list_rules(database, job_id)[-1]
    assert (stored.origin, stored.author, stored.created_at) == ("remembered", "ada", NOW + 5)
    assert (stored.added_in, stored.why) == (2, "locking is fine")
    row = approval_row(database, two)
    assert (row.answer, row.answered_via, row.answered_by, row.remembered) == (
        "approved",
        "rule",
        "Bash(uv lock *)",
        stored.position,
    )
    assert approval_row(database, one).remembered == stored.position
    assert answer_events(database, second)[0]["rule"] == "Bash(uv lock *)"
    states = [run_row(database, each).state for each in (first, second, third)]
    assert states == ["queued", "queued", "waiting"]
    assert answers(database, [different, elsewhere]) == [None, None]


def test_rule_for_a_run_answers_only_in_that_run(database: Database) -> None:
    job_id = submit_asking(database, "a", "b")
    first, second = run_ids(database, job_id)
    one, again = ask(database, first, "uv lock", "uv lock")
    (other,) = ask(database, second, "uv lock")
    results = answer(database, [one], replace(FOR_THE_JOB, remember="run"), NOW)
    assert [each.id for each in results] == [one, again]
    assert remembered(database, job_id) == [("allow", "Bash(uv lock)", first)]
    assert answers(database, [other]) == [None]


def test_denial_can_be_remembered_and_its_reason_told_to_all(database: Database) -> None:
    job_id = submit_asking(database, "a", "b")
    one, two = ask_all(database, job_id, "uv lock")
    answer(database, [one], replace(NO, remember="job"), NOW)
    assert remembered(database, job_id) == [("deny", "Bash(uv lock)", None)]
    row = approval_row(database, two)
    assert (row.answer, row.answered_via, row.reason) == ("denied", "rule", "not today")


def test_question_asked_while_rules_changed_is_looked_at_again(database: Database) -> None:
    job_id = submit_asking(database, "a", "b", "c")
    asked = ask_all(database, job_id, "uv lock")
    add_rules(database, job_id, Rule("allow", "Bash(uv lock)", origin="remembered"))
    first, second, third = run_ids(database, job_id)
    assert apply_new_rules(database, NOW + 1, most=1).queued == [first]
    assert apply_new_rules(database, NOW + 1, most=5).queued == [second, third]
    assert not apply_new_rules(database, NOW + 1).queued
    assert answers(database, asked) == ["approved"] * 3


def test_jobs_whose_rules_changed_do_not_hold_up_one_another(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "MOST_JOBS", 1)
    jobs = [submit_asking(database) for _ in range(3)]
    asked = [ask_all(database, job_id, "uv lock")[0] for job_id in jobs]
    for job_id in jobs[1:]:
        add_rules(database, job_id, Rule("allow", "Bash(uv lock)", origin="remembered"))
    assert len(apply_new_rules(database, NOW).queued) == 1
    assert len(apply_new_rules(database, NOW).queued) == 1
    assert answers(database, asked) == [None, "approved", "approved"]


def test_question_on_which_new_rules_still_ask_is_looked_at_once(
    database: Database, run_id: str
) -> None:
    (asked,) = ask(database, run_id, "uv lock")
    job_id = run_row(database, run_id).job_id
    revoke(database, job_id, 0, Author("ada"), NOW, force=True)
    assert not apply_new_rules(database, NOW).queued
    row = approval_row(database, asked)
    assert (row.answer, row.checked_snapshot) == (None, 2)


def test_rule_that_is_revoked_meanwhile_answers_nothing(
    database: Database,
    open_database: Callable[[], Database],
    run_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (asked,) = ask(database, run_id, "uv lock")
    job_id = run_row(database, run_id).job_id
    add_rules(database, job_id, Rule("allow", "Bash(uv lock)", origin="remembered"))
    other = open_database()

    def decide_slowly(policy: Policy, request: Request) -> Decision:
        decision = evaluate(policy, request)
        if policy.snapshot == 2:
            assert decision.effect == "allow"
            revoke(other, job_id, len(ASKING.rules), Author("cy"), NOW)
        return decision

    monkeypatch.setattr(approvals, "evaluate", decide_slowly)
    assert not apply_new_rules(database, NOW).queued
    assert answers(database, [asked]) == [None]
    assert not apply_new_rules(database, NOW).queued
    row = approval_row(database, asked)
    assert (row.answer, row.checked_snapshot) == (None, 3)


def test_revoked_rule_answers_no_more(database: Database) -> None:
    job_id = submit_asking(database, "a", "b")
    first, second = run_ids(database, job_id)
    answer(database, ask(database, first, "uv lock"), FOR_THE_JOB, NOW)
    revoke(database, job_id, len(ASKING.rules), Author("ada"), NOW)
    (asked,) = ask(database, second, "uv lock")
    apply_new_rules(database, NOW)
    assert answers(database, [asked]) == [None]

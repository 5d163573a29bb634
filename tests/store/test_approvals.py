"""Answering the questions that runs wait with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import update

from runner.core.commands import Reply, Target
from runner.core.notices import Notify
from runner.core.spec import Asking
from runner.errors import NotFoundError, UsageError
from runner.permissions import Decision, Request, Rule, ToolContext, digest_of
from runner.permissions.decisions import Policy, evaluate
from runner.store import approvals
from runner.store.approvals import answer, expire
from runner.store.database import Database
from runner.store.notices import take_due
from runner.store.questions import announce, waiting
from runner.store.rules import list_rules
from runner.store.tables import runs
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
from tests.store.attempts import event_types, run_row
from tests.store.examples import NOW

YES = Reply("approved", "ada")
TOLD = Notify(on=("needs_approval",), command="tell me")
NO = Reply("denied", "bo", "not today")
FOR_THE_JOB = Reply("approved", "ada", remember="job")


def test_waiting_lists_open_questions_with_what_was_asked(database: Database, run_id: str) -> None:
    (asked_id,) = ask(database, run_id, "uv lock", expires_at=NOW + 60)
    (asked,) = waiting(database)
    assert (asked.id, asked.run_id, asked.item_key) == (asked_id, run_id, "one")
    assert (asked.job_name, asked.tool, asked.input) == ("mend", "Bash", {"command": "uv lock"})
    assert asked.input_digest == digest_of({"command": "uv lock"})
    assert (asked.tool_context, asked.expires_at, asked.turn) == (ToolContext(), NOW + 60, 1)


def test_waiting_can_be_of_a_run_or_a_job(database: Database) -> None:
    job_id, other = submit_asking(database, "a", "b"), submit_asking(database)
    first, second = ask_all(database, job_id, "ls")
    (third,) = ask_all(database, other, "ls")
    run = Target("run", run_ids(database, job_id)[1])
    assert [one.id for one in waiting(database, run)] == [second]
    assert [one.id for one in waiting(database, Target("job", job_id))] == [first, second]
    assert {one.id for one in waiting(database)} == {first, second, third}


def test_each_question_of_a_reply_has_its_own_input(database: Database, run_id: str) -> None:
    ask(database, run_id, "one", "two", "three")
    assert [one.input["command"] for one in waiting(database)] == ["one", "two", "three"]


def test_answer_queues_the_run_again(database: Database, run_id: str) -> None:
    (asked,) = ask(database, run_id, "uv lock")
    (answered,) = answer(database, [asked], replace(YES, reason="fine"), NOW + 5)
    assert (answered.id, answered.run_id, answered.item_key) == (asked, run_id, "one")
    assert (answered.changed, answered.by_rule) == (True, False)
    run = run_row(database, run_id)
    assert (run.state, run.reason, run.due_at, run.answer_count) == ("queued", "", NOW + 5, 1)
    row = approval_row(database, asked)
    assert (row.answer, row.answered_at, row.answered_by) == ("approved", NOW + 5, "ada")
    assert (row.answered_via, row.reason, row.edited_input) == ("person", "fine", None)
    assert waiting(database) == []


def test_answer_is_an_event(database: Database, run_id: str) -> None:
    (asked,) = ask(database, run_id, "uv lock")
    answer(database, [asked], replace(NO, reason="no\x1b[2J"), NOW)
    assert event_types(database, run_id)[-1] == "approval_answered"
    (event,) = answer_events(database, run_id)
    assert (event["answer"], event["by"], event["via"]) == ("denied", "bo", "person")
    assert (event["approval"], event["name"], event["rule"]) == (asked, "Bash", None)
    assert event["why"] == "no␛[2J"


def test_run_goes_on_when_the_first_open_question_is_answered(
    database: Database, run_id: str
) -> None:
    first, second, third = ask(database, run_id, "one", "two", "three")
    (answered,) = answer(database, [second], YES, NOW)
    assert answered.detail == "approved: the run waits for another answer"
    assert run_row(database, run_id).state == "waiting"
    answer(database, [first], NO, NOW)
    assert run_row(database, run_id).state == "queued"
    answer(database, [third], YES, NOW)
    run = run_row(database, run_id)
    assert (run.state, run.answer_count) == ("queued", 3)
    assert answers(database, [first, second, third]) == ["denied", "approved", "approved"]
    assert len(answer_events(database, run_id)) == 3


def test_questions_of_a_run_can_be_answered_together(database: Database, run_id: str) -> None:
    asked = ask(database, run_id, "one", "two")
    assert [one.changed for one in answer(database, [*asked, *asked], YES, NOW)] == [True, True]
    assert run_row(database, run_id).answer_count == 2
    assert event_types(database, run_id)[-2:] == ["approval_answered"] * 2


def test_second_answer_changes_nothing_and_says_who_was_first(
    database: Database, run_id: str
) -> None:
    (asked,) = ask(database, run_id, "uv lock")
    answer(database, [asked], YES, NOW)
    before = approval_row(database, asked), run_row(database, run_id)
    (late,) = answer(database, [asked], replace(NO, remember="job"), NOW + 1)
    assert (late.changed, late.detail) == (False, "was answered before: approved by ada")
    assert (approval_row(database, asked), run_row(database, run_id)) == before
    assert remembered(database, before[0].job_id) == []


def test_answer_that_is_given_again_because_nobody_heard_of_it_is_no_other(
    database: Database, run_id: str
) -> None:
    (asked,) = ask(database, run_id, "uv lock")
    answer(database, [asked], YES, NOW)
    (again,) = answer(database, [asked], YES, NOW)
    assert (again.changed, again.detail) == (True, "approved before: the run is queued")
    assert len(answer_events(database, run_id)) == 1


def test_denial_that_is_newer_than_the_question_stands_above_an_approval(
    database: Database, run_id: str
) -> None:
    (asked,) = ask(database, run_id, "uv lock")
    add_rules(database, run_row(database, run_id).job_id, Rule("deny", "Bash(uv *)"))
    for reply in (YES, FOR_THE_JOB, replace(YES, edited={"command": "uv lock -q"})):
        with pytest.raises(UsageError, match="cannot be approved so: it is denied by the rule"):
            answer(database, [asked], reply, NOW)
    assert answers(database, [asked]) == [None]
    (denied,) = answer(database, [asked], NO, NOW)
    assert denied.changed


def test_denial_that_is_stored_while_a_person_answers_stands_above_an_approval(
    database: Database, open_database: Callable[[], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, other = submit_asking(database, "a", "b"), open_database()
    asked = ask_all(database, job_id, "uv lock")

    def decide_slowly(policy: Policy, request: Request) -> Decision:
        decision = evaluate(policy, request)
        if policy.snapshot == 1:
            assert decision.effect == "ask"
            monkeypatch.undo()
            add_rules(other, job_id, Rule("deny", "Bash(uv *)"))
        return decision

    monkeypatch.setattr(approvals, "evaluate", decide_slowly)
    results = answer(database, asked, YES, NOW)
    assert not any(one.changed for one in results)
    assert all("is denied by the rule" in one.detail for one in results)
    assert answers(database, asked) == [None, None]


def test_question_of_an_ended_run_cannot_be_answered(database: Database, run_id: str) -> None:
    (asked,) = ask(database, run_id, "uv lock", expires_at=NOW)
    ended = update(runs).values(state="stopped", reason="deadline", ended_at=NOW)
    database.write(lambda connection: connection.execute(ended))
    assert waiting(database) == []
    (late,) = answer(database, [asked], FOR_THE_JOB, NOW)
    assert (late.changed, late.detail) == (False, "its run has ended: stopped")
    assert expire(database, NOW) == []
    assert answers(database, [asked]) == [None]


def test_question_that_does_not_exist_is_said_so(database: Database, run_id: str) -> None:
    (asked,) = ask(database, run_id, "uv lock")
    with pytest.raises(NotFoundError, match="apr_none"):
        answer(database, [asked, "apr_none"], YES, NOW)
    assert answers(database, [asked]) == [None]


def test_edited_input_stands_beside_the_digest_of_what_was_asked(
    database: Database, run_id: str
) -> None:
    (asked,) = ask(database, run_id, "git push -f")
    edited = {"command": "git push", "timeout": 5}
    answer(database, [asked], replace(YES, edited=edited), NOW)
    row = approval_row(database, asked)
    assert row.edited_input == edited
    assert row.input_digest == digest_of({"command": "git push -f"})
    assert answer_events(database, run_id)[0]["edited"]


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (replace(NO, edited={}), "leave out the edited input"),
        (replace(YES, edited={"command": "rm x"}), "cannot be approved so: .*Bash\\(rm \\*\\)"),
        (replace(YES, edited={"timeout": float("nan")}), "cannot be stored as JSON"),
        (replace(YES, reason="\0"), "reason has a character"),
        (replace(YES, by="\ud800"), "name has a character"),
        (replace(YES, rule="Bash(uv lock)"), "--remember run, job or always"),
        (replace(FOR_THE_JOB, rule="Bash("), "is bad"),
        (replace(FOR_THE_JOB, rule="Bash(uv sync)"), "does not cover `uv lock`"),
        (replace(FOR_THE_JOB, edited={"command": "uv sync"}), "does not cover `uv sync`"),
        (replace(FOR_THE_JOB, rule="Read"), "does not cover `uv lock`"),
        (replace(NO, remember="run", rule="Bash(uv sync)"), "does not cover `uv lock`"),
    ],
)
def test_reply_that_makes_no_sense_stores_nothing(
    database: Database, run_id: str, reply: Reply, problem: str
) -> None:
    (asked,) = ask(database, run_id, "uv lock")
    before = run_row(database, run_id)
    with pytest.raises(UsageError, match=problem):
        answer(database, [asked], reply, NOW)
    assert answers(database, [asked]) == [None]
    assert run_row(database, run_id) == before
    assert len(list_rules(database, before.job_id)) == len(ASKING.rules)


def test_only_calls_with_one_input_are_edited_alike(database: Database, run_id: str) -> None:
    one, two, different = ask(database, run_id, "ls", "ls", "make")
    edited = replace(YES, edited={"command": "ls -l"})
    with pytest.raises(UsageError, match="different inputs"):
        answer(database, [one, different], edited, NOW)
    answer(database, [one, two], edited, NOW)
    assert answers(database, [one, two, different]) == ["approved", "approved", None]


def test_expired_question_is_answered_once(database: Database) -> None:
    job_id = submit_asking(database, "a", "b", "c")
    first, second, third = run_ids(database, job_id)
    (one,) = ask(database, first, "uv lock", expires_at=NOW + 10)
    (two,) = ask(database, second, "uv lock", expires_at=NOW + 20)
    (three,) = ask(database, third, "uv lock")
    assert expire(database, NOW + 9) == []
    assert expire(database, NOW + 10) == [first]
    assert expire(database, NOW + 10) == []
    assert answers(database, [one, two, three]) == ["expired", None, None]
    row = approval_row(database, one)
    assert (row.answered_via, row.answered_at) == ("timeout", NOW + 10)
    assert answer_events(database, first)[0]["via"] == "timeout"
    (late,) = answer(database, [one], YES, NOW + 11)
    assert not late.changed


def test_answer_that_comes_too_late_is_none_though_no_worker_saw_the_time(
    database: Database,
) -> None:
    job_id = submit_asking(database, "a")
    (run_id,) = run_ids(database, job_id)
    (late,) = ask(database, run_id, "uv lock", expires_at=NOW + 10)
    (answered,) = answer(database, [late], YES, NOW + 10)
    assert (answered.changed, answered.detail) == (False, "came too late: the question had expired")
    assert answers(database, [late]) == ["expired"]
    assert run_row(database, run_id).state == "queued"


def test_notice_is_taken_once_and_only_by_jobs_that_want_it(database: Database) -> None:
    job_id = submit_asking(database, "a", "b", asking=Asking("ask"), notify=TOLD)
    asked = ask_all(database, job_id, "uv lock")
    quiet = [
        approval_row(database, one)
        for one in ask_all(database, submit_asking(database, "quiet"), "uv lock")
    ]
    announce(database, NOW + 1)
    (notice,) = take_due(database, NOW + 1)
    assert (notice.job_id, notice.data["job_name"], notice.notify) == (job_id, "mend", TOLD)
    assert [one["id"] for one in notice.data["questions"]] == asked
    announce(database, NOW + 2)
    assert take_due(database, NOW + 2) == []
    assert None not in {row.notified_at for row in quiet}
    assert approval_row(database, asked[0]).notified_at == NOW + 1


def test_answered_question_is_no_notice(database: Database) -> None:
    job_id = submit_asking(database, asking=Asking("ask"), notify=TOLD)
    answer(database, ask_all(database, job_id, "uv lock"), YES, NOW)
    announce(database, NOW)
    assert take_due(database, NOW) == []

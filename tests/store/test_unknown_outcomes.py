"""Questions about calls that were cut off, of which nobody knows what they did."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Row, select

from runner.core.commands import Reply, Target
from runner.core.conversation import Tool
from runner.core.notices import Notify
from runner.core.run import Waiting
from runner.core.spec import Asking, JobSpec
from runner.core.steps import CallModel, Done, LocateCalls, RunTools
from runner.core.tool_calls import OUTCOME_UNKNOWN
from runner.core.workspace import Workspace
from runner.errors import UsageError
from runner.permissions import Rule, digest_of
from runner.queries import decisions
from runner.store import jobs as jobs_store
from runner.store import leases
from runner.store.approvals import answer, apply_new_rules, expire
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.journal import StoredJournal
from runner.store.notices import take_due
from runner.store.questions import announce, waiting
from runner.store.retry import retry
from runner.store.rules import asked_for
from runner.store.tables import approvals, tool_calls
from tests.store.asked import BASH, add_rules, answer_events, approval_row, ask, run_ids
from tests.store.attempts import Attempt, claim, event_types, free, run_row, submit_one, tool_use
from tests.store.examples import NOW, SPEC, submission

PUSH, EDITED = {"command": "git push"}, {"command": "git push --force"}
KEEP = Tool("keep", "Keeps a note.", {"type": "object"}, source="notes:keep@/folder")
OURS = replace(
    SPEC,
    tools=(*SPEC.tools, BASH, KEEP),
    rules=(Rule("allow", "*"),),
    workspace=Workspace(
        "/repo", "git", external=(Rule("ask", "Bash(git push *)"),), on_unknown="ask"
    ),
)
ASKED_FIRST = replace(OURS, rules=(Rule("ask", "Bash"),), asking=Asking(default="ask"))
YES = Reply("approved", "ada")
NO = Reply("denied", "bo", "it went through")


def die(attempt: Attempt) -> Attempt:
    """The worker is gone; another one takes the run."""
    leases.give_back(attempt.database, attempt.lease, attempt.now)
    return claim(attempt.database, attempt.lease.run_id, attempt.now)


def cut_off(database: Database, spec: JobSpec = OURS, now: float = NOW) -> Attempt:
    """A push that was cut off, with the question about it: the run waits."""
    run_id = submit_one(database, spec=spec)
    attempt = claim(database, run_id, now).reply(tool_use(1, "Bash", **PUSH), stop="tool_use")
    return ask_again(attempt)


def ask_again(attempt: Attempt) -> Attempt:
    assert isinstance(attempt.effect, RunTools), attempt.effect
    attempt = die(attempt)
    assert isinstance(attempt.effect, LocateCalls), attempt.effect
    attempt.locate()
    assert attempt.effect == Done(Waiting("approval"))
    return attempt


def answered(attempt: Attempt, reply: Reply, now: float = NOW + 5) -> Attempt:
    """A person answers the question that is open; the run goes on."""
    (asked,) = waiting(attempt.database)
    (given,) = answer(attempt.database, [asked.id], reply, now)
    assert given.changed
    return go_on(attempt, now)


def go_on(attempt: Attempt, now: float) -> Attempt:
    attempt = claim(attempt.database, attempt.lease.run_id, now)
    return attempt.locate() if isinstance(attempt.effect, LocateCalls) else attempt


def two_runs(database: Database) -> tuple[str, list[str]]:
    job_id = jobs_store.submit(database, submission("a", "b", spec=ASKED_FIRST), NOW)
    return job_id, run_ids(database, job_id)


def call_row(database: Database) -> Row[Any]:
    return database.read(lambda connection: connection.execute(select(tool_calls)).one())


def result(attempt: Attempt) -> str:
    return str(attempt.state.messages[-1].blocks[0]["content"])


def test_question_says_that_it_is_about_an_unknown_outcome(database: Database) -> None:
    attempt = cut_off(database)
    (asked,) = waiting(database)
    assert (asked.asked_again, asked.input, asked.suggested_rule) == (True, PUSH, "")
    assert asked.group_key == "git push (outcome unknown)"
    why = decisions.whys(database, [asked.id])[asked.id]
    assert (why["decision"], why["rule"], why["decision_reason"]) == ("ask", None, OUTCOME_UNKNOWN)
    row = call_row(database)
    assert (row.asked_again, row.started_attempt, row.outcome) == (True, 1, None)
    assert event_types(database, attempt.lease.run_id)[-3:] == [
        "outcome_asked",
        "attempt_ended",
        "waiting",
    ]


def test_view_with_a_question_is_the_same_whether_it_was_folded_or_loaded(
    database: Database,
) -> None:
    run_id = submit_one(database, spec=replace(OURS, parallel_tools="all"))
    unit = tool_use(1, "Bash", command="make"), tool_use(2, "keep", text="done")
    attempt = die(claim(database, run_id).reply(*unit, stop="tool_use")).locate()
    assert isinstance(attempt.effect, RunTools)
    assert [call.asked_again for call in attempt.state.calls] == [False, True]
    journal = StoredJournal(database, lambda: NOW, free)
    assert journal.load(attempt.lease) == attempt.state
    (asked,) = waiting(database)
    answer(database, [asked.id], YES, NOW)
    attempt.finish("made").locate()
    assert journal.load(attempt.lease) == attempt.state


def test_approved_call_runs_again_and_its_result_stands(database: Database) -> None:
    attempt = answered(cut_off(database), YES)
    assert isinstance(attempt.effect, RunTools)
    row = call_row(database)
    assert (row.asked_again, row.started_attempt) == (False, attempt.lease.attempt)
    attempt.finish("pushed")
    assert isinstance(attempt.effect, CallModel)
    assert result(attempt) == "pushed"
    (given,) = answer_events(database, attempt.lease.run_id)
    assert (given["answer"], given["via"], given["by"]) == ("approved", "person", "ada")


def test_denied_call_is_unknown_in_the_words_of_the_person(database: Database) -> None:
    attempt = answered(cut_off(database), NO)
    assert isinstance(attempt.effect, CallModel)
    assert "it went through" in result(attempt)
    assert call_row(database).outcome == "unknown"
    assert run_row(database, attempt.lease.run_id).denials == 0
    assert decisions.denied_calls(database, attempt.lease.run_id) == []


def test_denied_call_counts_as_denied_at_no_time(database: Database) -> None:
    attempt = cut_off(database)
    run_id = attempt.lease.run_id
    (asked,) = waiting(database)
    answer(database, [asked.id], NO, NOW)
    assert run_row(database, run_id).state == "queued"
    assert decisions.denied_calls(database, run_id) == []


def test_call_that_dies_again_is_a_new_question_in_the_place_of_the_old(database: Database) -> None:
    attempt = cut_off(database)
    (first,) = waiting(database)
    attempt = ask_again(answered(attempt, YES))
    (second,) = waiting(database)
    assert second.id != first.id
    row = approval_row(database, second.id)
    assert (row.answer, row.answered_at, row.answered_by, row.answered_via) == (None,) * 4
    count = select(approvals.c.id)
    assert database.read(lambda c: c.execute(count).scalars().all()) == [second.id]


def test_call_that_a_person_let_run_once_is_asked_about_again(database: Database) -> None:
    run_id = submit_one(database, spec=ASKED_FIRST)
    (first,) = ask(database, run_id, "git push")
    answer(database, [first], replace(YES, reason="once"), NOW)
    attempt = ask_again(claim(database, run_id).locate())
    (asked,) = waiting(database)
    assert asked.asked_again
    assert (approval_row(database, asked.id).reason, asked.input) == ("", PUSH)
    assert isinstance(answered(attempt, YES).effect, RunTools)


def test_what_a_person_made_of_the_call_is_what_is_asked_about_and_run(database: Database) -> None:
    run_id = submit_one(database, spec=ASKED_FIRST)
    (first,) = ask(database, run_id, "git push")
    answer(database, [first], replace(YES, edited=EDITED), NOW)
    attempt = ask_again(claim(database, run_id).locate())
    (asked,) = waiting(database)
    assert (asked.input, asked.summary) == (EDITED, "git push --force")
    assert asked.input_digest == digest_of(EDITED)
    attempt = answered(attempt, YES)
    assert isinstance(attempt.effect, RunTools)
    assert attempt.effect.calls[0].input_to_run == EDITED


@pytest.mark.slow
def test_rule_that_was_remembered_with_the_first_answer_still_names_its_call(
    database: Database,
) -> None:
    run_id = submit_one(database, spec=ASKED_FIRST)
    (first,) = ask(database, run_id, "git push", suggested="Bash(git push)")
    answer(database, [first], replace(YES, remember="job"), NOW)
    attempt = ask_again(claim(database, run_id).locate())
    answered(attempt, YES)
    job_id = run_row(database, run_id).job_id
    assert len(asked_for(database, job_id)) == 1


def test_no_rule_answers_what_became_of_a_call(database: Database) -> None:
    attempt = cut_off(database)
    job_id = run_row(database, attempt.lease.run_id).job_id
    for effect in ("allow", "deny"):
        snapshot = add_rules(database, job_id, Rule(effect, "Bash(git push)"))
        assert not apply_new_rules(database, NOW + 2).queued
        (asked,) = waiting(database)
        assert approval_row(database, asked.id).checked_snapshot == snapshot


def test_answer_that_is_remembered_does_not_answer_what_became_of_an_equal_call(
    database: Database,
) -> None:
    job_id, run_ids_ = two_runs(database)
    first, second = run_ids_
    attempt = claim(database, first).reply(tool_use(1, "Bash", **PUSH), stop="tool_use")
    (asked,) = waiting(database)
    answer(database, [asked.id], YES, NOW)
    ask_again(claim(database, first).locate())
    (question,) = ask(database, second, "git push")
    remember = replace(YES, remember="job", rule="Bash(git push)")
    assert [one.id for one in answer(database, [question], remember, NOW)] == [question]
    assert [one.run_id for one in waiting(database, Target("job", job_id))] == [first]
    assert attempt.lease.run_id == first


@pytest.mark.parametrize("reply", [YES, NO])
@pytest.mark.parametrize("rule", [None, "Bash(git push *)"])
def test_answer_is_for_this_call_only(database: Database, reply: Reply, rule: str | None) -> None:
    cut_off(database)
    (asked,) = waiting(database)
    with pytest.raises(UsageError, match="a rule cannot say how `git push` ended"):
        answer(database, [asked.id], replace(reply, remember="job", rule=rule), NOW)
    assert approval_row(database, asked.id).answer is None


def test_what_the_rules_deny_by_now_cannot_be_approved(database: Database) -> None:
    attempt = cut_off(database)
    job_id = run_row(database, attempt.lease.run_id).job_id
    add_rules(database, job_id, Rule("deny", "Bash(git push *)"))
    (asked,) = waiting(database)
    with pytest.raises(UsageError, match="cannot be approved"):
        answer(database, [asked.id], YES, NOW)


def test_question_expires_like_any_other_and_the_outcome_stays_unknown(database: Database) -> None:
    attempt = cut_off(database, replace(OURS, asking=Asking(timeout=60.0)))
    (asked,) = waiting(database)
    assert asked.expires_at == NOW + 60
    assert expire(database, NOW + 59) == []
    assert expire(database, NOW + 61) == [attempt.lease.run_id]
    attempt = go_on(attempt, NOW + 61)
    assert isinstance(attempt.effect, CallModel)
    assert "nobody answered in time" in result(attempt)


def test_people_are_told_of_it_once_more(database: Database) -> None:
    told = Notify(on=("needs_approval",), command="tell-them")
    spec = replace(ASKED_FIRST, asking=Asking(default="ask"), notify=told)
    run_id = submit_one(database, spec=spec)
    (first,) = ask(database, run_id, "git push")
    announce(database, NOW)
    (notice,) = take_due(database, NOW)
    assert [one["id"] for one in notice.data["questions"]] == [first]
    answer(database, [first], YES, NOW)
    ask_again(claim(database, run_id).locate())
    announce(database, NOW)
    (notice,) = take_due(database, NOW)
    assert [one["asked_again"] for one in notice.data["questions"]] == [True]
    announce(database, NOW)
    assert take_due(database, NOW) == []


def test_cancel_closes_the_question_and_nothing_is_asked_when_the_run_goes_on(
    database: Database,
) -> None:
    attempt = cut_off(database)
    run_id = attempt.lease.run_id
    cancel(database, Target("run", run_id), NOW + 1)
    assert waiting(database) == []
    assert database.read(lambda c: c.execute(select(approvals.c.answer)).scalar()) == "cancelled"
    retry(database, Target("run", run_id), NOW + 2)
    attempt = claim(database, run_id, NOW + 2)
    assert isinstance(attempt.effect, CallModel)
    assert result(attempt).startswith("Interrupted")


def test_run_stops_when_nobody_answers_in_time_and_the_job_says_so(database: Database) -> None:
    asking = Asking(timeout=60.0, on_timeout="stop")
    shared = replace(OURS.workspace, mode="shared") if OURS.workspace else None
    attempt = cut_off(database, replace(OURS, asking=asking, workspace=shared))
    run_id = attempt.lease.run_id
    assert expire(database, NOW + 61) == [run_id]
    go_on(attempt, NOW + 61)
    row = run_row(database, run_id)
    assert (row.state, row.reason) == ("stopped", "approval_timeout")
    assert call_row(database).interrupted

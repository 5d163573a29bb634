"""Questions end with their run, however it ends, and do not come back when it is taken up again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select, update

from runner.core.commands import Reply, Target
from runner.core.conversation import ModelReply
from runner.core.entries import CallsDecided, RunSettled
from runner.core.run import Ended
from runner.core.steps import Done, RunTools
from runner.permissions import Decision
from runner.store import retry
from runner.store.approvals import answer, expire
from runner.store.database import Database
from runner.store.journal import StoredJournal
from runner.store.questions import waiting
from runner.store.tables import approvals
from tests.core.story import replied
from tests.store.asked import ASKING, answers, approval_row, ask, run_ids, submit_asking
from tests.store.attempts import USAGE, claim, decide_nothing, free, run_row, tool_use
from tests.store.examples import NOW

YES = Reply("approved", "ada")
GONE = RunSettled(Ended("failed", "workspace", "gone"))


def ended_with_a_question(database: Database, run_id: str) -> list[str]:
    """A run that found no workspace when one of two questions was answered; the questions."""
    first, second = ask(database, run_id, "one", "two")
    answer(database, [first], YES, NOW)
    claim(database, run_id).append(GONE)
    return [first, second]


def asked_anew(database: Database, run_id: str) -> str:
    """The run is taken up again and asks something else; that question."""
    retry.retry(database, Target("run", run_id), NOW + 2)
    attempt = claim(database, run_id, NOW + 2).locate()
    attempt.reply(tool_use(3, "Bash", command="three"), stop="tool_use")
    return next(one.id for one in waiting(database) if one.summary == "three")


def test_end_of_a_run_closes_its_open_questions(database: Database, run_id: str) -> None:
    asked = ended_with_a_question(database, run_id)
    assert answers(database, asked) == ["approved", "cancelled"]
    row = approval_row(database, asked[1])
    assert (row.answered_via, row.answered_at) == ("end", NOW)
    (late,) = answer(database, asked[1:], YES, NOW)
    assert (late.changed, late.detail) == (False, "was answered before: cancelled")


def test_closed_question_does_not_come_back_with_its_run(database: Database, run_id: str) -> None:
    ended_with_a_question(database, run_id)
    third = asked_anew(database, run_id)
    assert [one.id for one in waiting(database)] == [third]
    (answered,) = answer(database, [third], YES, NOW + 3)
    assert answered.detail == "approved: the run goes on"
    assert isinstance(claim(database, run_id, NOW + 3).locate().effect, RunTools)


def test_second_end_leaves_a_closed_question_as_it_was(database: Database, run_id: str) -> None:
    _, second = ended_with_a_question(database, run_id)
    retry.retry(database, Target("run", run_id), NOW + 2)
    before = approval_row(database, second)
    claim(database, run_id, NOW + 2).append(GONE)
    assert approval_row(database, second) == before


def test_run_waits_only_for_answers_about_its_last_reply(database: Database, run_id: str) -> None:
    _, second = ended_with_a_question(database, run_id)
    third = asked_anew(database, run_id)
    reopened = update(approvals).where(approvals.c.id == second)
    reopened = reopened.values(answer=None, answered_at=None, answered_via=None, expires_at=NOW)
    database.write(lambda connection: connection.execute(reopened))
    assert [one.id for one in waiting(database)] == [third]
    assert expire(database, NOW) == []
    (late,) = answer(database, [second], YES, NOW - 1)
    assert (late.changed, late.detail) == (False, "its run went on without an answer")
    (answered,) = answer(database, [third], YES, NOW + 3)
    assert answered.detail == "approved: the run goes on"


def test_question_can_be_asked_and_closed_in_one_transaction(
    database: Database, run_id: str
) -> None:
    attempt = claim(database, run_id)
    calls = [tool_use(number, "Bash", command="uv lock") for number in range(2)]
    reply = replied(ModelReply(tuple(calls), "tool_use", USAGE, "claude-test", "req_1"))
    decided = CallsDecided({0: Decision("ask"), 1: Decision("deny")})
    StoredJournal(database, lambda: NOW, free).commit(
        attempt.lease, attempt.state, [reply, decided, GONE], decide_nothing
    )
    (row,) = database.read(lambda connection: connection.execute(select(approvals)).all())
    assert (row.answer, row.answered_via, row.position) == ("cancelled", "end", 0)


@pytest.mark.parametrize("on_timeout", ["deny", "stop"])
def test_questions_of_a_run_expire_together(database: Database, on_timeout: str) -> None:
    asking = replace(ASKING.asking, timeout=10.0, on_timeout=on_timeout)
    job_id = submit_asking(database, "a", "b", asking=asking)
    first, second = run_ids(database, job_id)
    asked = ask(database, first, "one", "two")
    later = ask(database, second, "one", expires_at=NOW + 11)
    assert expire(database, NOW + 11, most=1) == [first]
    assert answers(database, asked + later) == ["expired", "expired", None]
    stopped = claim(database, first, NOW + 12).effect == Done(
        Ended("stopped", "approval_timeout", "nobody answered in time")
    )
    assert stopped is (on_timeout == "stop")
    assert run_row(database, first).state == ("stopped" if stopped else "running")

"""Notices: found once, sent once, and tried again when that fails."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, update

from runner.core.budget import Budget, billionths
from runner.core.commands import Reply, Target
from runner.core.notices import MOST_TRIES, Notify
from runner.core.pauses import Breaker
from runner.core.run import Author
from runner.core.spec import Asking
from runner.store import control, notices
from runner.store.approvals import answer
from runner.store.budgets import set_budget
from runner.store.database import Database
from runner.store.jobs import submit
from runner.store.notices import DueNotice
from runner.store.pauses import Breakers, resume
from runner.store.prune import erase, old_jobs
from runner.store.questions import announce
from runner.store.retry import retry
from runner.store.tables import job_budgets
from tests.store.asked import ask, ask_all, run_ids, submit_asking
from tests.store.attempts import claim, text
from tests.store.examples import NOW, SPEC, submission

pytestmark = pytest.mark.dialect

TOLD = Notify(command="tell", webhook="RUNNER_HOOK")


def submit_told(database: Database, *keys: str, notify: Notify = TOLD, **options: object) -> str:
    spec = replace(SPEC, notify=notify, **options)  # type: ignore[arg-type]
    return submit(database, submission(*keys, spec=spec), NOW)


def due(database: Database, at: float = NOW) -> list[DueNotice]:
    notices.find(database, at)
    return notices.take_due(database, at)


def said(found: list[DueNotice]) -> list[tuple[str, str]]:
    return sorted((one.event, one.channel) for one in found)


def test_the_end_of_a_job_and_its_first_failure_are_told_once_by_each_channel(
    database: Database,
) -> None:
    job_id = submit_told(database, "a", "b", "c")
    first, second, third = run_ids(database, job_id)
    assert due(database) == []
    claim(database, first, NOW).fail("not_found_error", "no model is called \x1b[2Jx")
    told = due(database)
    assert said(told) == [("failed", "command"), ("failed", "webhook")]
    assert told[0].data["text"].startswith("the first run has failed: a (not_found_error")
    assert "\x1b" not in str(told[0].data)
    claim(database, second, NOW).fail("not_found_error", "y")
    assert due(database) == []
    claim(database, third, NOW).reply(text("Done."))
    told = due(database)
    assert said(told) == [("done", "command"), ("done", "webhook")]
    assert told[0].data["text"] == "done: 1 succeeded, 2 failed"
    assert due(database) == []
    for one in told:
        notices.sent(database, one, NOW)
    states = {each["state"] for each in notices.list_notices(database, job_id)}
    assert states == {"due", "sent"}


def test_nothing_is_stored_of_a_job_that_tells_nobody_or_not_of_this(database: Database) -> None:
    silent = submit(database, submission("a"), NOW)
    only = submit_told(database, "a", notify=replace(TOLD, on=("budget",)))
    for job_id in (silent, only):
        control.cancel(database, Target("job", job_id), NOW)
    assert due(database) == []
    assert notices.list_notices(database, only) == []


def test_a_budget_that_is_nearly_spent_is_told(database: Database) -> None:
    job_id = submit_told(database, "a", budget=Budget(usd=10.0))

    def spend(usd: float) -> None:
        spent = update(job_budgets).where(job_budgets.c.job_id == job_id)
        database.execute(spent.values(spent_cost=billionths(usd)))

    spend(7.99)
    assert due(database) == []
    spend(8.0)
    assert {one.data["text"] for one in due(database)} == {"80% of its budget of $10.00 is spent"}
    spend(9.0)
    assert due(database) == []


def test_a_breaker_that_pauses_the_job_is_told(database: Database) -> None:
    breaker = Breaker(same_failure=2)
    job_id = submit_told(database, *"abcd", breaker=breaker, notify=replace(TOLD, on=("breaker",)))
    for run_id in run_ids(database, job_id)[:2]:
        claim(database, run_id, NOW).fail("not_found_error", "x")
    assert Breakers(database).look(job_id, NOW) is not None
    (text_,) = {one.data["text"] for one in due(database)}
    assert text_.startswith("paused by Runner: ")


def test_a_retried_job_is_announced_again(database: Database) -> None:
    job_id = submit_told(database, "a", "b", notify=Notify(command="tell"))
    first, second = run_ids(database, job_id)
    for run_id in (first, second):
        claim(database, run_id, NOW).fail("not_found_error", "x")
    assert said(due(database)) == [("done", "command"), ("failed", "command")]
    retry(database, Target("run", first), NOW + 10)
    assert due(database, NOW + 11) == []  # the other run failed before
    claim(database, first, NOW + 20).fail("not_found_error", "again")
    told = {one.event: one for one in due(database, NOW + 30)}
    assert {one.id for one in told.values()} == {f"{job_id}/done/2", f"{job_id}/failed/2"}
    assert told["failed"].data["text"].startswith("a run has failed: a (not_found_error: again")
    assert due(database, NOW + 40) == []


def test_a_raised_budget_is_announced_again(database: Database) -> None:
    job_id = submit_told(database, "a", "b", budget=Budget(usd=10.0))
    spent = update(job_budgets).where(job_budgets.c.job_id == job_id)
    database.execute(spent.values(spent_cost=billionths(9)))
    assert [one.id for one in due(database)] == [f"{job_id}/budget"] * 2
    retry_first_of(database, job_id)
    assert due(database) == [], "it was told of, and nothing has changed"
    set_budget(database, job_id, NOW, author=Author("ada"), usd=20.0)
    assert due(database) == []
    database.execute(spent.values(spent_cost=billionths(16)))
    told = due(database)
    assert {one.id for one in told} == {f"{job_id}/budget/2"}
    assert {one.data["text"] for one in told} == {"80% of its budget of $20.00 is spent"}


def retry_first_of(database: Database, job_id: str) -> None:
    run_id = run_ids(database, job_id)[0]
    control.cancel(database, Target("run", run_id), NOW)
    retry(database, Target("run", run_id), NOW)


def test_a_breaker_is_announced_again_after_a_resume(database: Database) -> None:
    breaker = Breaker(same_failure=2)
    only = Notify(on=("breaker",), command="tell")
    job_id = submit_told(database, *"abcde", breaker=breaker, notify=only)
    runs = iter(run_ids(database, job_id))
    ids = []
    for at in (NOW, NOW + 20):
        for run_id in (next(runs), next(runs)):
            claim(database, run_id, at).fail("not_found_error", "x")
        assert Breakers(database).look(job_id, at) is not None
        ids += [one.id for one in due(database, at)]
        resume(database, Target("job", job_id), at + 10)
        assert due(database, at + 10) == []
    assert ids == [f"{job_id}/breaker", f"{job_id}/breaker/2"]


def test_new_questions_are_told_together_and_each_once(database: Database) -> None:
    job_id = submit_asking(database, "a", "b", asking=Asking("ask"), notify=TOLD)
    asked = ask_all(database, job_id, "uv lock")
    announce(database, NOW)
    told = due(database)
    assert said(told) == [("needs_approval", "command"), ("needs_approval", "webhook")]
    assert [each["id"] for each in told[0].data["questions"]] == asked
    assert told[0].data["text"] == "needs an approval: Bash uv lock of a (and 1 more)"
    announce(database, NOW + 1)
    assert due(database, NOW + 1) == []


def test_a_question_like_one_that_waits_is_not_told(database: Database) -> None:
    job_id = submit_asking(database, "a", "b", "c", asking=Asking("ask"), notify=TOLD)
    a, b, c = run_ids(database, job_id)
    (first,) = ask(database, a, "uv lock")
    announce(database, NOW)
    assert len(due(database)) == len(TOLD.channels)
    same, other = ask(database, b, "uv lock", "git push")
    announce(database, NOW + 1)
    assert [each["id"] for each in due(database, NOW + 1)[0].data["questions"]] == [other]
    answer(database, [first, same], Reply("approved", "ada"), NOW + 2)
    (new,) = ask(database, c, "uv lock")
    announce(database, NOW + 3)
    assert [each["id"] for each in due(database, NOW + 3)[0].data["questions"]] == [new]


def test_a_notice_that_is_not_sent_comes_again_after_pauses_and_then_no_more(
    database: Database,
) -> None:
    job_id = submit_told(database, "a", notify=Notify(on=("done",), desktop=True))
    control.cancel(database, Target("job", job_id), NOW)
    at, pauses = NOW, []
    for tries in range(1, MOST_TRIES + 1):
        (one,) = due(database, at)
        assert (one.tries, one.id) == (tries, f"{job_id}/done")
        notices.not_sent(database, one, "no answer", at)
        assert due(database, at + 29) == []
        (stored,) = notices.list_notices(database, job_id)
        if stored["due_at"] is not None:
            pauses.append(stored["due_at"] - at)
            at = stored["due_at"]
    assert pauses == [30.0 * 2**n for n in range(MOST_TRIES - 1)]
    assert (stored["state"], stored["error"], stored["due_at"]) == ("failed", "no answer", None)
    assert due(database, at + 10_000) == []


def test_a_notice_whose_worker_died_while_it_sent_comes_again(database: Database) -> None:
    job_id = submit_told(database, "a", notify=Notify(on=("done",), command="tell"))
    control.cancel(database, Target("job", job_id), NOW)
    assert len(due(database)) == 1
    assert due(database, NOW + 119) == []
    assert len(due(database, NOW + 120)) == 1


def test_many_workers_find_and_take_a_notice_once(database: Database) -> None:
    jobs = [submit_told(database, "a") for _ in range(4)]
    for job_id in jobs:
        control.cancel(database, Target("job", job_id), NOW)
    with ThreadPoolExecutor(4) as workers:
        found = [one for some in workers.map(lambda _: due(database), range(8)) for one in some]
    keys = [(one.job_id, one.event, one.channel) for one in found]
    assert sorted(keys) == sorted((j, "done", c) for j in jobs for c in ("command", "webhook"))


def test_a_worker_of_one_job_leaves_the_notices_of_others(database: Database) -> None:
    mine, other = submit_told(database, "a"), submit_told(database, "a")
    for job_id in (mine, other):
        control.cancel(database, Target("job", job_id), NOW)
    find, take = partial(notices.find, database, NOW), partial(notices.take_due, database, NOW)
    find(mine)
    assert {one.job_id for one in take(mine)} == {mine}
    find()
    assert {one.job_id for one in take()} == {other}


def test_a_job_that_is_pruned_while_its_notices_are_looked_for_has_none(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = submit_told(database, "a")
    control.cancel(database, Target("job", job_id), NOW)
    (job,) = old_jobs(database, NOW + 1, "this host")
    has_ended = notices._has_ended

    def prune_then(connection: Connection, job_id: str) -> bool:
        monkeypatch.undo()
        answer = has_ended(connection, job_id)
        erase(database, job, NOW + 1, Author("ann"), NOW + 1)
        return answer

    monkeypatch.setattr(notices, "_has_ended", prune_then)
    assert due(database) == []


def test_raising_the_budget_of_an_ended_job_announces_no_second_end(database: Database) -> None:
    job_id = submit_told(database, "a", budget=Budget(usd=1.0))
    claim(database, *run_ids(database, job_id), NOW).reply(text("Done."))
    assert ("done", "command") in said(due(database))
    set_budget(database, job_id, NOW + 1, author=Author("ann"), usd=2.0)
    assert due(database, NOW + 2) == []


def test_a_retry_while_the_end_is_noted_keeps_its_notices(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = submit_told(database, "a", budget=Budget(usd=1.0))
    (run_id,) = run_ids(database, job_id)
    claim(database, run_id, NOW).fail("not_found_error", "x")
    write = database.write

    def late(work: Any, **how: Any) -> Any:
        monkeypatch.setattr(database, "write", write)
        retry(database, Target("run", run_id), NOW)
        return write(work, **how)

    monkeypatch.setattr(database, "write", late)
    notices.find(database, NOW)
    spent = {"spent_cost": billionths(0.95)}
    database.execute(update(job_budgets).where(job_budgets.c.job_id == job_id).values(spent))
    assert "budget" in {event for event, _ in said(due(database, NOW + 1))}

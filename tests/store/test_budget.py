"""Budgets of jobs: what runs do at a cap, and changing it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from runner.core.budget import JobBudget, Limits
from runner.core.commands import Target
from runner.core.conversation import Usage
from runner.core.entries import ModelCallFailed
from runner.core.run import Author, Ended, Requeued, Waiting
from runner.core.steps import CallModel, Done
from runner.errors import NotFoundError, UsageError
from runner.store import due_runs, leases
from runner.store.budgets import budget_of, set_budget
from runner.store.control import cancel, pause, resume
from runner.store.database import Database
from runner.store.due_runs import unfinished
from runner.store.journal import StoredJournal
from runner.store.retry import retry
from runner.store.tables import events, model_calls, workers
from runner.store.write_offs import write_off
from tests.postgres import waiting_for_locks
from tests.store.asked import priced, submit_budgeted
from tests.store.attempts import WORKER, claim, decide, event_types, run_row, text, tool_use
from tests.store.attempts import Attempt as AnAttempt
from tests.store.examples import NOW


def take(database: Database, run_id: str, now: float = NOW) -> AnAttempt:
    return claim(database, run_id, now, priced)


def job_budget(database: Database, job_id: str) -> JobBudget:
    found = budget_of(database, job_id)
    assert found is not None
    return found


def outcome(attempt: AnAttempt) -> Any:
    assert isinstance(attempt.effect, Done), attempt.effect
    return attempt.effect.outcome


def last_event(database: Database, run_id: str) -> Any:
    query = select(events).where(events.c.run_id == run_id).order_by(events.c.number.desc())
    return database.read(lambda connection: connection.execute(query).first())


def test_call_reserves_its_worst_case_and_its_reply_gives_it_back(database: Database) -> None:
    job_id, (run_id,) = submit_budgeted(database, "a", usd=2.0, tokens=90_000)
    attempt = take(database, run_id)
    assert isinstance(attempt.effect, CallModel)
    call = attempt.effect.call.reservation
    assert call.worst_cost > 0
    before = JobBudget(90_000, 2_000_000_000, 0, 0, call.worst_case, call.worst_cost)
    assert job_budget(database, job_id) == before == attempt.state.money.budget
    attempt.reply(text("Done."), usage=Usage(100, 0, 0, 10))
    cost = 100 * 3_000 + 10 * 15_000
    assert job_budget(database, job_id) == JobBudget(90_000, 2_000_000_000, 110, cost, 0, 0)
    assert run_row(database, run_id).progress["money"]["charged_cost"] == cost


def test_job_without_a_budget_keeps_no_budget(database: Database) -> None:
    job_id, (run_id,) = submit_budgeted(database, "a")
    attempt = take(database, run_id)
    assert attempt.state.money.budget is None
    attempt.reply(text("Done."))
    assert budget_of(database, job_id) is None
    with pytest.raises(UsageError, match=r"has no budget.*budget_usd or budget_tokens"):
        set_budget(database, job_id, NOW, author=Author("ada"), usd=5.0)
    with pytest.raises(NotFoundError, match="no job is named job_x"):
        set_budget(database, "job_x", NOW, author=Author("ada"), usd=5.0)


def test_run_comes_again_shortly_when_the_rest_is_only_reserved(database: Database) -> None:
    _, (first, second) = submit_budgeted(database, "a", "b", tokens=6_000)
    working, later = take(database, first), take(database, second)
    assert isinstance(working.effect, CallModel)
    assert outcome(later) == Requeued(NOW + 2, "budget")
    working.reply(text("Done."))
    assert unfinished(database, NOW)  # a worker until all is done stays for it
    assert isinstance(take(database, second, NOW + 2).effect, CallModel)


def test_run_waits_when_the_cap_cannot_cover_its_call(database: Database) -> None:
    _, (first, second) = submit_budgeted(database, "a", "b", tokens=6_000)
    take(database, first).reply(text("Done."), usage=Usage(2_000, 0, 0, 1_000))
    assert outcome(take(database, second)) == Waiting("budget")
    run = run_row(database, second)
    assert (run.state, run.reason, run.due_at) == ("waiting", "budget", None)


def test_raised_budget_wakes_the_runs_that_wait_for_it(database: Database) -> None:
    job_id, (first, second, third) = submit_budgeted(database, *"abc", tokens=4_000)
    for run_id in (first, second):
        assert outcome(take(database, run_id)) == Waiting("budget")
    woken = set_budget(database, job_id, NOW + 9, author=Author("ada"), tokens=50_000)
    assert [(change.id, change.state, change.changed) for change in woken] == [
        (first, "queued", True),
        (second, "queued", True),
    ]
    assert job_budget(database, job_id) == JobBudget(most_tokens=50_000)
    event = last_event(database, first)
    assert (event.type, event.data) == (
        "resumed",
        {
            "reason": "budget",
            "by": "ada",
            "why": "",
            "old": {"state": "waiting", "reason": "budget", "budget_tokens": 4_000},
            "new": {"state": "queued", "reason": "", "budget_tokens": 50_000},
        },
    )
    assert run_row(database, third).event_count == 1
    assert due_runs.due_to_notify(database, 9, NOW + 9) == [first, second, third]
    assert isinstance(take(database, first, NOW + 9).effect, CallModel)


def test_budget_that_was_raised_already_still_wakes(database: Database) -> None:
    job_id, (run_id,) = submit_budgeted(database, "a", tokens=4_000)
    take(database, run_id)
    assert len(set_budget(database, job_id, NOW, author=Author("ada"), tokens=4_000)) == 1
    assert outcome(take(database, run_id)) == Waiting("budget")
    assert set_budget(database, job_id, NOW, author=Author("ada"), tokens=5_000)[0].id == run_id


def test_budget_cannot_be_less_than_what_is_spent(database: Database) -> None:
    job_id, (first, second) = submit_budgeted(database, "a", "b", usd=1.0, tokens=90_000)
    take(database, first).reply(text("Done."), usage=Usage(1_000, 0, 0, 100))
    spent = job_budget(database, job_id)
    with pytest.raises(UsageError, match="has used 1,100 tokens: its budget cannot be less"):
        set_budget(database, job_id, NOW, author=Author("ada"), tokens=1_099)
    with pytest.raises(UsageError, match=r"has spent \$0.0045: its budget cannot be less"):
        set_budget(database, job_id, NOW, author=Author("ada"), usd=0.0044)
    assert job_budget(database, job_id) == spent
    in_hand = take(database, second)
    assert isinstance(in_hand.effect, CallModel)
    set_budget(database, job_id, NOW, author=Author("ada"), usd=0.0045, tokens=1_100)
    in_hand.reply(tool_use(1), stop="tool_use").finish("one")
    assert outcome(in_hand) == Waiting("budget")


def test_cap_on_costs_is_changed_and_not_added(database: Database) -> None:
    job_id, _ = submit_budgeted(database, "a", tokens=90_000)
    with pytest.raises(UsageError, match="in tokens only"):
        set_budget(database, job_id, NOW, author=Author("ada"), usd=5.0)
    with pytest.raises(UsageError, match="--usd N, --tokens N or both"):
        set_budget(database, job_id, NOW, author=Author("ada"))
    job_id, _ = submit_budgeted(database, "a", usd=1.0)
    set_budget(database, job_id, NOW, author=Author("ada"), tokens=70_000)
    assert job_budget(database, job_id) == JobBudget(70_000, 1_000_000_000)


def test_model_without_a_price_cannot_spend_a_budget_in_usd(database: Database) -> None:
    _, (run_id,) = submit_budgeted(database, "a", usd=1.0)
    attempt = claim(database, run_id, NOW, lambda spec: {})
    assert isinstance(outcome(attempt), Ended)
    assert run_row(database, run_id).reason == "no_price"


def test_run_that_waits_for_its_budget_can_be_paused_and_cancelled(database: Database) -> None:
    job_id, (first, second) = submit_budgeted(database, "a", "b", tokens=4_000)
    take(database, first), take(database, second)
    (change,) = resume(database, Target("run", first), NOW)
    assert not change.changed
    assert f"runner budget {job_id}" in change.detail
    (change,) = pause(database, Target("run", first), NOW)
    assert (change.state, run_row(database, first).reason) == ("waiting", "paused")
    cancel(database, Target("run", second), NOW)
    assert set_budget(database, job_id, NOW, author=Author("ada"), tokens=50_000) == []
    resume(database, Target("run", first), NOW)
    assert isinstance(take(database, first).effect, CallModel)


def test_cancelled_call_is_charged_at_its_reserve(database: Database) -> None:
    job_id, (first, second) = submit_budgeted(database, "a", "b", usd=1.0)
    calls = [take(database, run_id).effect for run_id in (first, second)]
    reserved = [call.call.reservation for call in calls if isinstance(call, CallModel)]
    cancel(database, Target("job", job_id), NOW)
    tokens, cost = sum(r.worst_case for r in reserved), sum(r.worst_cost for r in reserved)
    assert job_budget(database, job_id) == JobBudget(None, 1_000_000_000, tokens, cost, 0, 0)
    run = run_row(database, first)
    assert run.progress["money"]["charged_cost"] == reserved[0].worst_cost
    assert run.progress["model"]["open_call"] is None


def gives_back(attempt: AnAttempt) -> None:
    leases.give_back(attempt.database, attempt.lease, NOW)


def gives_up(attempt: AnAttempt) -> None:
    leases.give_up(attempt.database, attempt.lease, "KeyError: 1", NOW)


def is_taken(attempt: AnAttempt) -> None:
    assert leases.take_from(attempt.database, [WORKER], NOW) == [attempt.lease.run_id]


@pytest.mark.parametrize("loses", [gives_back, gives_up, is_taken])
def test_call_of_a_lost_attempt_is_charged_at_its_reserve(
    database: Database, loses: Callable[[AnAttempt], None]
) -> None:
    job_id, (run_id,) = submit_budgeted(database, "a", usd=1.0)
    attempt = take(database, run_id)
    assert isinstance(attempt.effect, CallModel)
    call = attempt.effect.call.reservation
    loses(attempt)
    spent = JobBudget(None, 1_000_000_000, call.worst_case, call.worst_cost, 0, 0)
    assert job_budget(database, job_id) == spent
    run = run_row(database, run_id)
    assert (run.charged_tokens, run.progress["model"]["open_call"]) == (call.worst_case, None)
    assert "model_call_ended" in event_types(database, run_id)
    query = select(model_calls)
    stored = database.read(lambda connection: connection.execute(query).one())
    assert (stored.ended_at, stored.charged_tokens) == (NOW, call.worst_case)
    assert stored.error.startswith("worker_lost: ")
    again = take(database, run_id)
    assert isinstance(again.effect, CallModel)
    assert again.effect.call.number == 2
    assert again.state.model.failure is None


LONG = Limits(max_output_tokens=128_000)


def test_a_call_of_a_dead_worker_is_charged_what_the_api_can_have_written(
    database: Database,
) -> None:
    job_id, (run_id,) = submit_budgeted(database, "a", usd=9.0, limits=LONG)
    call = take(database, run_id).state.model.open_call
    assert call is not None
    leases.take_from(database, [WORKER], NOW + 5)
    charge = call.reservation.at_most(65_000)
    assert charge.tokens == call.reservation.worst_case - 128_000 + 65_000
    assert charge.cost < call.reservation.worst_cost
    spent = job_budget(database, job_id)
    assert spent == JobBudget(None, 9_000_000_000, charge.tokens, charge.cost, 0, 0)
    assert run_row(database, run_id).charged_tokens == charge.tokens
    ended = [each for each in stored_events(database, run_id) if each.type == "model_call_ended"]
    assert (ended[0].data["charged"], ended[0].data["unknown_cost"]) == (charge.tokens, charge.cost)


@pytest.mark.parametrize(("at", "leases_end"), [(NOW + 5, True), (NOW - 5, False)])
def test_where_its_worker_may_live_or_a_clock_was_set_a_call_is_charged_in_full(
    database: Database, at: float, leases_end: bool
) -> None:
    job_id, (run_id,) = submit_budgeted(database, "a", usd=9.0, limits=LONG)
    call = take(database, run_id).state.model.open_call
    assert call is not None
    query = select(workers.c.id, workers.c.lease_expires_at)
    expiries = {row.id: row.lease_expires_at for row in database.rows(query)}
    leases.take_from(database, [WORKER], at, leases=expiries if leases_end else None)
    assert job_budget(database, job_id).spent_tokens == call.reservation.worst_case
    assert job_budget(database, job_id).spent_cost == call.reservation.worst_cost


def stored_events(database: Database, run_id: str) -> Any:
    return database.rows(select(events).where(events.c.run_id == run_id).order_by(events.c.number))


@pytest.mark.slow
def test_run_whose_workers_keep_dying_leaves_nothing_reserved(database: Database) -> None:
    job_id, (run_id,) = submit_budgeted(database, "a", usd=5.0)
    while run_row(database, run_id).state != "failed":
        take(database, run_id)
        leases.take_from(database, [WORKER], NOW)
    spent = job_budget(database, job_id)
    assert (spent.reserved_tokens, spent.reserved_cost) == (0, 0)
    assert spent.spent_cost == run_row(database, run_id).progress["money"]["charged_cost"]


def test_failed_call_of_unknown_usage_is_charged_and_a_refused_one_is_not(
    database: Database,
) -> None:
    job_id, (run_id,) = submit_budgeted(database, "a", usd=5.0)
    attempt = take(database, run_id)
    assert isinstance(attempt.effect, CallModel)
    call = attempt.effect.call.reservation
    attempt.append(ModelCallFailed("overloaded_error", "no", 529, None, 0, NOW, NOW))
    assert job_budget(database, job_id).spent_cost == 0
    attempt.append(ModelCallFailed("cut", "half", None, None, call.worst_case, NOW, NOW + 600))
    assert job_budget(database, job_id) == replace(
        JobBudget(None, 5_000_000_000), spent_tokens=call.worst_case, spent_cost=call.worst_cost
    )


@pytest.mark.slow
def test_fresh_run_spends_of_the_same_budget(database: Database) -> None:
    job_id, (run_id,) = submit_budgeted(database, "a", usd=5.0)
    take(database, run_id).reply(text("Done."))
    (change,) = retry(database, Target("run", run_id), NOW, fresh=True)
    take(database, change.id).reply(text("Done."))
    assert job_budget(database, job_id).spent_tokens == 220


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_run_that_begins_to_wait_while_its_budget_is_raised_is_woken(
    database: Database, open_database: Callable[[], Database]
) -> None:
    job_id, (run_id,) = submit_budgeted(database, "a", tokens=4_000)
    held = claim(database, run_id, NOW, priced)  # waits; it is woken, claimed and looked at again
    set_budget(database, job_id, NOW, author=Author("ada"), tokens=4_000)
    due = due_runs.look_at(database, run_id, NOW)
    assert due is not None
    lease = due_runs.claim(database, due, WORKER, NOW)
    assert lease is not None
    person, watcher = open_database(), open_database()
    raised: list[Future[Any]] = []

    def while_the_budget_is_locked() -> float:
        raised.append(
            pool.submit(set_budget, person, job_id, NOW, author=Author("ada"), tokens=50_000)
        )
        while not waiting_for_locks(watcher):
            assert not raised[0].done()
        return NOW

    journal = StoredJournal(database, while_the_budget_is_locked, priced)
    with ThreadPoolExecutor(1) as pool:
        state = journal.load(lease)
        _, effect = journal.commit(lease, state, (), decide)
        assert effect == held.effect == Done(Waiting("budget"))
        assert [change.id for change in raised[0].result()] == [run_id]
    assert run_row(database, run_id).state == "queued"


def cut_off(database: Database, run_id: str) -> None:
    """The run's worker dies in its call, and nobody has taken it since."""
    take(database, run_id)
    leases.take_from(database, [WORKER], NOW)


def test_what_a_person_writes_off_is_spent_no_more_and_wakes_who_waits(database: Database) -> None:
    job_id, (first, second) = submit_budgeted(database, "a", "b", usd=2.0, tokens=6_000)
    cut_off(database, first)
    charged = job_budget(database, job_id)
    assert charged.spent_tokens == run_row(database, first).charged_tokens > 0
    assert outcome(take(database, second)) == Waiting("budget")
    changes, woken = write_off(database, job_id, NOW, author=Author("ada", "the console says so"))
    assert [(each.id, each.changed) for each in changes] == [(first, True)]
    assert [each.id for each in woken] == [second]
    assert job_budget(database, job_id) == JobBudget(6_000, 2_000_000_000)
    run, (call,) = run_row(database, first), database.rows(select(model_calls))
    assert (run.charged_tokens, run.progress["money"]["charged_cost"]) == (0, 0)
    assert (call.charged_tokens, call.written_off_tokens) == (0, charged.spent_tokens)
    event = last_event(database, first)
    assert (event.type, event.data) == (
        "charge_written_off",
        {
            "call": 1,
            "by": "ada",
            "why": "the console says so",
            "old": {"tokens": charged.spent_tokens, "cost": charged.spent_cost},
            "new": None,
        },
    )
    with pytest.raises(NotFoundError, match="has no call that was charged for unknown usage"):
        write_off(database, job_id, NOW, author=Author("ada"))
    assert isinstance(take(database, second).effect, CallModel)


def test_what_the_api_has_counted_stays_charged(database: Database) -> None:
    job_id, (run_id,) = submit_budgeted(database, "a", usd=9.0)
    cut = ModelCallFailed("cut", "half", None, None, 1_500, NOW, None, 15_000_000, Usage(1_000))
    take(database, run_id).append(cut)
    write_off(database, job_id, NOW, author=Author("ada"))
    (call, *_) = database.rows(select(model_calls).order_by(model_calls.c.number))
    assert (call.charged_tokens, call.written_off_tokens) == (1_000, 500)
    assert job_budget(database, job_id).spent_tokens == 1_000


@pytest.mark.slow
def test_only_the_named_call_is_written_off_and_none_of_a_run_at_work(database: Database) -> None:
    job_id, (run_id,) = submit_budgeted(database, "a", usd=9.0)
    cut_off(database, run_id)
    cut_off(database, run_id)
    one = run_row(database, run_id).charged_tokens // 2
    write_off(database, job_id, NOW, author=Author("ada"), call=(run_id, 2))
    calls = database.rows(select(model_calls).order_by(model_calls.c.number))
    assert [each.charged_tokens for each in calls] == [one, 0]
    assert (
        run_row(database, run_id).charged_tokens == one == job_budget(database, job_id).spent_tokens
    )
    take(database, run_id)
    ((change,), _) = write_off(database, job_id, NOW, author=Author("ada"))
    assert (change.changed, run_row(database, run_id).charged_tokens) == (False, one)

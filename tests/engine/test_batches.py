"""The lane of batches over real databases and HTTP: waves, what becomes of calls, and crashes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text

from runner.core.budget import Budget, Limits
from runner.core.commands import Target
from runner.core.run import RUNNER
from runner.core.spec import Patience
from runner.core.times import Moment, Times
from runner.errors import ModelCallError, WorkspaceError
from runner.llm.prices import load_prices
from runner.queries.costs import costs_by
from runner.queries.sql.ask import store_prices
from runner.store import batches as store
from runner.store import control, due_runs, leases
from runner.store.caps import set_cap
from runner.store.database import Database
from runner.store.tables import batch_calls, job_budgets
from runner.store.tables import runs as run_table
from runner.store.times import move_finish_by
from tests.engine.collecting import (
    ALL_SUCCEEDED,
    BATCH_SECONDS,
    COUNT,
    PAID_ONCE,
    RESET,
    Office,
    all_runs,
    collect,
    sweep,
    two_turns,
)
from tests.engine.conftest import Opened
from tests.messages_api import Break, Received, Reply
from tests.messages_api.batches import CreateFault


@pytest.mark.dialect
def test_calls_of_many_runs_share_batches_and_each_is_paid_once(office: Office) -> None:
    office.submit(COUNT)
    office.finish()
    assert office.states() == ALL_SUCCEEDED
    assert office.paid() == PAID_ONCE
    assert len(office.server.requests) == 1  # the first of the job goes alone
    assert office.batches("count", "outcome") == [(COUNT, "ended"), (COUNT - 1, "ended")]


def test_a_run_in_a_batch_is_a_row_that_waits(office: Office) -> None:
    office.submit(COUNT)
    office.work()
    assert office.states() == {"waiting batch": COUNT}
    office.collector().collect()
    assert office.states() == {"waiting batch": COUNT}
    assert office.work() == []


def test_a_call_waits_for_others_while_its_job_is_at_work(office: Office) -> None:
    office.submit(COUNT)
    office.submit(1, name="another")
    office.work()
    held = office.submit(1, name="a third")  # it is queued, so that more may come
    office.collector().collect()
    assert [count for (count,) in office.batches("count")] == [COUNT + 1]
    control.cancel(office.database, all_runs(held), office.clock.now())


def test_calls_in_a_batch_cost_half(office: Office) -> None:
    prices = load_prices()
    for lane in ("realtime", "batch"):
        office.submit(COUNT, lane=lane, name=lane)
        office.finish()
    by_job = costs_by(office.database, prices, "job")
    realtime, batch = (each.spending.usd for each in sorted(by_job, key=lambda each: each.key))
    calls = costs_by(office.database, prices, "run")
    first = calls[COUNT].spending.usd  # whose first call goes alone
    others = [each.spending.usd for each in calls[COUNT + 1 :]]
    assert others == [realtime / COUNT / 2] * (COUNT - 1)
    assert batch == first + sum(others)
    store_prices(office.database, prices)
    query = text("SELECT sum(usd) FROM v_costs")
    seen = office.database.read(lambda connection: connection.execute(query).scalar_one())
    assert abs(seen - float(realtime + batch)) < 1e-9


def test_a_batch_of_reserved_calls_is_inside_the_budget_of_its_job(office: Office) -> None:
    office.submit(COUNT, budget=Budget(usd=10.0))
    office.work()
    (budget,) = office.database.rows(select(job_budgets))
    held = [cost for cost, batch in office.reservations() if batch]
    assert len(held) == COUNT
    assert budget.reserved_cost == sum(held)
    office.finish()
    (budget,) = office.database.rows(select(job_budgets))
    spent = sum(each.spending.usd for each in costs_by(office.database, load_prices(), "run"))
    assert (budget.reserved_cost, budget.spent_cost) == (0, int(spent * 10**9))


# --- What becomes of calls ---


def test_a_request_that_the_api_refuses_is_found_before_any_is_batched(open_office: Opened) -> None:
    bad = Reply(broken=Break("status", status=400, message="thinking: not for this model"))
    office = open_office(lambda request: bad)
    office.submit(COUNT)
    office.finish()
    assert office.states() == {"failed invalid_request_error": COUNT}
    assert office.batches("id") == []


@pytest.mark.slow
def test_a_call_that_failed_in_its_batch_is_tried_again_and_not_charged(
    open_office: Opened,
) -> None:
    seen: set[tuple[str, int]] = set()

    def overloaded_once(request: Received) -> Reply:
        this = request.first_text, request.position
        if request.custom_id is None or this in seen:
            return two_turns(request)
        seen.add(this)
        return Reply(broken=Break("status", status=529))

    office = open_office(overloaded_once)
    office.submit(COUNT)
    office.finish()
    assert office.states() == ALL_SUCCEEDED
    failed = [charged for error, charged in office.calls("error", "charged_tokens") if error]
    assert failed == [0] * (2 * COUNT - 1)


@pytest.mark.slow
def test_a_bad_request_in_a_batch_fails_its_run_alone(open_office: Opened) -> None:
    def bad_for_one(request: Received) -> Reply:
        if request.first_text == "Do 1.":
            return Reply(broken=Break("status", status=400, message="no"))
        return two_turns(request)

    office = open_office(bad_for_one)
    office.submit(COUNT)
    office.finish()
    assert office.states() == {"succeeded end_turn": 2, "failed invalid_request_error": 1}


@pytest.mark.slow
def test_a_prompt_that_is_too_long_for_the_batch_is_made_shorter_as_elsewhere(
    open_office: Opened,
) -> None:
    long = "prompt is too long: 210000 tokens > 200000 maximum"

    def too_long(request: Received) -> Reply:
        if request.position:
            return Reply(broken=Break("status", status=400, message=long))
        return two_turns(request)

    office = open_office(too_long)
    office.submit(COUNT)
    office.finish()
    assert office.states() == {"stopped context_window": COUNT}


@pytest.mark.slow
def test_an_expired_batch_charges_nothing_and_its_calls_are_made_again(open_office: Opened) -> None:
    office = open_office(seconds=25 * 3600.0)
    office.submit(1, retry=Patience(max_attempts=2))
    for _ in range(4):
        office.round(seconds=25 * 3600.0)
    office.work()
    assert office.states() == {"failed batch_expired": 1}
    errors = [charged for error, charged in office.calls("error", "charged_tokens") if error]
    assert errors == [0, 0]


def test_a_cancelled_run_leaves_its_item_to_be_ignored(office: Office) -> None:
    office.submit(COUNT)
    office.round(seconds=1.0)
    (first, *_) = office.run_ids()
    control.cancel(office.database, Target("run", first), office.clock.now())
    office.clock.turn(BATCH_SECONDS)
    office.finish()
    assert office.states() == {"succeeded end_turn": COUNT - 1, "cancelled cancelled": 1}
    assert office.database.rows(select(batch_calls).where(batch_calls.c.result.is_not(None))) == []


@pytest.mark.dialect
def test_the_charge_of_a_cancelled_call_is_corrected_by_its_result(office: Office) -> None:
    office.submit(COUNT, budget=Budget(usd=10.0))
    set_cap(office.database, office.clock.now(), 10.0, "UTC", 0, author=RUNNER)
    office.round(seconds=1.0)
    (first, second, _) = office.run_ids()
    control.cancel(office.database, Target("run", first), office.clock.now())
    office.clock.turn(BATCH_SECONDS)
    office.collector().collect()
    # This one's reply has come, and nobody has taken it.
    control.cancel(office.database, Target("run", second), office.clock.now())
    assert office.spent() != (office.billed(), office.billed())
    office.finish()
    office.collector().collect()
    assert office.states() == {"succeeded end_turn": 1, "cancelled cancelled": 2}
    assert office.spent() == (office.billed(), office.billed())
    charged = office.calls("charged_tokens", "input_tokens", "output_tokens")
    assert all(tokens == prompt + reply for tokens, prompt, reply in charged)
    (run,) = office.database.rows(select(run_table).where(run_table.c.id == first))
    assert run.progress["money"]["charged_cost"] == office.cost_of(first)


def test_the_charge_of_a_cancelled_call_whose_batch_was_refused_is_taken_back(
    office: Office,
) -> None:
    job = office.submit(COUNT, budget=Budget(usd=10.0))
    office.work()

    def cancels(*given: Any) -> Any:
        control.cancel(office.database, all_runs(job), office.clock.now())
        raise ModelCallError("overloaded_error", "busy", status=529, billed=False)

    collect(office, create=cancels)
    assert office.spent()[0] > office.billed()
    office.collector().collect()
    assert office.spent()[0] == office.billed()


@pytest.mark.slow
def test_a_batch_that_holds_nothing_else_is_cancelled_with_its_job(office: Office) -> None:
    job = office.submit(COUNT)
    office.round(seconds=1.0)
    control.cancel(office.database, all_runs(job), office.clock.now())
    office.clock.turn(10.0)
    office.round()
    office.round()
    (batch,) = office.server.shelf.batches.values()
    assert {result["type"] for result in batch.results.values()} == {"canceled"}
    assert office.batches("outcome") == [("ended",)]


def test_a_cancelled_call_that_no_batch_has_costs_nothing(office: Office) -> None:
    job = office.submit(COUNT)
    office.work()
    control.cancel(office.database, all_runs(job), office.clock.now())
    office.round()
    assert office.server.shelf.batches == {}
    charged = [tokens for number, tokens in office.calls("number", "charged_tokens") if tokens == 0]
    assert len(charged) == COUNT


def test_a_paused_run_takes_its_reply_when_it_is_resumed(office: Office) -> None:
    job = office.submit(COUNT)
    office.round()
    control.pause(office.database, all_runs(job), office.clock.now())
    office.round()
    office.round()
    assert office.states() == {"waiting paused": COUNT}
    control.resume(office.database, all_runs(job), office.clock.now())
    office.finish()
    assert office.states() == ALL_SUCCEEDED
    assert office.paid() == PAID_ONCE


def test_a_call_that_waits_past_the_window_of_its_job_is_not_sent(office: Office) -> None:
    job = office.submit(COUNT, times=Times(finish_by=Moment("later", "", office.clock.now() + 30)))
    office.work()
    office.clock.turn(40.0)
    office.round()
    office.round()
    assert office.server.shelf.batches == {}
    assert office.states() == {"waiting finish_by": COUNT}
    later = Moment("later", "", office.clock.now() + 9_000)
    move_finish_by(office.database, job, later, office.clock.now(), author=RUNNER)
    office.finish()
    assert office.states() == ALL_SUCCEEDED


def test_a_run_whose_deadline_passes_while_its_call_waits_is_stopped(office: Office) -> None:
    office.submit(COUNT, limits=Limits(deadline=30.0))
    office.work()
    office.clock.turn(40.0)
    office.round()
    office.work()
    assert office.server.shelf.batches == {}
    assert office.states() == {"stopped deadline": COUNT}


@pytest.mark.slow
def test_a_batch_that_the_api_does_not_find_holds_up_no_other(office: Office) -> None:
    office.submit(COUNT)
    office.round(seconds=1.0)
    (gone,) = office.server.shelf.batches
    del office.server.shelf.batches[gone]
    office.submit(COUNT, name="another")
    office.work()
    office.clock.turn(60.0)
    office.collector().collect()
    assert [api_id for (api_id,) in office.batches("api_id")] == [gone, "msgbatch_000001"]


def test_calls_that_wait_go_one_by_one_when_the_lane_of_their_job_changes(office: Office) -> None:
    job = office.submit(COUNT)
    office.work()
    store.set_lane(office.database, job, "realtime", office.clock.now(), author=RUNNER)
    office.finish()
    assert office.states() == ALL_SUCCEEDED
    assert office.server.shelf.batches == {}
    assert office.paid() == PAID_ONCE


@pytest.mark.slow
def test_auto_takes_batches_while_there_is_time_for_the_turns_left(office: Office) -> None:
    soon, late = office.clock.now() + 3600.0, office.clock.now() + 30 * 3600.0
    office.submit(COUNT, lane="auto", times=Times(finish_by=Moment("soon", "", soon)))
    office.finish()
    assert office.server.shelf.batches == {}
    office.submit(COUNT, lane="auto", times=Times(finish_by=Moment("late", "", late)))
    office.finish()
    assert len(office.server.shelf.batches) == 2


def test_a_run_that_ends_without_its_workspace_takes_its_reply_first(office: Office) -> None:
    class Gone:
        def surroundings(self, *given: Any) -> Any:
            raise WorkspaceError("the folder is gone")

    office.submit(1)
    office.round()
    office.collector().collect()
    office.ports = replace(office.ports, workspaces=Gone())  # type: ignore[arg-type]
    office.work()
    assert office.states() == {"failed workspace": 1}
    assert office.calls("error", "stop_reason") == [(None, "tool_use"), (None, "end_turn")]


def test_a_worker_that_dies_as_it_takes_a_reply_leaves_it_to_the_next(office: Office) -> None:
    office.submit(1)
    office.round()
    office.collector().collect()
    (run_id,) = due_runs.due_to_notify(office.database, 1, office.clock.now())
    run = due_runs.look_at(office.database, run_id, office.clock.now())
    assert run is not None
    assert due_runs.claim(office.database, run, "worker_a", office.clock.now()) is not None
    leases.take_from(office.database, ["worker_a"], office.clock.now())
    office.finish("worker_b")
    assert office.states() == {"succeeded end_turn": 1}
    assert office.calls("error") == [(None,), (None,)]


# --- Crashes and unknown outcomes ---


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_collector_that_dies_at_any_point_pays_no_call_twice(
    database: Database, tmp_path: Path
) -> None:
    """Where it died between the intent and the request, calls are charged and made again."""
    found = sweep(database, tmp_path)
    assert found["died"] > 40
    assert found["adopted"] > 0
    assert found["lost"] > 0
    assert found["twice"] == 0


@pytest.mark.parametrize("fault", [RESET, Break("status", status=500)])
def test_a_batch_whose_creation_has_an_unknown_outcome_is_found_in_the_list(
    office: Office, fault: Break
) -> None:
    office.server.shelf.faults.append(CreateFault(fault, made=True))
    office.submit(COUNT)
    office.finish()
    assert office.states() == ALL_SUCCEEDED
    assert office.paid() == PAID_ONCE
    assert office.batches("adopted") == [(True,), (False,)]


@pytest.mark.slow
def test_a_batch_that_is_not_listed_after_the_grace_time_is_charged_and_made_again(
    office: Office,
) -> None:
    office.server.shelf.faults.append(CreateFault(RESET, made=False))
    office.submit(COUNT)
    office.round(seconds=1.0)
    office.round(seconds=1.0)
    assert office.states() == {"waiting batch": COUNT}
    office.clock.turn(300.0)
    office.finish()
    assert office.states() == ALL_SUCCEEDED
    assert office.paid() == PAID_ONCE
    lost = [error for (error,) in office.calls("error") if error]
    assert [error.partition(":")[0] for error in lost] == ["batch_lost"] * COUNT
    assert office.batches("outcome")[0] == ("lost",)


def test_two_batches_that_may_be_ours_are_not_adopted(office: Office) -> None:
    office.server.shelf.faults.append(CreateFault(RESET, made=True))
    office.submit(COUNT)
    office.round(seconds=1.0)
    office.make_another(COUNT)
    office.clock.turn(400.0)
    office.round()
    assert office.batches("outcome", "adopted") == [("lost", False)]


@pytest.mark.slow
def test_a_wrong_adoption_is_found_at_its_end_and_the_calls_are_made_again(office: Office) -> None:
    office.server.shelf.faults.append(CreateFault(RESET, made=False))
    office.submit(COUNT)
    office.make_another(COUNT)
    office.round()
    office.round()
    assert office.batches("adopted") == [(True,)]
    office.round()
    assert office.batches("adopted", "not_ours") == [(False, ["msgbatch_000001"])]
    office.clock.turn(300.0)
    office.finish()
    assert office.states() == ALL_SUCCEEDED
    assert [each for each in office.paid() if each[0] != "Another."] == PAID_ONCE


@pytest.mark.slow
def test_a_batch_that_the_api_refuses_for_now_is_made_later(office: Office) -> None:
    busy = Break("status", status=429, headers={"retry-after": "30"})
    office.server.shelf.faults.append(CreateFault(busy, made=False))
    office.submit(COUNT)
    office.finish()
    assert office.states() == ALL_SUCCEEDED
    assert office.paid() == PAID_ONCE
    assert [error for (error,) in office.calls("error") if error] == []
    assert office.batches("outcome") == [("refused",), ("ended",), ("ended",)]


def test_another_worker_leaves_the_batches_to_the_one_that_collects(office: Office) -> None:
    office.submit(COUNT)
    office.work()
    office.collector("worker_a").collect()
    office.clock.turn(12.0)
    office.collector("worker_a")  # it lives
    office.clock.turn(4.0)
    office.collector("worker_b").collect()
    holder = office.holder()
    assert holder == "worker_a"
    office.clock.turn(20.0)
    office.collector("worker_b").collect()
    assert office.holder() == "worker_b"

"""The lane of batches goes on when the API, a job or a worker's key is in trouble."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select, update

from runner.core.budget import Budget
from runner.core.commands import Target
from runner.errors import KeyRefused, ModelCallError
from runner.store import control
from runner.store.tables import jobs as jobs_table
from runner.store.tables import runs as run_table
from tests.engine.collecting import (
    ALL_SUCCEEDED,
    BATCH_SECONDS,
    COUNT,
    PAID_ONCE,
    RESET,
    Faulty,
    Office,
    all_runs,
    collect,
)
from tests.engine.conftest import Opened
from tests.messages_api import Break
from tests.messages_api.batches import CreateFault


def fails(error: Exception) -> Callable[..., Any]:
    def method(*given: Any) -> Any:
        raise error

    return method


@pytest.mark.parametrize("name", ["look", "results"])
def test_a_batch_is_not_lost_by_an_api_that_is_busy_after_a_day(office: Office, name: str) -> None:
    office.submit(COUNT)
    office.round(seconds=1.0)
    office.clock.turn(27 * 3600.0)
    busy = ModelCallError("overloaded_error", "busy", status=529)
    collect(office, **{name: fails(busy)})
    assert office.batches("outcome", "detail") == [(None, "overloaded_error: busy")]
    office.clock.turn(60.0)
    office.finish()
    assert office.paid() == PAID_ONCE


def test_a_batch_that_the_api_does_not_know_is_lost_after_a_day(office: Office) -> None:
    office.submit(COUNT)
    office.round(seconds=1.0)
    office.server.shelf.batches.clear()
    for hours, outcome in ((25.0, None), (2.0, "lost")):
        office.clock.turn(hours * 3600.0)
        office.collector().collect()
        assert office.batches("outcome") == [(outcome,)]


def test_a_batch_whose_results_the_api_keeps_no_more_is_lost(office: Office) -> None:
    office.submit(COUNT)
    office.round(seconds=1.0)
    office.clock.turn(30 * 24 * 3600.0)
    collect(office, look=fails(ModelCallError("overloaded_error", "busy", status=529)))
    assert office.batches("outcome") == [("lost",)]


def test_results_that_end_early_are_read_again(office: Office) -> None:
    def cut(*given: Any) -> Any:
        return list(office.api.results(*given))[:1]

    office.submit(COUNT)
    office.round()
    collect(office, results=cut)
    (detail,) = office.batches("detail")[0]
    assert detail.endswith("incomplete: 1 of 3")
    assert office.states() == {"waiting batch": COUNT - 1, "queued": 1}
    office.clock.turn(60.0)
    office.finish()
    assert office.states() == ALL_SUCCEEDED
    assert office.paid() == PAID_ONCE


def test_a_batch_that_cannot_be_read_holds_up_no_other(office: Office) -> None:
    office.submit(COUNT)
    office.round(seconds=1.0)
    office.submit(COUNT, name="another")
    office.work()
    office.clock.turn(60.0)
    collect(office, look=fails(ValueError("a bug")))
    assert office.batches("count", "detail") == [(COUNT, "a bug"), (COUNT, "")]
    office.clock.turn(60.0)
    office.finish()
    assert office.states() == {"succeeded end_turn": 2 * COUNT}


def test_a_call_whose_request_cannot_be_made_holds_up_no_other(office: Office) -> None:
    office.submit(COUNT)
    office.work()
    collector, (first, *_) = office.collector(), office.run_ids()
    look = collector.look
    collector.look = lambda run_id: fails(KeyError("a bug"))() if run_id == first else look(run_id)
    collector.collect()
    assert office.batches("count") == [(COUNT - 1,)]
    assert office.states() == {"waiting batch": COUNT - 1, "queued": 1}
    office.finish()
    assert office.states() == ALL_SUCCEEDED


def test_an_adopted_batch_is_not_cancelled_as_it_may_be_anothers(office: Office) -> None:
    office.server.shelf.faults.append(CreateFault(RESET, made=False))
    job = office.submit(COUNT)
    office.make_another(COUNT)
    office.round(seconds=1.0)
    office.round(seconds=1.0)
    assert office.batches("adopted") == [(True,)]
    control.cancel(office.database, all_runs(job), office.clock.now())
    office.clock.turn(10.0)
    office.round()
    (another,) = office.server.shelf.batches.values()
    assert another.cancelled_at is None


# --- The cache ---

PREFIX = "By these rules. " * 400


@pytest.mark.slow
def test_one_call_goes_alone_before_a_wave_whose_prefix_is_no_longer_cached(
    open_office: Opened,
) -> None:
    office = open_office()
    office.submit(COUNT + 3, system=PREFIX)
    for _ in range(2):
        office.round()
    office.work()
    office.clock.turn(2 * 3600.0)  # no worker is alive
    office.collector()  # its lease is renewed
    collector = office.collector()
    for _ in range(3):
        collector.collect()
        office.work()
    alone = [(each.first_text, each.position) for each in office.server.requests]
    assert [turn for _, turn in alone] == [0, 1]
    batches = list(office.server.shelf.batches.values())
    assert [len(each.requests) for each in batches] == [COUNT + 3, COUNT + 1]


def test_no_call_goes_alone_while_the_prefix_is_cached(office: Office) -> None:
    office.submit(COUNT + 3, system=PREFIX)
    office.finish()
    assert len(office.server.requests) == 1


# --- Errors that concern one job ---


def test_a_job_that_cannot_be_read_holds_up_no_other(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    broken = office.submit(COUNT)
    office.work()
    change = update(jobs_table).where(jobs_table.c.id == broken)
    (spec,) = office.database.rows(select(jobs_table.c.spec).where(jobs_table.c.id == broken))
    office.database.execute(change.values(spec={"of": "a later version"}))
    office.submit(COUNT, name="another")
    caplog.clear()
    collector = office.collector()
    office.database.execute(change.values(spec=spec.spec))
    office.work()
    office.database.execute(change.values(spec={"of": "a later version"}))
    for _ in range(3):
        collector.collect()
    assert [count for (count,) in office.batches("count")] == [COUNT]
    said = [each.message for each in caplog.records if broken in each.message]
    assert len(said) == 1
    office.database.execute(change.values(spec=spec.spec))
    collector.collect()
    assert [count for (count,) in office.batches("count")] == [COUNT, COUNT]


def test_a_refusal_for_now_holds_up_only_the_jobs_of_its_kind(office: Office) -> None:
    office.submit(COUNT)
    office.work()
    busy = Break("status", status=429, headers={"retry-after": "3000"})
    office.server.shelf.faults.append(CreateFault(busy, made=False))
    collector = office.collector()
    collector.collect()
    office.submit(COUNT, name="another", model_options={"betas": ["a-beta"]})
    office.work()
    collector.collect()
    assert office.batches("outcome") == [("refused",), (None,)]


def test_batches_go_on_if_the_api_does_not_name_a_known_organization(office: Office) -> None:
    office.submit(COUNT)
    office.round()
    busy = ModelCallError("overloaded_error", "busy", status=529)
    for _ in range(4):
        collect(office, organization=fails(busy))
        office.work()
        office.clock.turn(BATCH_SECONDS)
    assert office.states() == ALL_SUCCEEDED


def test_a_worker_with_a_wrong_key_leaves_the_batches_to_others(office: Office) -> None:
    office.submit(COUNT)
    office.round()
    wrong = ModelCallError("authentication_error", "wrong key", status=401)
    with pytest.raises(ModelCallError):
        collect(office, organization=fails(wrong))
    office.finish("worker_b")
    assert office.states() == ALL_SUCCEEDED


def test_a_worker_whose_key_is_revoked_fails_no_call_and_leaves_the_batches_to_others(
    office: Office,
) -> None:
    office.submit(COUNT)
    office.work()
    office.clock.turn(120.0)
    wrong = ModelCallError("authentication_error", "revoked", status=401, billed=False)
    collector = office.collector()
    for method in ("create", "organization"):
        faulty: Any = Faulty(office.api, **{method: fails(wrong)})
        collector.api = lambda api=faulty: api
        with pytest.raises(ModelCallError):
            collector.collect()
    office.finish("worker_b")
    assert office.states() == ALL_SUCCEEDED


@pytest.mark.parametrize(
    "fault",
    [
        ModelCallError("authentication_error", "revoked", status=401, billed=False),
        ModelCallError("connection", "no route to host", billed=False),
    ],
)
def test_a_host_that_cannot_call_the_api_leaves_the_batches_to_others_while_it_lives(
    office: Office, fault: ModelCallError
) -> None:
    office.submit(COUNT)
    office.work()
    office.clock.turn(120.0)
    collector, other = office.collector(), office.collector("worker_b")
    for method in ("create", "organization"):
        faulty: Any = Faulty(office.api, **{method: fails(fault)})
        collector.api = lambda api=faulty: api
        with pytest.raises(ModelCallError):
            collector.collect()
    other.collect()
    assert len([id for (id,) in office.batches("api_id") if id is not None]) == 1


def test_a_key_that_is_refused_to_the_collector_is_told_to_the_worker(office: Office) -> None:
    office.submit(COUNT)
    office.work()
    office.clock.turn(120.0)
    wrong = ModelCallError("authentication_error", "revoked", status=401, billed=False)
    collector, told = office.collector(), list[tuple[KeyRefused, str]]()
    apis = [Faulty(office.api, **{name: fails(wrong)}) for name in ("create", "organization")]
    collector.api = lambda: apis[0]  # type: ignore[assignment, return-value]

    def tell(refused: KeyRefused, fault: str) -> None:
        told.append((refused, fault))
        office.ports.stopping.set()

    collector.key_refused = tell
    collector.run()
    ((refused, fault),) = told
    assert fault.startswith("the API refuses this host's key for anthropic (revoked): ")
    assert not refused.persists()
    apis.pop(0)
    assert refused.persists()


@pytest.mark.slow
def test_a_run_that_cannot_be_looked_at_before_a_warm_up_holds_up_no_other_job(
    open_office: Opened,
) -> None:
    office = open_office()
    broken = office.submit(COUNT + 3, system=PREFIX)
    for _ in range(2):
        office.round()
    office.work()
    office.clock.turn(2 * 3600.0)  # no worker is alive
    office.submit(COUNT, name="another")
    office.work()
    office.collector()  # its lease is renewed
    collector = office.collector()
    look, mine = collector.look, set(office.run_ids())
    query = select(run_table.c.id).where(run_table.c.job_id == broken)
    bad = {row.id for row in office.database.rows(query)} & mine
    collector.look = lambda run_id: fails(KeyError("a bug"))() if run_id in bad else look(run_id)
    before = len(office.batches("count"))
    collector.collect()
    assert [count for (count,) in office.batches("count")][before:] == [COUNT]


def test_a_corrected_charge_lets_the_runs_go_on_that_wait_for_the_budget(office: Office) -> None:
    probe = office.submit(2, budget=Budget(usd=10.0))
    office.work()
    held = max(cost for cost, is_batch in office.reservations() if is_batch)
    control.cancel(office.database, all_runs(probe), office.clock.now())
    job = office.submit(2, name="another", budget=Budget(usd=1.5 * held / 10**9))
    office.work()
    waiting = select(run_table.c.id).where(run_table.c.job_id == job)
    ((first,),) = office.database.rows(waiting.where(run_table.c.reason == "batch"))
    office.collector().collect()
    control.cancel(office.database, Target("run", first), office.clock.now())
    assert office.work() == []  # the charge leaves no room
    for _ in range(3):
        office.round()
    assert office.states() == {"cancelled cancelled": 3, "queued": 1}

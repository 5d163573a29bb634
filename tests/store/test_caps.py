"""The cap of a day on all jobs together."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import insert, select, update

from runner.core.budget import BILLIONTHS, DayCap, Reservation
from runner.core.commands import Target
from runner.core.conversation import Usage
from runner.core.run import Author, Requeued
from runner.core.steps import CallModel, Done
from runner.core.times import bounds_of, day_of
from runner.errors import UsageError
from runner.store import caps, due_runs, leases
from runner.store.budgets import set_budget
from runner.store.control import cancel, pause, resume
from runner.store.database import Database
from runner.store.journal import StoredJournal
from runner.store.tables import capped_days, events
from runner.store.tables import runs as run_table
from runner.store.write_offs import write_off
from tests.postgres import waiting_for_locks
from tests.store.asked import priced, submit_budgeted
from tests.store.attempts import WORKER, claim, decide, event_types, run_row, text, tool_use
from tests.store.attempts import Attempt as AnAttempt
from tests.store.examples import NOW
from tests.store.test_depth_first import counted

ADA = Author("ada", "The month is tight.")
BERLIN = "Europe/Berlin"
MIDNIGHT = bounds_of(day_of(NOW, BERLIN))[1]


def take(database: Database, run_id: str, now: float = NOW) -> AnAttempt:
    return claim(database, run_id, now, priced)


def set_cap(database: Database, usd: float | None, now: float = NOW, **options: Any) -> Any:
    given = {"zone": BERLIN, "spent": 0, "author": ADA} | options
    return caps.set_cap(database, now, usd, **given)


def cap_now(database: Database, now: float = NOW) -> DayCap:
    row = caps.cap_row(database)
    assert row is not None
    return caps.cap_at(row, now)


def sums(database: Database, now: float = NOW) -> tuple[int, int]:
    budget = cap_now(database, now).budget
    return budget.spent_cost, budget.reserved_cost


def past(database: Database, now: float = NOW) -> Any:
    query = select(capped_days).where(capped_days.c.day == day_of(now, BERLIN))
    return database.read(lambda connection: connection.execute(query).one())


def reserved(attempt: AnAttempt) -> Reservation:
    assert isinstance(attempt.effect, CallModel), attempt.effect
    return attempt.effect.call.reservation


def worst_cost(database: Database) -> float:
    """Return the most that a first call can cost, in USD."""
    _, (run_id,) = submit_budgeted(database, "probe")
    cost = reserved(take(database, run_id)).worst_cost
    cancel(database, Target("run", run_id), NOW)
    return cost / BILLIONTHS


def test_a_call_is_reserved_and_charged_though_its_job_has_no_budget(database: Database) -> None:
    _, (run_id,) = submit_budgeted(database, "a")
    set_cap(database, 5.0)
    attempt = take(database, run_id)
    call = reserved(attempt)
    assert call.day == f"{datetime.fromtimestamp(NOW, ZoneInfo(BERLIN)):%Y-%m-%d} {BERLIN}"
    assert sums(database) == (0, call.worst_cost) != (0, 0)
    attempt.reply(text("Done."), usage=Usage(100, 0, 0, 10))
    assert sums(database) == (100 * 3_000 + 10 * 15_000, 0)


def test_a_run_without_room_is_queued_until_midnight_of_the_zone(database: Database) -> None:
    _, (first, second) = submit_budgeted(database, "a", "b")
    set_cap(database, worst_cost(database) * 1.5)
    working = take(database, first)
    later = take(database, second)
    assert later.effect == Done(Requeued(NOW + 2, "budget"))  # the other may give back
    working.reply(tool_use(1), stop="tool_use", usage=Usage(0, 0, 0, 40_000))
    assert take(database, second, NOW + 2).effect == Done(Requeued(MIDNIGHT, "cap"))
    row = run_row(database, second)
    assert (row.state, row.reason, row.due_at, row.worker_id) == ("queued", "cap", MIDNIGHT, None)
    assert caps.waiting_for_cap(database, NOW + 2) == (1, MIDNIGHT)
    assert second not in due_runs.due_to_notify(database, 9, MIDNIGHT - 1)
    assert second in due_runs.due_to_notify(database, 9, MIDNIGHT)
    assert reserved(take(database, second, MIDNIGHT)).day == day_of(MIDNIGHT, BERLIN)


def test_a_call_that_ends_the_next_day_is_charged_to_the_day_it_began(database: Database) -> None:
    _, (first, second) = submit_budgeted(database, "a", "b")
    set_cap(database, 5.0)
    slow, lost = take(database, first), take(database, second)
    cost = reserved(lost).worst_cost
    slow.now = MIDNIGHT + 5
    slow.reply(text("Done."), usage=Usage(100, 0, 0, 10))
    assert sums(database, MIDNIGHT + 5) == (0, 0)
    day = past(database)
    assert (day.usd, day.spent_cost, day.reserved_cost) == (5.0, 450_000, cost)
    leases.take_from(database, [WORKER], MIDNIGHT + 9)
    day = past(database)
    assert (day.spent_cost, day.reserved_cost) == (450_000 + cost, 0)
    assert sums(database, MIDNIGHT + 9) == (0, 0)
    (shown,) = caps.days_before(database, cap_now(database, MIDNIGHT).day)
    assert shown["spent_cost"] == 450_000 + cost


@pytest.mark.parametrize("loses", ["taken", "cancelled"])
def test_a_call_of_unknown_usage_is_charged_to_the_cap(database: Database, loses: str) -> None:
    _, (run_id,) = submit_budgeted(database, "a")
    set_cap(database, 5.0)
    cost = reserved(take(database, run_id)).worst_cost
    if loses == "taken":
        leases.take_from(database, [WORKER], NOW)
    else:
        cancel(database, Target("run", run_id), NOW)
    assert sums(database) == (cost, 0)


@pytest.mark.parametrize("days_later", [0, 1])
def test_a_write_off_releases_what_the_day_of_the_call_was_charged(
    database: Database, days_later: int
) -> None:
    job_id, (first, second) = submit_budgeted(database, "a", "b")
    cost = worst_cost(database)
    set_cap(database, cost * 1.5)
    take(database, first)
    leases.take_from(database, [WORKER], NOW)
    assert take(database, second).effect == Done(Requeued(MIDNIGHT, "cap"))
    now = NOW + days_later * 86_400
    if days_later:
        reserved(take(database, second, now)), cancel(database, Target("run", second), now)
    before = sums(database, now)
    _, woken = write_off(database, job_id, now, author=ADA, call=(first, 1))
    if days_later:
        assert sums(database, now) == before
        assert past(database).spent_cost == 0
    else:
        assert sums(database) == (0, 0) != before
        assert [change.id for change in woken] == [second]
        reserved(take(database, second))


def test_a_write_off_of_an_imported_run_releases_nothing_of_the_day(database: Database) -> None:
    job_id, (run_id,) = submit_budgeted(database, "a")
    set_cap(database, 5.0)
    take(database, run_id)
    leases.take_from(database, [WORKER], NOW)
    before = sums(database)
    last = len(event_types(database, run_id)) + 1
    row = {"run_id": run_id, "number": last, "attempt": 1, "at": NOW, "type": "imported"}
    database.execute(insert(events).values(**row, data={}))
    database.execute(update(run_table).values(event_count=last))
    write_off(database, job_id, NOW, author=ADA)
    assert sums(database) == before != (0, 0)


@pytest.mark.parametrize("usd", [50.0, None])
def test_a_raised_or_removed_cap_wakes_the_runs_at_once(
    database: Database, usd: float | None
) -> None:
    _, (first, second) = submit_budgeted(database, "a", "b")
    set_cap(database, 0.0001)
    for run_id in (first, second):
        assert take(database, run_id).effect == Done(Requeued(MIDNIGHT, "cap"))
    woken = set_cap(database, usd, NOW + 3)
    assert [change.id for change in woken] == [first, second]
    assert due_runs.due_to_notify(database, 9, NOW + 3) == [first, second]
    assert isinstance(take(database, first, NOW + 3).effect, CallModel)
    query = select(events.c.data).where(events.c.run_id == first, events.c.type == "resumed")
    (data,) = database.read(lambda connection: connection.execute(query).scalars().all())
    assert (data["by"], data["why"], data["reason"]) == ("ada", "The month is tight.", "cap")
    assert data["old"]["cap"]["usd"] == 0.0001
    assert data["new"]["cap"]["usd"] == usd


def test_changes_of_the_cap_are_recorded_with_who_and_why(database: Database) -> None:
    set_cap(database, 5.0)
    set_cap(database, 9.0, NOW + 1, author=Author("bo"))
    set_cap(database, None, NOW + 2)
    row = caps.cap_row(database)
    assert row is not None
    told = [(each["by"], each["why"], each["at"]) for each in row.changes]
    why = "The month is tight."
    assert told == [("ada", why, NOW), ("bo", "", NOW + 1), ("ada", why, NOW + 2)]
    assert [each["new"]["usd"] for each in row.changes] == [5.0, 9.0, None]
    assert row.changes[1]["old"]["usd"] == 5.0
    with pytest.raises(UsageError, match=r"no cap is set.*--all"):
        set_cap(database, None)


def test_a_call_under_way_when_the_cap_is_removed_still_gives_back(database: Database) -> None:
    _, (first, second) = submit_budgeted(database, "a", "b")
    set_cap(database, 5.0)
    attempt = take(database, first)
    assert sums(database)[1] > 0
    set_cap(database, None)
    attempt.reply(text("Done."), usage=Usage(100, 0, 0, 10))
    assert sums(database) == (450_000, 0)
    assert reserved(take(database, second)).day == ""


def test_a_new_cap_begins_with_what_the_day_has_cost(database: Database) -> None:
    _, (run_id,) = submit_budgeted(database, "a")
    set_cap(database, 5.0, spent=4 * BILLIONTHS)
    assert sums(database) == (4 * BILLIONTHS, 0)
    set_cap(database, 6.0, spent=9 * BILLIONTHS)  # counted by the cap itself by now
    assert sums(database) == (4 * BILLIONTHS, 0)
    set_cap(database, 1.0)  # less than the day has cost: nothing more begins today
    assert take(database, run_id).effect == Done(Requeued(MIDNIGHT, "cap"))


def test_another_zone_has_other_days(database: Database) -> None:
    set_cap(database, 5.0, spent=100)
    moved = {"zone": "Pacific/Kiritimati", "spent": 40}
    set_cap(database, 5.0, **moved)
    assert cap_now(database).day == day_of(NOW, "Pacific/Kiritimati")
    assert sums(database) == (40, 0)
    set_cap(database, 5.0)
    assert sums(database) == (100, 0)
    assert past(database).spent_cost == 100


def test_no_day_comes_again_for_a_clock_that_is_behind(database: Database) -> None:
    _, (first, second) = submit_budgeted(database, "a", "b")
    set_cap(database, 5.0)
    ahead = reserved(take(database, first, MIDNIGHT + 1))
    behind = reserved(take(database, second, MIDNIGHT - 1))
    assert ahead.day == behind.day == day_of(MIDNIGHT, BERLIN)


def test_a_claim_reads_nothing_of_the_cap_and_a_call_few_statements(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ids = submit_budgeted(database, "a", "b", "c")
    take(database, ids[0]).reply(text("Done."))  # reads the job once for all
    counts = []
    for run_id in ids[1:]:
        due = due_runs.look_at(database, run_id, NOW)
        assert due is not None
        with counted(monkeypatch) as claimed:
            lease = due_runs.claim(database, due, WORKER, NOW)
        assert lease is not None
        with counted(monkeypatch) as called:
            journal = StoredJournal(database, lambda: NOW, priced)
            state, effect = journal.commit(lease, journal.load(lease), (), decide)
            AnAttempt(database, lease, state, effect, NOW, priced).reply(text("Done."))
        counts.append((len(claimed), len(called)))
        set_cap(database, 50.0)
    (claims, calls), (claims_capped, calls_capped) = counts
    assert claims_capped == claims
    # Each commit of a call locks the cap, and the first looks again under the lock.
    assert calls_capped - calls <= 5


def test_a_budget_and_the_cap_both_hold(database: Database) -> None:
    job_id, (run_id,) = submit_budgeted(database, "a", usd=0.0001)
    set_cap(database, 0.0001)
    take(database, run_id)
    assert (run_row(database, run_id).state, run_row(database, run_id).reason) == (
        "waiting",
        "budget",
    )
    set_budget(database, job_id, NOW, author=ADA, usd=90.0)
    assert take(database, run_id).effect == Done(Requeued(MIDNIGHT, "cap"))


def test_a_run_that_waits_for_the_cap_can_be_paused_and_cancelled(database: Database) -> None:
    _, (first, second) = submit_budgeted(database, "a", "b")
    set_cap(database, 0.0001)
    take(database, first), take(database, second)
    (change,) = pause(database, Target("run", first), NOW)
    assert (change.state, run_row(database, first).reason) == ("waiting", "paused")
    cancel(database, Target("run", second), NOW)
    assert set_cap(database, 50.0) == []
    resume(database, Target("run", first), NOW)
    assert isinstance(take(database, first).effect, CallModel)


def test_a_model_without_a_price_begins_no_call_under_a_cap(database: Database) -> None:
    _, (run_id,) = submit_budgeted(database, "a")
    set_cap(database, 5.0)
    claim(database, run_id, NOW, lambda spec: {})
    assert run_row(database, run_id).reason == "no_price"


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_a_run_that_begins_to_wait_while_the_cap_is_raised_is_woken(
    database: Database, open_database: Callable[[], Database]
) -> None:
    _, (run_id,) = submit_budgeted(database, "a")
    set_cap(database, 0.0001)
    due = due_runs.look_at(database, run_id, NOW)
    assert due is not None
    lease = due_runs.claim(database, due, WORKER, NOW)
    assert lease is not None
    person, watcher = open_database(), open_database()
    raised: list[Future[Any]] = []

    def decides(state: Any, now: float) -> Any:
        if state.money.cap is not None and not raised:  # it is locked
            raised.append(pool.submit(set_cap, person, 50.0))
            while not waiting_for_locks(watcher):
                assert not raised[0].done()
        return decide(state, now)

    journal = StoredJournal(database, lambda: NOW, priced)
    with ThreadPoolExecutor(1) as pool:
        _, effect = journal.commit(lease, journal.load(lease), (), decides)
        assert effect == Done(Requeued(MIDNIGHT, "cap"))
        assert [change.id for change in raised[0].result()] == [run_id]
    assert run_row(database, run_id).due_at == NOW

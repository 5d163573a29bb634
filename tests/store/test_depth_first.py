"""Items of a job begin only while what is left covers the begun ones, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, update

from runner.core.budget import Budget, billionths
from runner.core.commands import Target
from runner.core.conversation import Usage
from runner.core.run import BEGUN, FRESH, UNKNOWN
from runner.core.shares import JobLoad
from runner.core.spec import JobSpec
from runner.core.times import Times, Window
from runner.queries.jobs import that_may_wait
from runner.store import control, depth_first, due_runs, jobs, statements
from runner.store.budgets import set_budget, wake_overdue
from runner.store.caps import set_cap
from runner.store.database import Database
from runner.store.depth_first import HeldBy, held_back, items_of
from runner.store.retry import retry
from runner.store.specs import JobCache
from runner.store.tables import day_cap
from runner.store.tables import jobs as job_table
from runner.store.tables import runs as run_table
from tests.store.attempts import USAGE, Attempt, claim, event_types, run_row, text, tool_use
from tests.store.children.family import PARENT, WAITS, start
from tests.store.examples import NOW, SPEC, submission
from tests.store.test_order_plans import QUEUED, add_runs, visited

pytestmark = pytest.mark.dialect

ITEM = 100_000  # tokens
USED = Usage(input_tokens=ITEM)
LIMITS = replace(SPEC.limits, max_output_tokens=1_000)
BUDGETED = replace(SPEC, limits=LIMITS, budget=Budget(tokens=10 * ITEM))


def submit(database: Database, count: int, spec: JobSpec = BUDGETED) -> tuple[str, list[str]]:
    job_id = jobs.submit(database, submission(*map(str, range(count)), spec=spec), NOW)
    query = select(run_table.c.id).where(run_table.c.job_id == job_id)
    return job_id, [row.id for row in database.rows(query.order_by(run_table.c.id))]


def finish(database: Database, *run_ids: str, seconds: float = 0.0) -> None:
    for run_id in run_ids:
        claim(database, run_id).reply(text("Done."), usage=USED)
        progress = run_row(database, run_id).progress | {"worked": seconds}
        of_run = run_table.c.id == run_id
        database.execute(update(run_table).where(of_run).values(progress=progress))


def is_refused(database: Database, run_id: str) -> bool:
    run = due_runs.look_at(database, run_id, NOW)
    assert run is not None
    return due_runs.claim(database, run, "worker_1", NOW) is None


def half_done(database: Database, run_id: str) -> Attempt:
    half = Usage(input_tokens=ITEM // 2)
    return claim(database, run_id).reply(tool_use(1), stop="tool_use", usage=half)


def hold(database: Database, job_id: str, spec: JobSpec = BUDGETED, now: float = NOW) -> JobLoad:
    loads = depth_first.hold(database, JobCache(), due_runs.job_loads(database, 99, now), now)
    return next(load for load in loads if load.job_id == job_id)


def held(database: Database, job_id: str, now: float = NOW) -> dict[str, tuple[int, HeldBy]]:
    """Return the reasons for which ``runner list`` says that the job's runs wait."""
    return held_back(database, that_may_wait(database, [job_id]), now)


@pytest.mark.slow
def test_four_items_begin_until_three_have_finished(database: Database) -> None:
    _, ids = submit(database, 9)
    for run_id in ids[:4]:
        claim(database, run_id)
    assert is_refused(database, ids[4])
    run = run_row(database, ids[4])
    assert (run.state, run.attempt, run.started_at, run.rung_at) == ("queued", 0, None, None)


@pytest.mark.slow
def test_an_item_begins_only_while_the_budget_covers_the_begun_ones(database: Database) -> None:
    job_id, ids = submit(database, 12)
    finish(database, *ids[:6])  # 400,000 tokens are left
    half_done(database, ids[6])  # 350,000, and it needs 50,000
    assert hold(database, job_id).due == 3
    for run_id in ids[7:9]:
        half_done(database, run_id)  # 250,000, and they need 150,000
    assert hold(database, job_id).due == 1
    half_done(database, ids[9])  # 200,000, and they need 200,000
    assert is_refused(database, ids[10])
    assert hold(database, job_id).due == 0
    assert held(database, job_id) == {job_id: (2, "budget")}


@pytest.mark.slow
def test_retried_runs_count_as_begun_and_always_go_on(database: Database) -> None:
    _, ids = submit(database, 12)
    finish(database, *ids[:9])
    attempt = half_done(database, ids[9])
    control.cancel(database, Target("run", attempt.state.run_id), NOW)
    retry(database, Target("run", ids[9]), NOW)
    assert run_row(database, ids[9]).rank == BEGUN
    assert is_refused(database, ids[10])
    assert claim(database, ids[9]).lease.attempt > 1


@pytest.mark.slow
def test_items_wait_for_the_budget_when_nothing_in_progress_goes_on(database: Database) -> None:
    job_id, ids = submit(database, 12)
    finish(database, *ids[:9])
    control.pause(database, Target("run", half_done(database, ids[9]).state.run_id), NOW)
    assert hold(database, job_id).due == 0
    assert run_row(database, ids[10]).state == "queued"
    set_run(database, ids[9], state="waiting", reason="paused", worker_id=None)
    hold(database, job_id)
    for run_id in ids[10:]:
        run = run_row(database, run_id)
        assert (run.state, run.reason, run.attempt) == ("waiting", "budget", 0)
        assert "the rest of the budget is for started items" in run.detail
        assert event_types(database, run_id)[-1] == "waiting"
    assert not due_runs.unfinished(database, NOW)
    depth_first.wake_held(database, NOW)
    assert run_row(database, ids[10]).state == "waiting"
    changes = set_budget(database, job_id, NOW, author=UNKNOWN, tokens=30 * ITEM)
    assert {change.id for change in changes} == set(ids[10:])
    assert {run_row(database, run_id).rank for run_id in ids[10:]} == {FRESH}
    assert not is_refused(database, ids[10])


@pytest.mark.slow
def test_items_that_wait_begin_when_others_needed_less(database: Database) -> None:
    job_id, ids = submit(database, 12)
    finish(database, *ids[:9])
    half_done(database, ids[9])
    set_run(database, ids[9], state="waiting", reason="paused", worker_id=None)
    hold(database, job_id)
    assert held(database, job_id) == {job_id: (2, "budget")}
    control.cancel(database, Target("run", ids[9]), NOW)
    depth_first.wake_held(database, NOW)  # one always may, where none is in progress
    states = [run_row(database, run_id).state for run_id in ids[10:]]
    assert states == ["queued", "waiting"]


@pytest.mark.slow
def test_an_item_that_waits_ends_at_its_deadline(database: Database) -> None:
    spec = replace(BUDGETED, limits=replace(LIMITS, deadline=60.0))
    job_id, ids = submit(database, 12, spec)
    finish(database, *ids[:9])
    half_done(database, ids[9])
    set_run(database, ids[9], state="waiting", reason="paused", worker_id=None)
    hold(database, job_id, spec)
    assert set(ids[10:]) <= set(wake_overdue(database, JobCache(), NOW + 61))
    run = due_runs.look_at(database, ids[10], NOW + 61)
    assert run is not None
    assert due_runs.claim(database, run, "worker_1", NOW + 61) is not None


def set_run(database: Database, run_id: str, **values: Any) -> None:
    database.execute(update(run_table).where(run_table.c.id == run_id).values(**values))


def test_no_item_begins_that_would_not_end_before_finish_by(database: Database) -> None:
    job_id, ids = submit(database, 9, SPEC)
    finish(database, *ids[:3], seconds=600.0)
    of_job = update(job_table).where(job_table.c.id == job_id)
    assert that_may_wait(database, [job_id]) == []
    database.execute(of_job.values(finish_by=NOW + 601))
    assert hold(database, job_id, SPEC).due == 6
    database.execute(of_job.values(finish_by=NOW + 599))
    assert hold(database, job_id, SPEC).due == 1  # one always may
    half_done(database, ids[3])
    assert hold(database, job_id, SPEC).due == 0
    assert held(database, job_id) == {job_id: (5, "finish_by")}


def test_no_item_begins_that_would_not_end_before_the_window_closes(database: Database) -> None:
    window = Window("22:00", "23:30", "UTC")  # NOW is at 22:13:20
    spec = replace(SPEC, times=Times(window=window))
    job_id, ids = submit(database, 9, spec)
    finish(database, *ids[:3], seconds=3_600.0)
    half_done(database, ids[3])
    assert hold(database, job_id, spec).due == 5
    assert hold(database, job_id, spec, NOW + 1_800).due == 0
    assert held(database, job_id, NOW + 1_800) == {job_id: (5, "window")}
    for run_id in ids[:3]:  # longer than the whole window
        progress = run_row(database, run_id).progress | {"worked": 7_200.0}
        set_run(database, run_id, progress=progress)
    assert hold(database, job_id, spec, NOW + 1_800).due == 5


def test_no_item_begins_that_the_cap_of_the_day_does_not_cover(database: Database) -> None:
    job_id, ids = submit(database, 12, SPEC)
    set_cap(database, NOW, 1.0, "UTC", 0, author=UNKNOWN)
    assert hold(database, job_id, SPEC).due == 12  # until three have finished
    finish(database, *ids[:3])
    money = run_row(database, ids[0]).progress["money"] | {"charged_cost": billionths(0.1)}
    for run_id in ids[:3]:
        set_run(database, run_id, progress=run_row(database, run_id).progress | {"money": money})
    spend = partial(update(day_cap).values, spent_cost=billionths(0.55))
    database.execute(spend())
    half_done(database, ids[3])  # 45 cents are left, and it needs ten of them
    assert hold(database, job_id, SPEC).due == 3
    assert held(database, job_id) == {}
    database.execute(spend(spent_cost=billionths(0.85)))
    assert hold(database, job_id, SPEC).due == 0
    assert held(database, job_id) == {job_id: (8, "cap")}
    assert hold(database, job_id, SPEC, NOW + 86_400).due == 8
    control.cancel(database, Target("run", ids[3]), NOW)
    assert hold(database, job_id, SPEC).due == 1  # one always may


@pytest.mark.slow
def test_two_workers_do_not_begin_items_on_the_same_money(database: Database) -> None:
    _, ids = submit(database, 13)
    finish(database, *ids[:8])
    half_done(database, ids[8])  # 150,000 are left, and it needs 50,000

    def begin(run_id: str) -> bool:
        return not is_refused(database, run_id)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(begin, ids[9:])) == 1


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Collects the statements that are executed while inside."""
    said: list[str] = []
    execute = statements._Compiled.execute

    def counting(self: Any, *arguments: Any) -> Any:
        said.append(self.text)
        return execute(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(statements._Compiled, "execute", counting)
        yield said


def test_a_claim_without_a_budget_executes_no_statement_more(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {}
    for name, spec in (("none", SPEC), ("budget", BUDGETED)):
        _, (run_id,) = submit(database, 1, spec)
        with counted(monkeypatch) as said:
            run = due_runs.look_at(database, run_id, NOW)
            assert run is not None
            assert due_runs.claim(database, run, "worker_1", NOW) is not None
        counts[name] = len(said)
    claimed = 1 if database.dialect == "postgresql" else 2  # with its event, or before it
    assert counts == {"none": 1 + claimed, "budget": 5 + claimed}  # the limits, budget and items


@pytest.mark.slow
@pytest.mark.parametrize("is_analyzed", [False, True])
def test_what_a_claim_reads_of_a_budgeted_job_does_not_grow_with_its_queue(
    database: Database, is_analyzed: bool
) -> None:
    job_id, ids = submit(database, 9)
    finish(database, *ids[:4])
    half_done(database, ids[5])
    add_runs(database, job_id, QUEUED, "queued")
    if is_analyzed:
        database.write(lambda connection: connection.exec_driver_sql("ANALYZE"))
    for query in (depth_first._OF_BEGUN, depth_first._OF_FINISHED):
        cost = database.write(lambda c, q=query: visited(c, q, {"job": job_id}))
        assert cost < 500
    items = database.read(lambda connection: items_of(connection, job_id))
    assert (len(items.begun), len(items.finished)) == (1, 4)


@pytest.mark.slow
def test_sub_agents_begin_and_what_they_spend_is_their_items(database: Database) -> None:
    spec = replace(
        PARENT,
        limits=replace(PARENT.limits, max_output_tokens=1_000, token_ceiling=9 * ITEM),
        budget=BUDGETED.budget,
    )
    job_id, ids = submit(database, 12, spec)
    finish(database, *ids[:9])
    parent = start(database, spec=spec, run_id=ids[9])
    child_id = f"{parent.state.run_id}.1"
    assert parent.effect == WAITS
    assert hold(database, job_id, spec).fresh == 0
    assert is_refused(database, ids[10])
    claim(database, child_id).reply(text("Fine."), usage=Usage(input_tokens=ITEM // 2))
    items = database.read(lambda connection: items_of(connection, job_id))
    assert [item.tokens for item in items.begun] == [ITEM // 2 + USAGE.total]
    set_run(database, ids[9], ended_at=NOW, state="succeeded", reason="end_turn", due_at=None)
    items = database.read(lambda connection: items_of(connection, job_id))
    assert sorted(item.tokens for item in items.finished)[0] == ITEM // 2 + USAGE.total

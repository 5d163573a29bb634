"""The order of work: which due runs are next, and how many runs of a job may be worked on at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import select, update

from runner.core.commands import Target
from runner.core.conversation import ToolResult
from runner.core.decide import advance
from runner.core.entries import ToolFinished
from runner.core.run import FRESH, Author
from runner.core.shares import Shares
from runner.core.spec import JobSpec
from runner.core.workspace import Workspace
from runner.errors import NotFoundError
from runner.queries.timeline import changes_of_job
from runner.store import control, due_runs, jobs, leases, retry
from runner.store.database import Database
from runner.store.jobs import priority_of, set_priority
from runner.store.journal import StoredJournal
from runner.store.tables import job_shares
from runner.store.tables import runs as run_table
from tests.store.attempts import WORKER, claim, free, run_row, submit_one, text, tool_use
from tests.store.children.family import asks, start
from tests.store.examples import NOW, SPEC, submission

pytestmark = pytest.mark.dialect

LATER = NOW + 60


def submit(
    database: Database, count: int, spec: JobSpec = SPEC, workspace: str | None = None
) -> str:
    keys = [f"item {number}" for number in range(count)]
    return jobs.submit(database, submission(*keys, spec=spec), NOW, None, workspace)


def runs_of(database: Database, job_id: str) -> list[str]:
    query = select(run_table.c.id).where(run_table.c.job_id == job_id).order_by(run_table.c.id)
    return [row.id for row in database.rows(query)]


def next_runs(database: Database, most: int, now: float = LATER) -> list[str]:
    return due_runs.due_to_notify(database, most, now)


def jobs_of(database: Database, run_ids: list[str]) -> Counter[str]:
    return Counter(run_row(database, run_id).job_id for run_id in run_ids)


def lose(database: Database, run_id: str) -> None:
    claim(database, run_id)
    assert leases.take_from(database, [WORKER], LATER) == [run_id]


def give_back(database: Database, run_id: str) -> None:
    leases.give_back(database, claim(database, run_id).lease, LATER)


def drain(database: Database, run_id: str) -> None:
    attempt = claim(database, run_id).reply(tool_use(1), stop="tool_use")
    journal = StoredJournal(database, lambda: LATER, free)
    read = [ToolFinished(0, ToolResult("text"))]
    journal.commit(attempt.lease, attempt.state, read, partial(advance, draining=True))


def pause_and_resume(database: Database, run_id: str) -> None:
    attempt = claim(database, run_id).reply(tool_use(1), stop="tool_use")
    control.pause(database, Target("run", run_id), NOW)
    attempt.finish("text")
    control.resume(database, Target("run", run_id), LATER)


@pytest.mark.parametrize("interrupt", [lose, give_back, drain, pause_and_resume])
def test_an_interrupted_run_comes_before_the_runs_of_all_jobs(
    database: Database, interrupt: Callable[[Database, str], None]
) -> None:
    submit(database, 5, replace(SPEC, priority=100.0))
    run_id = submit_one(database)
    interrupt(database, run_id)
    assert run_row(database, run_id).state == "queued"
    assert next_runs(database, 3)[0] == run_id


def test_a_run_that_was_paused_before_it_began_is_not_interrupted(database: Database) -> None:
    run_id = submit_one(database)
    control.pause(database, Target("run", run_id), NOW)
    control.resume(database, Target("run", run_id), NOW)
    assert run_row(database, run_id).rank == FRESH


def test_within_a_job_begun_runs_are_first_then_the_order_of_items(database: Database) -> None:
    job_id = submit(database, 5)
    first, second, third, fourth, fifth = runs_of(database, job_id)
    claim(database, third).fail("api_error", "gone")
    retry.retry(database, Target("run", third), LATER)
    assert next_runs(database, 2) == [third, first]
    assert next_runs(database, 9) == [second, fourth, fifth]


def test_a_sub_agent_comes_before_runs_that_have_not_begun(database: Database) -> None:
    family = start(database, asks(1))
    child = f"{family.state.run_id}.1"
    job_id = run_row(database, child).job_id
    fresh = submit_one(database)
    database.execute(update(run_table).where(run_table.c.id == fresh).values(job_id=job_id))
    assert next_runs(database, 9) == [child, fresh]


@pytest.mark.slow
def test_free_slots_are_shared_between_a_large_job_and_one_behind_it(database: Database) -> None:
    large, small = submit(database, 40), submit(database, 3)
    assert jobs_of(database, next_runs(database, 8)) == {large: 5, small: 3}
    heavy = submit(database, 40, replace(SPEC, priority=16.0))
    for run_id in next_runs(database, 5):
        claim(database, run_id, LATER)
    assert jobs_of(database, next_runs(database, 9))[heavy] == 9


@pytest.mark.slow
def test_a_single_slot_goes_round_among_jobs(database: Database) -> None:
    ids = [submit(database, 9) for _ in range(3)]
    shares, served = Shares(), []
    for _ in range(6):
        (run_id,) = due_runs.due_to_notify(database, 1, LATER, shares)
        claim(database, run_id, LATER).reply(text("Done."))
        served.append(run_row(database, run_id).job_id)
    assert served == [*ids, *ids]


def test_runs_that_are_due_later_wait_in_no_ones_way(database: Database) -> None:
    later, now = submit(database, 9), submit(database, 2)
    database.execute(update(run_table).where(run_table.c.job_id == later).values(due_at=LATER + 9))
    assert jobs_of(database, next_runs(database, 9)) == {now: 2}
    assert due_runs.job_loads(database, 9, NOW - 1) == []


def test_a_lost_queue_message_frees_its_run_after_a_while(database: Database) -> None:
    submit(database, 2)
    sent = next_runs(database, 2, NOW)
    assert next_runs(database, 2, NOW + 14) == []
    due_runs.forget_lost_messages(database, NOW + 14)
    assert next_runs(database, 2, NOW + 14) == []
    due_runs.forget_lost_messages(database, NOW + 16)
    assert next_runs(database, 2, NOW + 16) == sent
    due_runs.forget_lost_messages(database, NOW)  # the clock was set back
    assert next_runs(database, 2, NOW) == sent


@pytest.fixture
def others(empty_url: str, database: Database) -> Iterator[list[Database]]:
    """Other workers' connections."""
    opened = [Database(empty_url) for _ in range(4)]
    yield opened
    for each in opened:
        each.close()


def at_once(work: Callable[[Database], list[str]], databases: list[Database]) -> list[list[str]]:
    with ThreadPoolExecutor(len(databases)) as pool:
        return list(pool.map(work, databases))


@pytest.mark.slow
def test_workers_that_choose_at_the_same_time_never_choose_the_same_run(
    database: Database, others: list[Database]
) -> None:
    ids = [submit(database, 30), submit(database, 30)]

    def choose(own: Database) -> list[str]:
        shares = Shares()
        return [each for _ in range(5) for each in due_runs.due_to_notify(own, 3, LATER, shares)]

    chosen = [run_id for found in at_once(choose, others) for run_id in found]
    assert len(chosen) == len(set(chosen))
    assert set(jobs_of(database, chosen)) == set(ids)
    left = next_runs(database, 99)
    assert len(chosen) + len(left) == 60


LIMITED = replace(SPEC, max_concurrency=2)


def claimed(database: Database, run_ids: list[str]) -> list[str]:
    """Claim each run that can be claimed, and return their ids."""
    found = []
    for run_id in run_ids:
        run = due_runs.look_at(database, run_id, LATER)
        if run is not None and due_runs.claim(database, run, WORKER, LATER) is not None:
            found.append(run_id)
    return found


def test_no_more_runs_of_a_job_are_worked_on_than_it_allows(database: Database) -> None:
    job_id, other = submit(database, 5, LIMITED), submit(database, 5)
    ids = runs_of(database, job_id)
    assert jobs_of(database, next_runs(database, 9)) == {job_id: 2, other: 5}
    assert claimed(database, ids) == ids[:2]
    claim_of = {run.rung_at for run in map(partial(run_row, database), ids)}
    assert claim_of == {None}, "refused ones can be chosen again"
    assert next_runs(database, 9) == []


@pytest.mark.slow
def test_a_limit_does_not_leak_when_a_worker_dies(database: Database) -> None:
    job_id = submit(database, 5, LIMITED)
    ids = runs_of(database, job_id)
    for _ in range(3):
        claim(database, ids[0], LATER)
        claim(database, ids[1], LATER)
        assert claimed(database, ids) == []
        leases.take_from(database, [WORKER], LATER)
        assert next_runs(database, 9) == ids[:2]


@pytest.mark.slow
def test_a_limit_holds_when_workers_claim_at_the_same_time(
    database: Database, others: list[Database]
) -> None:
    claim(database, submit_one(database))  # registers the worker
    ids = runs_of(database, submit(database, 20, LIMITED))

    def mine(own: Database) -> list[str]:
        return claimed(own, ids[others.index(own) :: len(others)])

    assert sum(map(len, at_once(mine, others))) == 2


def folder(limit: int | None) -> JobSpec:
    return replace(SPEC, workspace=Workspace("/shared", max_concurrency=limit))


@pytest.mark.slow
def test_a_shared_folder_has_a_limit_across_jobs(
    database: Database, others: list[Database]
) -> None:
    ids = [submit(database, 4, folder(3), "ws_1"), submit(database, 4, folder(3), "ws_1")]
    elsewhere = submit(database, 4, folder(3), "ws_2")
    sent = jobs_of(database, next_runs(database, 20))
    assert sent[elsewhere] == 3
    mixed = [run_id for job_id in ids for run_id in runs_of(database, job_id)]

    def mine(own: Database) -> list[str]:
        return claimed(own, mixed[others.index(own) :: len(others)])

    assert sum(map(len, at_once(mine, others))) == 3
    assert next_runs(database, 20) == []


def test_a_priority_is_changed_for_the_runs_to_come_and_recorded(database: Database) -> None:
    job_id, other = submit(database, 40, replace(SPEC, priority=1.0)), submit(database, 40)
    assert (priority_of(database, job_id), priority_of(database, other)) == (1.0, 4.0)
    assert jobs_of(database, next_runs(database, 5)) == {job_id: 1, other: 4}
    due_runs.forget_lost_messages(database, LATER + 99)
    set_priority(database, job_id, 16.0, NOW, Author("ada", "the demo is today"))
    assert priority_of(database, job_id) == 16.0
    assert jobs_of(database, next_runs(database, 5)) == {job_id: 4, other: 1}
    changed = changes_of_job(database, job_id)[-1]
    told = {"by": "ada", "why": "the demo is today"}
    assert changed["type"] == "priority_changed"
    assert changed["data"] == {**told, "old": {"priority": 1.0}, "new": {"priority": 16.0}}
    with pytest.raises(NotFoundError):
        set_priority(database, "job_x", 1.0, NOW, Author("ada"))


def test_a_job_without_a_stored_share_has_a_normal_one(database: Database) -> None:
    job_id = submit(database, 2)
    database.execute(job_shares.delete())
    assert jobs_of(database, next_runs(database, 1)) == {job_id: 1}
    set_priority(database, job_id, 9.0, NOW, Author("ada"))
    assert priority_of(database, job_id) == 9.0


def test_a_worker_knows_before_it_claims_if_a_run_calls_the_api(database: Database) -> None:
    scripted = submission(spec=replace(SPEC, provider="scripted"))
    job_id = jobs.submit(database, scripted, NOW)
    assert not due_runs.calls_api(database)
    run_id = submit_one(database)
    assert due_runs.calls_api(database), "it is queued"
    assert not due_runs.calls_api(database, job_id)
    attempt = claim(database, run_id)
    assert due_runs.calls_api(database), "its worker may be dead"
    attempt.reply(text("Done."))
    assert not due_runs.calls_api(database), "it has ended"

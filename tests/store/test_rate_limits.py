"""The pools of rate limits in the database, shared by workers with leases."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select

from runner.core.rate_limits import (
    NOTHING,
    Caps,
    Demand,
    News,
    Observation,
    Pool,
    PoolKey,
    Refusal,
    Report,
    pool_of,
)
from runner.core.run import LEASE_SECONDS
from runner.store import leases
from runner.store.database import Database
from runner.store.rate_limits import MOST_EVENTS, RECENT_SECONDS, StoredRateLimits
from runner.store.tables import rate_events
from tests.store.examples import NOW

KEY = PoolKey("org_1", "sonnet-5")
TEN = News(Observation(NOW, {"requests": (500, 20)}))  # 10 less the spare part


def register(database: Database, *worker_ids: str) -> StoredRateLimits:
    for worker_id in worker_ids:
        about = {"hostname": "here", "host_id": worker_id, "pid": 1, "slots": 1, "version": "1"}
        leases.register(database, worker_id, now=NOW, **about)
    return StoredRateLimits(database)


def wants(calls: int) -> Report:
    return Report(NOTHING, 0, (Demand(4.0, calls, {**NOTHING, "requests": calls}),))


def ask(
    limits: StoredRateLimits, worker: str, calls: int, now: float = NOW, news: News | None = None
) -> int:
    return limits.exchange(worker, KEY, wants(calls), news or News(), Pool(), now).granted


def test_workers_share_what_one_of_them_heard(database: Database) -> None:
    limits = register(database, "a", "b")
    assert ask(limits, "a", 4, news=TEN) == 4
    assert ask(limits, "b", 9) == 6
    assert list(limits.known(NOW)) == [KEY]
    assert limits.known(NOW + RECENT_SECONDS) == {}


@pytest.mark.dialect
def test_what_a_worker_held_comes_back_when_its_lease_ends(database: Database) -> None:
    limits = register(database, "a", "b", "c")
    assert ask(limits, "a", 7, news=TEN) == 7
    leases.end(database, "a", NOW)
    assert ask(limits, "b", 8) == 8
    late = NOW + LEASE_SECONDS + 1
    leases.renew(database, "c", late)
    assert ask(limits, "c", 500, late) > 100, "b has not renewed its leases"


@pytest.mark.dialect
def test_permits_granted_at_once_are_not_granted_twice(database: Database) -> None:
    names = [f"w{number}" for number in range(8)]
    limits = register(database, *names)
    ask(limits, names[0], 0, news=TEN)
    together = threading.Barrier(len(names))

    def one(name: str) -> int:
        together.wait()
        return ask(limits, name, 3)

    with ThreadPoolExecutor(len(names)) as pool:
        assert sum(pool.map(one, names)) == 10


def test_a_pool_of_a_job_begins_with_the_limits_of_its_file(database: Database) -> None:
    limits = register(database, "a")
    first = pool_of(Caps(max_concurrent=2), NOW)
    key = PoolKey("", "job_1")
    assert limits.exchange("a", key, wants(5), News(), first, NOW).granted == 2
    assert limits.known(NOW) == {}, "it is nobody's organisation"


@pytest.mark.dialect
def test_what_happens_to_a_pool_is_stored_as_events_and_the_oldest_are_dropped(
    database: Database,
) -> None:
    limits = register(database, "a")
    refused = News(TEN.observation, (Refusal(NOW, NOW, 30.0),))
    ask(limits, "a", 0, news=refused)
    kinds = [row.type for row in database.rows(select(rate_events).order_by(rate_events.c.id))]
    assert kinds == ["limit_changed", "concurrency_lowered", "held_back"]
    more = {"at": NOW, "organisation": "o", "model_group": "g", "type": "held_back", "data": {}}
    database.write(lambda c: c.execute(rate_events.insert(), [more] * MOST_EVENTS))
    ask(limits, "a", 0, NOW + 60, News(refusals=(Refusal(NOW + 50, NOW + 60, 5.0),)))
    assert database.rows(select(func.count()).select_from(rate_events))[0][0] == MOST_EVENTS

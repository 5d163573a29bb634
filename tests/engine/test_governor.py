"""Permits for model calls: attempts over a real database, with a scripted model and the strict API."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update

from runner.core.conversation import ModelReply
from runner.core.rate_limits import Bucket, Caps, Pool, PoolKey, Shared
from runner.core.run import INTERRUPTED, Ended, Outcome, Requeued
from runner.core.spec import JobSpec
from runner.engine.attempt import Ports, run_attempt
from runner.engine.governor import Governor
from runner.errors import UnreachableError
from runner.llm.anthropic import AnthropicModel
from runner.llm.scripted import ScriptedModel
from runner.ports import Clock, Interrupt, RateLimits
from runner.store import due_runs, jobs, leases
from runner.store.database import Database, DatabaseClock
from runner.store.rate_limits import StoredRateLimits
from runner.store.tables import runs as run_table
from tests.engine.test_attempt import ports  # noqa: F401 - a fixture
from tests.messages_api import API_KEY, MessagesServer, Reply, text
from tests.messages_api import RateLimits as Limits
from tests.messages_api.rate_limits import Limited
from tests.store.examples import SPEC, submission

WORKER = "worker_a"


@contextmanager
def governing(
    database: Database,
    limits: RateLimits | None = None,
    clock: Clock | None = None,
    worker: str = WORKER,
) -> Iterator[Governor]:
    """A governor at work for a registered worker."""
    about = {"hostname": "here", "host_id": "here", "pid": 1, "slots": 1, "version": "1"}
    leases.register(database, worker, now=time.time(), **about)
    clock = clock or DatabaseClock(database)
    governor = Governor(limits or StoredRateLimits(database), clock)
    thread = threading.Thread(target=governor.run, args=(worker,))
    thread.start()
    try:
        yield governor
    finally:
        governor.stop()
        thread.join()


def work(database: Database, ports: Ports, spec: JobSpec, count: int) -> list[Outcome]:  # noqa: F811
    """The outcomes of so many runs of a job, worked side by side."""
    keys = [f"item{number}" for number in range(count)]
    jobs.submit(database, submission(*keys, spec=spec), time.time(), None, None)
    outcomes: list[Outcome] = []

    def one(run_id: str) -> None:
        outcomes.append(attempt(database, ports, run_id))

    due = due_runs.due_to_notify(database, count, time.time())
    threads = [threading.Thread(target=one, args=(run_id,)) for run_id in due]
    for thread in threads:
        thread.daemon = True
        thread.start()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive(), "a run waits for ever"
    return outcomes


def attempt(database: Database, ports: Ports, run_id: str) -> Outcome:  # noqa: F811
    """The outcome of a due run."""
    run = due_runs.look_at(database, run_id, time.time())
    assert run is not None
    lease = due_runs.claim(database, run, WORKER, time.time())
    assert lease is not None
    return run_attempt(lease, ports, Interrupt())


class Counting:
    """A scripted model that counts its calls, and how many are under way at once. No call ends before
    ``together`` were under way at once, or ``let_go`` is set."""

    def __init__(self, seconds: float, together: int = 1) -> None:
        self.calls = self.at_once = self.most = 0
        self.let_go = threading.Event()
        self._together = together
        self.items: list[str] = []  # of the calls, in order
        self._lock = threading.Lock()
        self._model = ScriptedModel({"*": [{"text": "Done.", "delay": seconds}]})

    def __call__(self, spec: JobSpec) -> Any:
        return self

    def window(self, model: str) -> None:
        return None

    def complete(self, *arguments: Any) -> ModelReply:
        with self._lock:
            self.items.append(arguments[0].item_key)
            self.calls += 1
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            if self.most >= self._together:
                self.let_go.set()
        self.let_go.wait(60.0)
        try:
            return self._model.complete(*arguments)
        finally:
            with self._lock:
                self.at_once -= 1


def scripted(**caps: int) -> JobSpec:
    return replace(SPEC, provider="scripted", script={"*": []}, caps=Caps(**caps))


DONE = Ended("succeeded", "end_turn")


@pytest.fixture
def patient_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run goes back to the queue because a busy machine lets it wait longer for its permit."""
    for module in ("model_calls", "retries"):
        monkeypatch.setattr(f"runner.core.{module}.IN_HAND_SECONDS", 60.0)


@pytest.mark.usefixtures("patient_runs")
def test_no_more_calls_of_a_job_are_under_way_than_its_file_says(
    database: Database,
    ports: Ports,  # noqa: F811
) -> None:
    model = Counting(0.05, together=2)
    with governing(database) as governor:
        governed = replace(ports, permits=governor, models=model)
        assert work(database, governed, scripted(max_concurrent=2), 5) == [DONE] * 5
    assert (model.calls, model.most) == (5, 2)


class SetBack(Counting, DatabaseClock):
    """The real clock, set back by an hour as the first call is made."""

    def __init__(self, database: Database) -> None:
        Counting.__init__(self, 0.05)
        DatabaseClock.__init__(self, database)

    def now(self) -> float:
        return super().now() - (3600.0 if self.calls else 0.0)


@pytest.mark.usefixtures("patient_runs")
def test_permits_flow_on_when_the_clock_is_set_back(
    database: Database,
    ports: Ports,  # noqa: F811
) -> None:
    model = SetBack(database)
    with governing(database, clock=model) as governor:
        governed = replace(ports, permits=governor, models=model)
        assert work(database, governed, scripted(max_concurrent=1), 3) == [DONE] * 3


class Refuses(Counting):
    """A model whose API asks each time to try again after some seconds."""

    def __init__(self, governor: Governor, seconds: float) -> None:
        super().__init__(0.0)
        self._governor, self._seconds = governor, seconds

    def complete(self, *arguments: Any) -> ModelReply:
        self._governor.answered(arguments[0].run_id, "host", {})
        self._governor.refused(arguments[0].run_id, self._seconds)
        return super().complete(*arguments)


def test_a_retry_after_holds_calls_back_for_an_hour_at_most(
    database: Database,
    ports: Ports,  # noqa: F811
) -> None:
    known = StoredRateLimits(database).known
    with governing(database) as governor:
        governed = replace(ports, permits=governor, models=Refuses(governor, 86_400.0))
        work(database, governed, replace(scripted(), provider="anthropic"), 1)
        while (
            not (held := [pool.held_until for pool in known(time.time()).values()]) or not held[0]
        ):
            time.sleep(0.01)
    assert held[0] < time.time() + 3601.0


def test_a_refusal_on_a_platform_holds_back_its_own_account_and_model_alone(
    database: Database,
    ports: Ports,  # noqa: F811
) -> None:
    known = StoredRateLimits(database).known
    there = replace(
        scripted(), provider="bedrock", model="eu.anthropic.claude-x", region="eu-west-1"
    )
    with governing(database) as governor:
        governed = replace(ports, permits=governor, models=Refuses(governor, 3_000.0))
        assert work(database, governed, there, 1) == [DONE]
        while not any(pool.held_until for pool in known(time.time()).values()):
            time.sleep(0.01)
        (key,) = known(time.time())
        assert key == PoolKey("bedrock/eu-west-1", "eu.anthropic.claude-x")
    with governing(database, worker="worker_b") as governor:  # learns what is known
        governed = replace(ports, permits=governor, models=Counting(0.0))
        for spec in (
            replace(there, region="us-east-1"),
            replace(there, model="eu.anthropic.claude-y"),
            replace(scripted(), provider="anthropic"),
        ):
            assert work(database, governed, spec, 1) == [DONE]
        (held,) = work(database, governed, there, 1)
        assert isinstance(held, Requeued)


@pytest.mark.slow
def test_a_run_that_waits_long_for_a_permit_goes_back_to_the_queue_without_a_failure(
    database: Database,
    ports: Ports,  # noqa: F811
) -> None:
    model, began = Counting(0.0), time.time()
    with governing(database) as governor:
        governed = replace(ports, permits=governor, models=model)
        outcomes = work(database, governed, scripted(max_requests_per_minute=2), 2)
    done, queued = sorted(outcomes, key=lambda each: isinstance(each, Requeued))
    assert done == DONE
    assert isinstance(queued, Requeued)
    assert queued.reason == "rate_limit"
    assert queued.due_at > began + 5.0
    assert model.calls == 1


@pytest.mark.slow
@pytest.mark.usefixtures("patient_runs")
def test_an_interrupted_run_gets_its_permit_before_those_that_wait_longer(
    database: Database,
    ports: Ports,  # noqa: F811
) -> None:
    model = Counting(0.0, together=2)
    spec = scripted(max_concurrent=1)
    job_id = jobs.submit(database, submission("a", "b", "c", spec=spec), time.time(), None, None)
    query = select(run_table.c.item_key, run_table.c.id).where(run_table.c.job_id == job_id)
    run_of: dict[str, str] = dict(map(tuple, database.rows(query)))
    interrupted = update(run_table).where(run_table.c.id == run_of["c"]).values(rank=INTERRUPTED)
    database.execute(interrupted)
    with governing(database) as governor:
        governed = replace(ports, permits=governor, models=model)
        threads = []
        for key in "abc":
            asked = governor.asked
            work_one = (database, governed, run_of[key])
            threads.append(threading.Thread(target=attempt, args=work_one))
            threads[-1].start()
            while governor.asked == asked or (key == "a" and not model.items):
                time.sleep(0.001)
        model.let_go.set()
        for thread in threads:
            thread.join()
    assert model.items == ["a", "c", "b"]


class Away:
    """A database that answers once, and then no more."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.asked = 0

    def known(self, now: float) -> dict[PoolKey, Pool]:
        return {PoolKey("org", "claude-test"): self.pool}

    def exchange(self, *arguments: Any) -> Shared:
        self.asked += 1
        raise UnreachableError("the database does not answer")


@pytest.mark.slow
def test_where_no_limit_is_known_calls_ask_the_database_for_nothing(
    database: Database,
    ports: Ports,  # noqa: F811
) -> None:
    model, limits = Counting(0.0), Away(Pool())
    with governing(database, limits) as governor:
        governed = replace(ports, permits=governor, models=model)
        assert work(database, governed, scripted(), 4) == [DONE] * 4
    assert limits.asked == 0


@pytest.mark.slow
@pytest.mark.usefixtures("patient_runs")
def test_without_the_database_permits_flow_from_a_share_of_the_last_known_limits(
    database: Database,
    ports: Ports,  # noqa: F811
) -> None:
    pool = Pool({"requests": Bucket(1_200, 1_200, 0.0, time.time())})
    model, limits = Counting(0.0), Away(pool)
    with governing(database, limits) as governor:
        governed = replace(ports, permits=governor, models=model)
        spec = replace(scripted(), provider="anthropic")
        assert work(database, governed, spec, 4) == [DONE] * 4
    assert limits.asked > 0


@contextmanager
def talking(server: MessagesServer, governor: Governor) -> Iterator[Callable[[JobSpec], Any]]:
    model = AnthropicModel(base_url=server.url, api_key=API_KEY, answers=governor)
    with closing(model):
        yield lambda spec: model


LIVE = replace(SPEC, model="claude-sonnet-5", tools=(), rules=())


@pytest.mark.slow
@pytest.mark.usefixtures("patient_runs")
def test_after_the_first_answer_no_call_is_refused(
    database: Database,
    ports: Ports,  # noqa: F811
) -> None:
    limits = Limits(requests=300, full=0.05)
    with (
        MessagesServer(lambda request: Reply([text("Done.")]), limits=limits) as server,
        governing(database) as governor,
        talking(server, governor) as models,
    ):
        governed = replace(ports, permits=governor, models=models)
        assert work(database, governed, LIVE, 1) == [DONE]
        pool = PoolKey("org_test", "sonnet-5")
        known = StoredRateLimits(database).known
        while pool not in known(time.time()):
            time.sleep(0.01)
        assert work(database, governed, LIVE, 24) == [DONE] * 24
    assert (limits.admitted, limits.refused) == (25, 0)


class Refusing(Limits):
    """Limits that know when they first refused a call."""

    def __init__(self, requests: float, full: float) -> None:
        self.met = threading.Event()
        super().__init__(requests, full=full)

    def admit(self, input_tokens: int) -> None:
        try:
            super().admit(input_tokens)
        except Limited:
            self.met.set()
            raise


@pytest.mark.slow
def test_the_retry_after_of_one_call_holds_all_calls_back(
    database: Database,
    ports: Ports,  # noqa: F811
) -> None:
    limits = Refusing(60, 0.05)
    reply = Reply([text("Done.")], held_until=limits.met)  # no limit is known before
    with (
        MessagesServer(lambda request: reply, limits=limits) as server,
        governing(database) as governor,
        talking(server, governor) as models,
    ):
        governed = replace(ports, permits=governor, models=models)
        work(database, governed, LIVE, 12)
        assert limits.refused > 0, "the first calls begin before a limit is known"
        refused = limits.refused
        known = StoredRateLimits(database).known
        while not any(pool.cut_at > 0 for pool in known(time.time()).values()):
            time.sleep(0.01)
        work(database, governed, LIVE, 6)
    assert limits.refused == refused

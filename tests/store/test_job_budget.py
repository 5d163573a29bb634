"""A job's budget holds whatever happens to its runs, with any number of workers."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from sqlalchemy import Connection, select

from runner.core.budget import BILLIONTHS
from runner.core.commands import Raised, Reply, Target
from runner.core.conversation import Usage
from runner.core.entries import ModelCallFailed
from runner.core.run import ENDED, Author
from runner.core.steps import CallModel, Done, LocateCalls, RunTools, Sleep
from runner.errors import LeaseLost
from runner.store import due_runs as runs_store
from runner.store import leases
from runner.store.approvals import answer, apply_new_rules
from runner.store.budgets import budget_of, look_into, set_budget
from runner.store.control import cancel, pause, resume
from runner.store.database import Database
from runner.store.journal import StoredJournal
from runner.store.questions import waiting
from runner.store.retry import retry
from runner.store.run_state import progress_from_row
from runner.store.tables import runs
from tests.store.asked import priced, submit_budgeted
from tests.store.attempts import Attempt, text, tool_use
from tests.store.examples import NOW

pytestmark = pytest.mark.dialect

TURNS = 60
_ticks = count()


def now() -> float:
    """Each look at the clock is a moment later."""
    return NOW + next(_ticks) * 0.5


def check(database: Database, job_id: str) -> None:
    """What the budget says is what its runs say, and no more than a cap."""

    def work(connection: Connection) -> None:
        job_budget = look_into(connection, job_id)
        assert job_budget is not None
        rows = connection.execute(select(runs).where(runs.c.job_id == job_id)).all()
        progress = [progress_from_row(row) for row in rows]
        reserved = [each.model.open_call.reservation for each in progress if each.model.open_call]
        assert job_budget.reserved_tokens == sum(call.worst_case for call in reserved)
        assert job_budget.reserved_cost == sum(call.worst_cost for call in reserved)
        assert job_budget.spent_tokens == sum(each.money.charged_tokens for each in progress)
        assert job_budget.spent_cost == sum(each.money.charged_cost for each in progress)
        assert job_budget.spent_tokens + job_budget.reserved_tokens <= (job_budget.most_tokens or 0)
        assert job_budget.spent_cost + job_budget.reserved_cost <= (job_budget.most_cost or 0)

    database.read(work)


class Worker:
    """Takes runs of a job as they are due and does random things to them, or is lost with them."""

    def __init__(self, database: Database, job_id: str, run_ids: list[str], seed: int) -> None:
        self.database = database
        self.job_id = job_id
        self.run_ids = run_ids
        self.random = random.Random(seed)
        self.id = f"worker_{seed}"
        place = {"host_id": "host", "hostname": "here", "pid": 1, "slots": 4}
        leases.register(database, self.id, now=NOW, **place)
        self.attempts: list[Attempt] = []

    def work(self) -> None:
        for _ in range(TURNS):
            try:
                self.do_something()
            except LeaseLost:
                self.attempts.pop(0)
            check(self.database, self.job_id)

    def do_something(self) -> None:
        self.random.shuffle(self.attempts)
        chance = self.random.random()
        if chance < 0.07:
            leases.take_from(self.database, [self.id], now())
        elif chance < 0.12 and self.attempts:
            lease = self.attempts[0].lease
            self.random.choice([self.give_up, leases.give_back])(self.database, lease, now())
        elif len(self.attempts) < 4 and chance < 0.5:
            self.claim()
        elif self.attempts:
            self.go_on(self.attempts[0])

    @staticmethod
    def give_up(database: Database, lease: Any, at: float) -> None:
        leases.give_up(database, lease, "KeyError: 1", at)

    def claim(self) -> None:
        run = runs_store.look_at(self.database, self.random.choice(self.run_ids), now())
        lease = run and runs_store.claim(self.database, run, self.id, now())
        if lease:
            journal = StoredJournal(self.database, now, priced)
            state, effect = journal.load(lease), Sleep(NOW)
            self.attempts.insert(0, Attempt(self.database, lease, state, effect, NOW, priced))
            self.go_on(self.attempts[0])

    def go_on(self, attempt: Attempt) -> None:
        attempt.now = now()
        match attempt.effect:
            case CallModel(call):
                self.end_call(attempt, call.reservation)
            case RunTools():
                attempt.finish("x" * self.random.randrange(3_000))
            case LocateCalls():
                attempt.locate()
            case Done():
                self.attempts.remove(attempt)
            case Sleep():
                attempt.append()

    def end_call(self, attempt: Attempt, call: Any) -> None:
        prompt = self.random.randrange(call.worst_case - call.max_tokens + 1)
        cached = self.random.randrange(prompt + 1)
        usage = Usage(prompt - cached, 0, cached, self.random.randrange(call.max_tokens + 1))
        ways = ["end", "read", "read", "read", "bash", "bash", "cut", "failed", "refused", "later"]
        match self.random.choice(ways):
            case "end":
                attempt.reply(text("Done."), usage=usage)
            case "read":
                attempt.reply(tool_use(1), tool_use(2), stop="tool_use", usage=usage)
            case "bash":
                command = self.random.choice(["uv lock", "uv sync", "uv build"])
                asks = tool_use(1, "Bash", command=command)
                attempt.reply(asks, stop="tool_use", usage=usage)
            case "cut":
                self.fail(attempt, call.worst_case, attempt.now)
            case "failed":
                self.fail(attempt, 0, None)
            case "refused":
                self.fail(attempt, 0, attempt.now)
            case _:
                self.fail(attempt, 0, attempt.now + 9)

    def fail(self, attempt: Attempt, charged: int, retry_at: float | None) -> None:
        failed = ModelCallFailed("overloaded_error", "", 529, None, charged, attempt.now, retry_at)
        attempt.append(failed)


class Person:
    """Does random things to the job from outside."""

    def __init__(self, database: Database, job_id: str, run_ids: list[str], seed: int) -> None:
        self.database = database
        self.job = Target("job", job_id)
        self.runs = [Target("run", run_id) for run_id in run_ids]
        self.random = random.Random(seed)

    def work(self) -> None:
        acts = [
            self.cancel,
            self.pause,
            *[self.retry, self.resume, self.answer, self.raise_budget] * 2,
        ]
        for _ in range(TURNS // 2):
            self.random.choice(acts)()
            check(self.database, self.job.id)

    def cancel(self) -> None:
        whole = self.random.random() < 0.1
        cancel(self.database, self.job if whole else self.random.choice(self.runs), now())

    def retry(self) -> None:
        retry(self.database, self.job, now(), raised=Raised(max_turns=500))

    def pause(self) -> None:
        pause(self.database, self.random.choice(self.runs), now())

    def resume(self) -> None:
        resume(self.database, self.job, now())

    def answer(self) -> None:
        asked = waiting(self.database, self.job)
        some = [one.id for one in asked if self.random.random() < 0.7]
        if some:
            remember = self.random.choice(["call", "call", "run", "job"])
            answer(self.database, some, Reply("approved", "ada", remember=remember), now())
        apply_new_rules(self.database, now())

    def raise_budget(self) -> None:
        job_budget = budget_of(self.database, self.job.id)
        assert job_budget is not None
        raised = {
            "usd": (job_budget.most_cost or 0) / BILLIONTHS + self.random.random() / 10,
            "tokens": (job_budget.most_tokens or 0) + self.random.randrange(7_000),
        }
        cap = self.random.choice([*raised])
        set_budget(self.database, self.job.id, now(), author=Author("ada"), **{cap: raised[cap]})  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(2))
def test_budget_holds_with_workers_that_die_and_people_who_interfere(
    database: Database, open_database: Callable[[], Database], seed: int
) -> None:
    job_id, run_ids = submit_budgeted(database, *"abcdefgh", usd=0.2, tokens=20_000)
    hands: list[Worker | Person] = [
        Worker(open_database(), job_id, run_ids, seed * 10 + number) for number in range(4)
    ]
    hands += [Person(open_database(), job_id, run_ids, seed * 10 + n) for n in (8, 9)]
    with ThreadPoolExecutor(len(hands)) as pool:
        for future in [pool.submit(hand.work) for hand in hands]:
            future.result()
    cancel(database, Target("job", job_id), now())
    check(database, job_id)
    left = budget_of(database, job_id)
    assert left is not None
    assert (left.reserved_tokens, left.reserved_cost) == (0, 0)
    assert left.spent_tokens > 0
    states = select(runs.c.state).where(runs.c.job_id == job_id)
    assert set(database.read(lambda c: c.execute(states).scalars().all())) <= ENDED

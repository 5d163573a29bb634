"""The journal in the database: guarded, and the same read back as folded while it grew."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from runner.core.budget import Limits, Reservation
from runner.core.context.compaction import Clip, Compaction
from runner.core.conversation import ModelReply, ModelRequest, Tool, ToolResult, Usage
from runner.core.entries import (
    ContextCompacted,
    Entry,
    ModelCallFailed,
    ModelCallStarted,
    ModelReplied,
    SummaryReplied,
    TimeWorked,
    ToolFinished,
)
from runner.core.fold import fold
from runner.core.journal import RunView
from runner.core.permissions import Place, Rule, Setting, paths_of
from runner.core.requests import turn_request
from runner.core.run import Lease, Waiting
from runner.core.spec import JobSpec
from runner.core.steps import CallModel, Done, Effect, LocateCalls, RunTools, Sleep
from runner.errors import LeaseLost, StaleView
from runner.store import runs
from runner.store.database import Database
from runner.store.journal import StoredJournal
from runner.store.look.as_sent import as_sent
from runner.store.steer import jobs
from runner.store.steer.approvals import Reply, answer, waiting
from runner.store.steer.control import Target
from runner.store.tables import events, model_calls, queued_messages
from runner.store.tables import runs as run_table
from tests.store.attempts import free
from tests.store.examples import NOW, submission

TOOLS = tuple(
    Tool(name, "A tool.", {"type": "object"}, read_only=name == "Read", repeatable=name == "Read")
    for name in ("Read", "Bash", "Deploy", "Ship")
)
SPEC = JobSpec(
    name="random",
    model="claude-test",
    tools=TOOLS,
    rules=(
        Rule("allow", "*"),
        Rule("deny", "Deploy"),
        Rule("ask", "Ship", why="it is public"),
        Rule("ask", "Bash(ship *)"),
        Rule("deny", "Bash(rm *)", why="it deletes"),
    ),
    limits=Limits(max_turns=12, token_ceiling=400_000, max_output_tokens=5_000),
)


INPUTS = {
    "Bash": [
        {"command": "ship 'a\nb' \u202e\x1b[31m > out"},
        {"command": "ship it"},
        {"command": "rm -rf 'x\ny'"},
        {"command": "ls | wc -l"},
        {"command": 7},
    ],
    "Read": [{"file_path": "a.txt"}, {}],
}


def located(tool: str, arguments: dict[str, Any]) -> Setting:
    places = {
        path: Place(f"/work/{path}", f"/elsewhere/{path}") for path in paths_of(tool, arguments)
    }
    return Setting("/work", "/outputs", "/home/ann", places)


class Driver:
    """Drives one run through the store with a model and tools that do random things."""

    def __init__(self, database: Database, seed: int) -> None:
        self.random = random.Random(seed)
        self.database = database
        self.now = NOW
        job = jobs.submit(database, submission("one", spec=SPEC), NOW)
        query = select(run_table.c.id).where(run_table.c.job_id == job)
        self.run_id = database.read(lambda c: c.execute(query).scalar_one())
        self.journal = StoredJournal(database, lambda: self.now, free)

    def claim(self) -> tuple[Lease, RunView]:
        run = runs.look_at(self.database, self.run_id, self.now)
        assert run is not None
        lease = runs.claim(self.database, run, "worker_a", self.now)
        assert lease is not None
        return lease, self.journal.load(lease)

    def crash(self) -> None:
        def work(connection: Any) -> None:
            connection.execute(
                run_table.update()
                .where(run_table.c.id == self.run_id)
                .values(state="queued", worker_id=None, due_at=self.now)
            )

        self.database.write(work)

    def say(self) -> None:
        def work(connection: Any) -> None:
            connection.execute(
                queued_messages.insert().values(
                    run_id=self.run_id, text="By the way \u2028\x1b[31m.", created_at=self.now
                )
            )
            connection.execute(
                run_table.update()
                .where(run_table.c.id == self.run_id)
                .values(queued_count=run_table.c.queued_count + 1)
            )

        self.database.write(work)

    def reply_to_a_question(self) -> None:
        """The first one, so that the run goes on."""
        (question, *_) = waiting(self.database, Target("run", self.run_id))
        reply = Reply(
            self.random.choice(["approved", "denied"]),
            by="ann",
            edited=self.random.choice([None, {"command": "ship 'x\ny' > there", "n": 99}]),
            remember=self.random.choice(["call", "run", "job"]),
        )
        if reply.effect == "denied":
            reply = replace(reply, edited=None)
        elif reply.edited is not None:
            reply = replace(reply, remember="call")
        if reply.remember != "call":
            reply = replace(reply, rule="Ship" if question.tool == "Ship" else "Bash")
        (answered, *_) = answer(self.database, [question.id], reply, self.now)
        assert answered.changed

    def happen(self, effect: Effect, view: RunView) -> list[Entry]:
        match effect:
            case CallModel(call) if call.purpose == "summary":
                return [self.sum_up(view)]
            case CallModel():
                return [self.answer(view)]
            case RunTools(calls):
                call = self.random.choice(calls)
                output = b"x" * 70_000 if self.random.random() < 0.2 else None
                text = self.random.choice(["ok", "é\u0000\ud800", ""]) or "(no output)"
                return [ToolFinished(call.index, ToolResult(text, "succeeded", output, 0.25))]
            case Sleep(until):
                self.now = until
                return []
            case LocateCalls() | Done():
                raise AssertionError(effect)

    def compact(self, view: RunView, happened: list[Entry]) -> list[Entry]:
        """A compaction, or the beginning of a call for one, where no other call is under way."""
        if self.random.random() < 0.6:
            return []
        view = fold(view, happened)[-1].after
        if view.calls or view.progress.open_call or len(view.messages) < 2:
            return []
        kind = self.random.choice(["clip", "prune", "summary"])
        if kind == "summary":
            reservation = Reservation(1_000, 5_000, False, worst_cost=7, hour_cache=True)
            number = view.progress.model_calls + 1
            return [ModelCallStarted(number, reservation, self.now, "summary")]
        return [ContextCompacted(self.compaction(view, kind))]

    def compaction(self, view: RunView, kind: Any) -> Compaction:
        said = self.random.choice(["Less.", "é\u0000\ud800", ""])
        first = max(1, view.compacted.last)
        last = self.random.randint(first, max(first, len(view.messages) - 1))
        results = [
            (number, position)
            for number, message in enumerate(view.messages)
            for position, block in enumerate(message.blocks)
            if block["type"] == "tool_result"
        ]
        clips = self.random.sample(results, k=len(results) // 2) if kind != "summary" else []
        return Compaction(
            kind, first, last, said, tuple(Clip(*place, said) for place in clips), 900, 400
        )

    def sum_up(self, view: RunView) -> Entry:
        if self.random.random() < 0.2:
            retry_at = self.random.choice([None, self.now + 2])
            return ModelCallFailed("api_error", "no", 500, "req_1", 0, self.now, retry_at)
        reply = ModelReply(
            ({"type": "text", "text": "S."},), "end_turn", Usage(9, 8, 7, 6), "claude-test"
        )
        is_used = self.random.random() < 0.7
        return SummaryReplied(reply, self.compaction(view, "summary") if is_used else None, "no")

    def answer(self, view: RunView) -> Entry:
        if self.random.random() < 0.2:
            return ModelCallFailed(
                "overloaded_error", "busy", 529, "req_1", 0, self.now, self.now + 2
            )
        names = self.random.choices(
            ["Read", "Bash", "Deploy", "Ship", "Nothing"], k=self.random.randint(0, 4)
        )
        uses = tuple(
            {
                "type": "tool_use",
                "id": f"toolu_{view.progress.turns}_{n}",
                "name": name,
                "input": self.random.choice(INPUTS.get(name, [{"n": n}])),
            }
            for n, name in enumerate(names)
        )
        reason = self.random.choice(["tool_use" if uses else "end_turn", "max_tokens", "end_turn"])
        text = ({"type": "text", "text": "I look."},) if self.random.random() < 0.8 else ()
        usage = Usage(100, 10, 5, 7)
        cut = {"type": "tool_use", "partial_json": '{"a'} if reason == "max_tokens" else None
        reply = ModelReply(text + uses, reason, usage, "claude-test", "req_2", 0.5, cut)
        return ModelReplied(reply, tuple(located(use["name"], use["input"]) for use in uses))


@pytest.mark.parametrize("seed", range(12))
def test_loading_gives_the_view_that_was_folded_while_it_grew(
    database: Database, seed: int
) -> None:
    driver = Driver(database, seed)
    lease, view = driver.claim()
    happened: list[Entry] = []
    sent: dict[int, ModelRequest] = {}
    while True:
        if driver.random.random() < 0.1:
            driver.say()
        view, effect = driver.journal.advance(lease, view, happened, draining=False)
        if effect == Done(Waiting("approval")):
            driver.reply_to_a_question()
            lease, view = driver.claim()
            happened = []
            continue
        if isinstance(effect, Done):
            break
        assert driver.journal.load(lease) == view
        if isinstance(effect, CallModel) and effect.call.purpose == "turn":
            sent[view.progress.turns + 1] = turn_request(view, effect.call)
        if driver.random.random() < 0.1:
            driver.crash()
            lease, view = driver.claim()
            happened = []
            continue
        if isinstance(effect, LocateCalls):
            calls = tuple(replace(call, setting=Setting()) for call in view.calls)
            view, happened = replace(view, calls=calls), []
            continue
        happened = [TimeWorked(0.1), *driver.happen(effect, view)]
        happened += driver.compact(view, happened)
        driver.now += 0.5
    check_events_and_charges(database, driver.run_id)
    assert {turn: as_sent(database, driver.run_id, turn) for turn in sent} == sent


def check_events_and_charges(database: Database, run_id: str) -> None:
    def read(connection: Any) -> tuple[Any, ...]:
        run = connection.execute(select(run_table).where(run_table.c.id == run_id)).one()
        numbers = connection.execute(
            select(events.c.number).where(events.c.run_id == run_id).order_by(events.c.number)
        )
        charged = connection.execute(
            select(model_calls.c.charged_tokens).where(model_calls.c.run_id == run_id)
        )
        return run, numbers.scalars().all(), charged.scalars().all()

    run, numbers, charged = database.read(read)
    assert numbers == list(range(1, run.event_count + 1))
    assert sum(charged) == run.charged_tokens <= SPEC.limits.token_ceiling


@pytest.fixture
def driver(database: Database) -> Driver:
    return Driver(database, 1)


def test_an_attempt_without_the_lease_cannot_append(driver: Driver) -> None:
    lease, view = driver.claim()
    driver.crash()
    driver.claim()
    with pytest.raises(LeaseLost):
        driver.journal.advance(lease, view, [], draining=False)
    with pytest.raises(LeaseLost):
        driver.journal.load(lease)


def test_a_view_that_missed_a_commit_cannot_append(driver: Driver) -> None:
    lease, view = driver.claim()
    driver.journal.advance(lease, view, [], draining=False)
    with pytest.raises(StaleView):
        driver.journal.advance(lease, view, [], draining=False)


def test_only_one_of_two_claims_gets_the_run(
    driver: Driver, open_database: Callable[[], Database]
) -> None:
    run = runs.look_at(driver.database, driver.run_id, NOW)
    assert run is not None
    first = runs.claim(driver.database, run, "worker_a", NOW)
    second = runs.claim(open_database(), run, "worker_b", NOW)
    assert (first is None, second is None) == (False, True)


def test_more_attempts_than_connections_can_load_at_once(database: Database) -> None:
    keys = [f"item {n}" for n in range(24)]
    jobs.submit(database, submission(*keys, spec=SPEC), NOW)
    leases = []
    for run_id in runs.ring_due(database, 100, NOW):
        run = runs.look_at(database, run_id, NOW)
        assert run is not None
        leases.append(runs.claim(database, run, "worker_a", NOW))
    journal = StoredJournal(database, lambda: NOW, free)
    with ThreadPoolExecutor(len(leases)) as pool:
        views = list(pool.map(journal.load, leases))
    assert {view.item_key for view in views} == set(keys)

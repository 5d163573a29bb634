"""Drives runs through the real journal, as an attempt would, to where a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy import Row, insert, select

from runner.core.conversation import Block, ModelReply, ToolResult, Usage
from runner.core.decide import advance
from runner.core.entries import Entry, ModelCallFailed, ToolFinished
from runner.core.fold import Applied
from runner.core.prices import FREE, Tariff
from runner.core.run import Lease
from runner.core.spec import JobSpec
from runner.core.state import RunState
from runner.core.steps import CallModel, Effect, LocateCalls, RunTools
from runner.permissions import ToolContext
from runner.queries.transcript import StoredBlock, messages_of_run
from runner.store import due_runs as runs_store
from runner.store import jobs as jobs_store
from runner.store.database import Database
from runner.store.journal import StoredJournal
from runner.store.tables import events, runs, workers
from tests.core.story import replied
from tests.store.examples import NOW, submission

WORKER = "worker_1"
Tariffs = Callable[[JobSpec], Mapping[str, Tariff]]
# What the spine hands to the journal, of a worker that does not drain; and what stores entries alone.
decide = partial(advance, draining=False)
USAGE = Usage(input_tokens=100, output_tokens=10)


def blocks_of_run(database: Database, run_id: str) -> list[StoredBlock]:
    """All blocks of a run, as its transcript reads them."""
    return [block for message in messages_of_run(database, run_id) for block in message]


def decide_nothing(state: RunState, now: float) -> tuple[Sequence[Applied], None]:
    """Leaves it at the entries that are stored."""
    return (), None


def free(spec: JobSpec) -> Mapping[str, Tariff]:
    """The tariffs of a job whose calls cost nothing."""
    return {spec.model: FREE}


def text(words: str) -> Block:
    return {"type": "text", "text": words}


def tool_use(number: int, name: str = "Read", **arguments: Any) -> Block:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": arguments}


@dataclass
class Attempt:
    """A claimed run, its state, and what it has to do next."""

    database: Database
    lease: Lease
    state: RunState
    effect: Effect
    now: float
    tariffs: Tariffs

    def append(self, *entries: Entry) -> Attempt:
        journal = StoredJournal(self.database, lambda: self.now, self.tariffs)
        self.state, self.effect = journal.commit(self.lease, self.state, entries, decide)
        return self

    def reply(self, *blocks: Block, stop: str = "end_turn", usage: Usage = USAGE) -> Attempt:
        """The model answers."""
        assert isinstance(self.effect, CallModel), self.effect
        return self.append(replied(ModelReply(blocks, stop, usage, "claude-test", "req_1")))

    def fail(self, kind: str, message: str) -> Attempt:
        """The model does not answer, and is not asked again."""
        assert isinstance(self.effect, CallModel), self.effect
        return self.append(ModelCallFailed(kind, message, 400, "req_1", 0, self.now, None))

    def locate(self) -> Attempt:
        """Calls were answered: they would run in a setting without folders."""
        assert isinstance(self.effect, LocateCalls), self.effect
        located = {call.index for call in self.effect.calls}
        calls = (
            replace(call, tool_context=ToolContext()) if call.index in located else call
            for call in self.state.calls
        )
        self.state = replace(self.state, calls=tuple(calls))
        return self.append()

    def finish(self, content: str, output: bytes | None = None) -> Attempt:
        """The first tool call that is running ends."""
        assert isinstance(self.effect, RunTools), self.effect
        call = self.effect.calls[0]
        return self.append(ToolFinished(call.index, ToolResult(content, output=output)))


def submit_one(database: Database, key: str = "one", **options: Any) -> str:
    """A job of one run; the run's id."""
    job_id = jobs_store.submit(database, submission(key, **options), NOW)
    query = select(runs.c.id).where(runs.c.job_id == job_id)
    return str(database.read(lambda connection: connection.execute(query).scalar_one()))


def claim(
    database: Database,
    run_id: str,
    now: float = NOW,
    tariffs: Tariffs | None = None,
    found: Sequence[Entry] = (),
) -> Attempt:
    """Take a due run for a worker, up to its first effect; ``found`` is of its workspace."""
    tariffs = tariffs or free
    add_worker(database)
    run = runs_store.look_at(database, run_id, now)
    assert run is not None
    lease = runs_store.claim(database, run, WORKER, now)
    assert lease is not None
    journal = StoredJournal(database, lambda: now, tariffs)
    state, effect = journal.commit(lease, journal.load(lease), found, decide)
    return Attempt(database, lease, state, effect, now, tariffs)


def add_worker(database: Database) -> None:
    def work(connection: Any) -> None:
        query = select(workers.c.id).where(workers.c.id == WORKER)
        if connection.execute(query).first() is None:
            row = {
                "id": WORKER,
                "host_id": "host",
                "hostname": "here",
                "pid": 1,
                "slots": 1,
                "started_at": NOW,
                "lease_expires_at": NOW + 15,
            }
            connection.execute(insert(workers).values(row))

    database.write(work)


def run_row(database: Database, run_id: str) -> Row[Any]:
    query = select(runs).where(runs.c.id == run_id)
    return database.read(lambda connection: connection.execute(query).one())


def event_types(database: Database, run_id: str) -> list[str]:
    """The types of a run's events in order, which must be numbered without gaps."""
    query = select(events).where(events.c.run_id == run_id).order_by(events.c.number)
    rows = database.read(lambda connection: connection.execute(query).all())
    assert [row.number for row in rows] == list(range(1, len(rows) + 1))
    assert run_row(database, run_id).event_count == len(rows)
    return [row.type for row in rows]

"""Runner's ways to work a run, from the attempt alone to the whole worker, in threads of this process."""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.stage.material import submit, wait_for_end
from runner import wiring
from runner.core.prices import FREE
from runner.core.run import Ended
from runner.engine.attempt import Ports, run_attempt
from runner.llm.anthropic import AnthropicModel
from runner.ports import Interrupt, Model
from runner.settings import Settings
from runner.store import due_runs, ids, leases
from runner.store.database import Database, DatabaseClock
from runner.store.journal import StoredJournal
from runner.tools.toolbox import LocalTools
from runner.workspace.run_workspaces import RunWorkspaces
from tests.messages_api import API_KEY

Side = Callable[[str, int], float]
"""Plays one conversation, by key and number of turns; gives the seconds that it took."""


class Deaf:
    """A live port that nobody listens to."""

    def publish(self, run_id: str, text: str) -> None:
        pass


@contextmanager
def attempts(
    database: Database,
    workspace: Path,
    url: str,
    wrap: Callable[[Model], Model] = lambda model: model,
) -> Iterator[Side]:
    """Attempts in this thread, with all real parts but the worker around them.

    Args:
        wrap: puts something around the model.
    """
    clock = DatabaseClock(database)
    clock.measure()
    with tempfile.TemporaryDirectory(prefix="runner-bench-") as name:
        home = Path(name)
        tools = LocalTools(home=home, lock_dir=home / "locks")
        model = AnthropicModel(base_url=url, api_key=API_KEY)
        wrapped = wrap(model)
        ports = Ports(
            journal=StoredJournal(database, clock.now, lambda spec: {spec.model: FREE}),
            models=lambda spec: wrapped,
            tools=tools,
            workspaces=RunWorkspaces(database, home, tools),
            live=Deaf(),
            clock=clock,
            jitter=random.random,
            call_id=ids.call_id,
            stopping=threading.Event(),
        )
        worker_id = ids.new("worker", clock.now())
        leases.register(
            database, worker_id, host_id="bench", hostname="", pid=0, slots=1, now=clock.now()
        )

        def attempt(key: str, turns: int) -> float:
            (run_id,) = submit(database, workspace, [key], turns)
            began = time.perf_counter()
            run = due_runs.look_at(database, run_id, clock.now())
            assert run is not None
            lease = due_runs.claim(database, run, worker_id, clock.now())
            assert lease is not None
            outcome = run_attempt(lease, ports, Interrupt())
            assert outcome == Ended("succeeded", "end_turn"), outcome
            return time.perf_counter() - began

        try:
            yield attempt
        finally:
            model.close()
            tools.close()


@contextmanager
def in_worker(database_url: str, workspace: Path, url: str) -> Iterator[Side]:
    """Runs through a whole worker, with its queue, in threads of this process."""
    os.environ |= {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": API_KEY}
    with tempfile.TemporaryDirectory(prefix="runner-bench-") as home:
        settings = Settings.load({}, home=home, database_url=database_url)
        database = wiring.open_database(settings)
        worker = wiring.start_worker(settings, database, slots=1)

        def work(key: str, turns: int) -> float:
            (run_id,) = submit(database, workspace, [key], turns)
            (run,) = wait_for_end(database, [run_id])
            return float(run.ended_at - run.started_at)

        try:
            yield work
        finally:
            worker.drain()
            worker.wait()
            database.close()

"""(a) What a turn costs over the bare loop, at conversations of several lengths."""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from bench import bare
from bench.databases import Databases
from bench.material import make_workspace, submit, wait_for_end
from bench.server import serving
from bench.tables import Table, held
from runner import wiring
from runner.core.run import Ended
from runner.engine.attempt import Ports, run_attempt
from runner.engine.ports import Interrupt
from runner.engine.workspaces import RunWorkspaces
from runner.llm.anthropic import AnthropicModel
from runner.settings import Settings
from runner.store import ids, runs, workers
from runner.store.database import Database
from runner.store.journal import StoredJournal
from runner.store.workers import DatabaseClock
from runner.tools.toolbox import LocalTools
from tests.messages_api import API_KEY

MOST_MS_OVER = 4.0
LENGTHS = {10: 11, 50: 5, 200: 3}
QUICK_LENGTHS = {10: 5, 50: 3, 200: 1}

Side = Callable[[str, int], float]
"""Plays one conversation, by key and number of turns; gives the seconds that it took."""


class Deaf:
    """A live port that nobody listens to."""

    def publish(self, run_id: str, text: str) -> None:
        pass


def measure(databases: Databases, folder: Path, *, quick: bool) -> list[Table]:
    """Wall and processor time per turn of each side, conversations taken in turns."""
    table = Table("turns", "(a) milliseconds per turn, Runner beside the bare loop")
    with ExitStack() as opened:
        server = opened.enter_context(serving())
        sides = _sides(databases, folder, server.url, opened)
        for length, repetitions in (QUICK_LENGTHS if quick else LENGTHS).items():
            taken = _interleaved(sides, length, repetitions)
            for side in list(sides)[1:]:
                table.rows.append(_row(side, length, taken))
    share = 1000 * server.cpu_seconds / server.requests
    table.notes += [
        "medians over conversations taken in turns; 'over' is the median of the differences within a round",
        "cpu: this process only, all threads; worker: from claim to end of the run by the database",
        f"the server took {share:.1f} ms of its own processor time a request, the same for all sides",
    ]
    return [table]


def _sides(
    databases: Databases, folder: Path, url: str, opened: ExitStack
) -> dict[str, Side]:
    workspace = make_workspace(folder)
    api = opened.enter_context(bare.client(url))

    def loop(key: str, turns: int) -> float:
        began = time.perf_counter()
        bare.converse(api, key, turns, workspace / "notes.txt")
        return time.perf_counter() - began

    sides: dict[str, Side] = {"bare": loop}
    for kind in databases.kinds:
        database = Database(opened.enter_context(databases.empty(kind)))
        opened.callback(database.close)
        sides[f"attempt, {kind}"] = opened.enter_context(_attempts(database, workspace, url))
        database_url = opened.enter_context(databases.empty(kind))
        sides[f"worker, {kind}"] = opened.enter_context(_worker(database_url, workspace, url))
    return sides


@contextmanager
def _attempts(database: Database, workspace: Path, url: str) -> Iterator[Side]:
    """Attempts in this thread, with all real parts but the worker around them."""
    clock = DatabaseClock(database)
    clock.measure()
    with tempfile.TemporaryDirectory(prefix="runner-bench-") as name:
        home = Path(name)
        tools = LocalTools(home=home, lock_dir=home / "locks")
        model = AnthropicModel(base_url=url, api_key=API_KEY)
        ports = Ports(
            journal=StoredJournal(database, clock.now),
            models=lambda spec: model,
            tools=tools,
            workspaces=RunWorkspaces(database, home),
            live=Deaf(),
            clock=clock,
            jitter=random.random,
            call_id=ids.call_id,
            stopping=threading.Event(),
        )
        worker_id = ids.new("worker", clock.now())
        workers.register(
            database, worker_id, host_id="bench", hostname="", pid=0, slots=1, now=clock.now()
        )

        def attempt(key: str, turns: int) -> float:
            (run_id,) = submit(database, workspace, [key], turns)
            began = time.perf_counter()
            run = runs.look_at(database, run_id, clock.now())
            assert run is not None
            lease = runs.claim(database, run, worker_id, clock.now())
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
def _worker(database_url: str, workspace: Path, url: str) -> Iterator[Side]:
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


def _interleaved(
    sides: dict[str, Side], turns: int, repetitions: int
) -> dict[str, list[tuple[float, float]]]:
    """Wall and processor milliseconds per turn of each side and round, after a warm-up."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for round_ in range(-1, repetitions):
        for name, side in sides.items():
            length = turns if round_ >= 0 else 3
            cpu = time.process_time()
            wall = side(f"r{turns}x{round_ + 1}", length)
            cpu = time.process_time() - cpu
            if round_ >= 0:
                taken[name].append((1000 * wall / turns, 1000 * cpu / turns))
    return taken


def _row(side: str, turns: int, taken: dict[str, list[tuple[float, float]]]) -> dict[str, object]:
    walls = [wall for wall, _ in taken[side]]
    bare_walls = [wall for wall, _ in taken["bare"]]
    over = median(mine - theirs for mine, theirs in zip(walls, bare_walls, strict=True))
    cpu = median(cpu for _, cpu in taken[side])
    bare_cpu = median(cpu for _, cpu in taken["bare"])
    return {
        "turns": turns,
        "side": side,
        "bare ms": median(bare_walls),
        "runner ms": median(walls),
        "over ms": over,
        "best over ms": min(walls) - min(bare_walls),
        "bare cpu ms": bare_cpu,
        "runner cpu ms": cpu,
        "target": held(over, MOST_MS_OVER),
    }

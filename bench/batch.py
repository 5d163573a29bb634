"""(l) Jobs in Message Batches: what they cost, what waiting takes, and kills of the collector."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import func, insert, select, update

from bench.stage.databases import Databases
from bench.stage.material import READ, make_workspace, prompt, wait_for_end
from bench.stage.processes import watching_memory, worker
from bench.stage.server import reply_to
from bench.tables import Table, held
from runner.core.budget import Limits
from runner.core.spec import JobSpec, Lane, NewRun, Submission
from runner.core.workspace import Workspace
from runner.llm.prices import load_prices
from runner.permissions import Rule
from runner.queries.costs import costs_by
from runner.store import jobs
from runner.store.database import Database
from runner.store.tables import batch_calls, batches, model_calls, runs
from runner.workspace.folders import identify
from tests.engine.collecting import sweep
from tests.messages_api import MessagesServer, Received, Reply

RUNS, QUICK_RUNS, TURNS = 200, 40, 8
MINUTES = (1, 30)  # of test time that a batch takes
SPEED = 600.0  # of test time
CROWD, QUICK_CROWD = 10_000, 1_000
SLOTS = 32
SYSTEM = "You look at a file again and again, by these rules. " * 1_200
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
SIDES: tuple[tuple[str, Lane, Mapping[str, Any]], ...] = (
    ("realtime", "realtime", {}),
    ("hour", "realtime", HOUR),
    ("batch", "batch", {}),
)
COST, COST_MARGIN, MOST_MIB, MOST_CPU = 0.5, 0.03, 200.0, 5.0
IDLE_SECONDS = 5.0
KILLED_EVERY, QUICK_KILLED_EVERY = 1, 8


def measure(databases: Databases, folder: Path, *, quick: bool) -> list[Table]:
    """Cost beside calls one by one, processor time and memory of a worker that waits, and paid calls."""
    cost = Table("batch cost", "(l) jobs in batches, beside the same jobs one by one")
    wait = Table("batch waits", "(l) a worker while calls are in batches")
    kills = Table("batch kills", "(l) kills at the boundaries of the collector")
    workspace = make_workspace(folder)
    for kind in databases.kinds:
        count = QUICK_RUNS if quick else RUNS
        cost.rows.append({"database": kind, **_cost(databases, kind, folder, workspace, count)})
        for crowd in (RUNS, QUICK_CROWD if quick else CROWD):
            row = _wait(databases, kind, folder, workspace, crowd)
            wait.rows.append({"database": kind, **row})
        every = QUICK_KILLED_EVERY if quick else KILLED_EVERY
        with databases.empty(kind) as url, closing(Database(url)) as database:
            kills.rows.append({"database": kind, **sweep(database, folder, every)})
    cost.notes += [
        f"{TURNS} turns; a batch takes {MINUTES[0]} to {MINUTES[1]} minutes of test time, by which the "
        f"cache lives: {SPEED:g} times as fast as real time",
        "read: share of the prompts that was read from the cache; s: seconds",
        "cost: of the same calls one by one with a cache of an hour (hour), as batches have; target: "
        f"{COST} ± {COST_MARGIN}",
        "of realtime: of calls one by one with a cache of 5 minutes, whose writes cost less",
    ]
    wait.notes += [
        f"idle: per cent of a processor in {IDLE_SECONDS:g} s with all calls in batches; the target is "
        f"for {RUNS} calls",
        "MiB: the most while the requests are made and sent, processes of the worker together",
    ]
    kills.notes += ["twice: calls that were paid twice where the list shows one candidate"]
    return [cost, wait, kills]


def _submit(
    database: Database,
    workspace: Path,
    count: int,
    turns: int,
    lane: Lane,
    system: str,
    options: Mapping[str, Any] | None = None,
) -> list[str]:
    spec = JobSpec(
        name=lane,
        model="claude-sonnet-5",
        system=system,
        tools=(READ,),
        rules=(Rule("allow", READ.name),),
        limits=Limits(max_turns=turns + 1, max_output_tokens=8_000),
        workspace=Workspace(str(workspace)),
        lane=lane,
        batch_linger=1.0,
        model_options=options or {},
    )
    new = tuple(NewRun(f"{n}", f"{n}", prompt(f"{n}", turns)) for n in range(count))
    submission = Submission("bench", "bench", spec, new)
    job = jobs.submit(database, submission, time.time(), workspace_id=identify(workspace))
    query = select(runs.c.id).where(runs.c.job_id == job).order_by(runs.c.id)
    return [row.id for row in database.rows(query)]


def _plan(request: Received) -> Reply:
    return reply_to(request.first_text, request.position, "Read", 0.0)


@contextmanager
def _working(folder: Path, url: str, server: MessagesServer) -> Iterator[int]:
    """A worker; its process id."""
    with ExitStack() as opened:
        home = opened.enter_context(tempfile.TemporaryDirectory(prefix="h-", dir=folder))
        started = worker(
            *("-c", str(SLOTS)),
            home=Path(home),
            database_url=url,
            api_url=server.url,
            temporary=Path(tempfile.gettempdir()),
            log=folder / "worker.log",
        )
        yield opened.enter_context(started).pid


class _TestTime:
    """The time by which the cache lives: batches take minutes of it, all else as long as it takes."""

    def __init__(self) -> None:
        self._dice = random.Random(1)
        self._began = time.monotonic()
        self._ends: list[tuple[float, float]] = []  # of batches, in real and in test time

    def now(self) -> float:
        real = time.monotonic()
        ended = [end for end in self._ends if end[0] <= real] or [(self._began, 0.0)]
        last, tested = max(ended, key=lambda end: end[1])
        return tested + real - last

    def takes(self, number: int) -> float:
        seconds = self._dice.uniform(*MINUTES) * 60.0
        self._ends.append((time.monotonic() + seconds / SPEED, self.now() + seconds))
        return seconds / SPEED


def _cost(
    databases: Databases, kind: str, folder: Path, workspace: Path, count: int
) -> dict[str, Any]:
    row: dict[str, Any] = {"runs": count}
    spent = {}
    for name, lane, options in SIDES:
        clock = _TestTime()
        server = MessagesServer(_plan, record=False, now=clock.now, batch_takes=clock.takes)
        with databases.empty(kind) as url, closing(Database(url)) as database, server:
            run_ids = _submit(database, workspace, count, TURNS, lane, SYSTEM, options)
            began = time.monotonic()
            with _working(folder, url, server):
                wait_for_end(database, run_ids)
            row[f"{name}, s"] = time.monotonic() - began
            (cost,) = costs_by(database, load_prices(), "job")
            spent[name] = float(cost.spending.usd)
            row[f"{name}, read"] = cost.spending.cache_share
    ratio = spent["batch"] / spent["hour"]
    beside = {"cost": ratio, "target": held(abs(ratio - COST), COST_MARGIN)}
    return row | beside | {"of realtime": spent["batch"] / spent["realtime"]}


def _wait(
    databases: Databases, kind: str, folder: Path, workspace: Path, count: int
) -> dict[str, Any]:
    server = MessagesServer(_plan, record=False, batch_takes=lambda number: 3_600.0)
    with databases.empty(kind) as url, closing(Database(url)) as database, server:
        _let_wait(database, workspace, count)
        sent = select(func.coalesce(func.sum(batches.c.count), 0)).where(
            batches.c.api_id.is_not(None)
        )
        began = time.monotonic()
        with _working(folder, url, server) as pid:
            with watching_memory(pid) as memory:
                _wait_until(lambda: database.rows(sent)[0][0] == count)
            seconds = time.monotonic() - began
            time.sleep(1.0)
            idle = _processor_seconds(pid)
            time.sleep(IDLE_SECONDS)
            idle = (_processor_seconds(pid) - idle) / IDLE_SECONDS * 100
    return {
        "calls": count,
        "batches": len(server.shelf.batches),
        "to send, s": seconds,
        "MiB": memory.proportional,
        "memory": held(memory.proportional, MOST_MIB),
        "idle": idle,
        "processor": held(idle, MOST_CPU) if count == RUNS else None,
    }


def _let_wait(database: Database, workspace: Path, count: int) -> None:
    """Make runs whose calls wait for a batch: as an attempt leaves the first one, so are the others."""
    run_ids = _submit(database, workspace, count, 1, "batch", "Work.")
    now = time.time()
    reservation = {"max_tokens": 8_000, "worst_case": 10_000, "lowered": False, "batch": True}
    open_call = {"number": 1, "attempt": 1, "reservation": reservation, "purpose": "turn"}
    (row,) = database.rows(select(runs.c.progress, runs.c.job_id).where(runs.c.id == run_ids[-1]))
    model = {**row.progress["model"], "calls": 1, "tries": 1, "open_call": open_call}
    waits = {"state": "waiting", "reason": "batch", "due_at": None, "started_at": now}
    waits |= {"attempt": 1, "progress": {**row.progress, "model": model}}
    database.execute(update(runs).values(waits))
    for lot in _lots(run_ids):
        calls = [
            {"run_id": each, "number": 1, "job_id": row.job_id, "asked_at": now} for each in lot
        ]
        database.execute(insert(batch_calls).values(calls))
        of_model = {"model": "claude-sonnet-5", "max_tokens": 8_000, "worst_case": 10_000}
        of_model |= {"attempt": 1, "turn": 1, "number": 1, "started_at": now, "batch": True}
        database.execute(insert(model_calls).values([{"run_id": each, **of_model} for each in lot]))


def _lots(items: Sequence[str], size: int = 500) -> Iterator[Sequence[str]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _wait_until(holds: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError("the calls were not sent: see what the worker logged")
        time.sleep(0.1)


def _processor_seconds(pid: int) -> float:
    process = psutil.Process(pid)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)

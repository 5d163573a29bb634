"""(d) How long after kill -9 of a worker its runs go on, and what is done twice."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import func, select

from bench.stage.databases import Databases
from bench.stage.material import submit
from bench.stage.processes import worker
from bench.stage.server import serving
from bench.tables import Table, held
from runner.store.database import Database
from runner.store.tables import events, model_calls, workers

RUNS = 8
TURNS = 200
LATENCY = 0.2
MOST_SECONDS = {"same host": 3, "elsewhere": 20, "restarted": 2}
LONGEST_WAIT = 60.0


@dataclass(frozen=True)
class Recovery:
    """Seconds from the kill to the first tool call that another worker started, for the first run and for
    the last one; how many runs repeated tools, and the most model calls that one run repeated."""

    first: float
    last: float
    calls_repeated: int
    tools_repeated: int


def measure(databases: Databases, folder: Path, *, quick: bool) -> list[Table]:
    """Each way to recover, on each database."""
    title = f"(d) seconds from kill -9 of a worker with {RUNS} runs to their next tool call"
    table = Table("recovery", title)
    repetitions = 1 if quick else 5
    with serving(latency=LATENCY, replay=True, tool="Bash") as server:
        for kind in databases.kinds:
            found: dict[str, list[Recovery]] = {place: [] for place in MOST_SECONDS}
            for _ in range(repetitions):
                for place, recoveries in found.items():
                    recoveries.append(_recover(databases, kind, folder, server.url, place))
            table.rows += [_row(kind, place, recoveries) for place, recoveries in found.items()]
    table.notes += [
        "same host, elsewhere: another worker lives, with the same TMPDIR or, like another host, its own",
        "restarted: nobody else lives; the next worker is started at once, and its start counts",
        "the first tool call of the run's next attempt, after a model call; worst: of all runs",
    ]
    return [table]


def _row(kind: str, place: str, found: list[Recovery]) -> dict[str, Any]:
    worst = max(recovery.last for recovery in found)
    calls = max(recovery.calls_repeated for recovery in found)
    tools = max(recovery.tools_repeated for recovery in found)
    return {
        "database": kind,
        "next worker": place,
        "first run": median(recovery.first for recovery in found),
        "last run": median(recovery.last for recovery in found),
        "worst": worst,
        "time": held(worst, MOST_SECONDS[place]),
        "model calls repeated a run": calls,
        "calls": held(calls, 1),
        "tools run twice": tools,
        "tools": held(tools, 0),
    }


def _recover(databases: Databases, kind: str, folder: Path, api_url: str, place: str) -> Recovery:
    with ExitStack() as opened:
        home, here, there, workspace = (
            Path(opened.enter_context(tempfile.TemporaryDirectory(prefix=f"{name}-", dir=parent)))
            for name, parent in (("home", folder), ("a", None), ("b", None), ("work", folder))
        )
        log = folder / f"{home.name}.log"
        database_url = opened.enter_context(databases.empty(kind))
        database = Database(database_url)
        opened.callback(database.close)
        start = partial(
            worker,
            *("-c", str(RUNS)),
            home=home,
            database_url=database_url,
            api_url=api_url,
            log=log,
        )
        keys = [f"k{number}" for number in range(RUNS)]
        run_ids = submit(database, workspace, keys, TURNS, "Bash")
        first = opened.enter_context(start(temporary=here))
        _wait(lambda: len(_turns(database, run_ids, attempt=1)) == RUNS, log)
        temporary = there if place == "elsewhere" else here
        if place != "restarted":
            opened.enter_context(start(temporary=temporary))
            _wait(lambda: _live_workers(database) == 2, log)
        killed_at = time.time()
        os.kill(first.pid, signal.SIGKILL)
        if place == "restarted":
            opened.enter_context(start(temporary=temporary))
        _wait(lambda: len(_turns(database, run_ids, attempt=2)) == RUNS, log)
        calls = _first_calls(database, run_ids)
        return Recovery(
            first=min(calls) - killed_at,
            last=max(calls) - killed_at,
            calls_repeated=_calls_repeated(database, run_ids),
            tools_repeated=sum(_ran_twice(workspace / f"ran-{key}") for key in keys),
        )


def _wait(condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + LONGEST_WAIT
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"the workers did not get on; they logged: {log.read_text()[-2000:]}"
            )
        time.sleep(0.02)


def _turns(database: Database, run_ids: list[str], *, attempt: int) -> dict[str, int]:
    """How many turns each run has ended in an attempt; runs with less than two are left out."""
    query = (
        select(events.c.run_id, func.count())
        .where(
            events.c.run_id.in_(run_ids), events.c.attempt == attempt, events.c.type == "turn_ended"
        )
        .group_by(events.c.run_id)
        .having(func.count() >= 2)
    )
    return dict(database.read(lambda connection: connection.execute(query).tuples().all()))


def _live_workers(database: Database) -> int:
    query = select(func.count()).where(workers.c.ended_at.is_(None))
    return database.read(lambda connection: connection.execute(query).scalar_one())


def _first_calls(database: Database, run_ids: list[str]) -> list[float]:
    """Return the times at which the runs' second attempts started a tool, in seconds since the epoch."""
    query = (
        select(func.min(events.c.at))
        .where(events.c.run_id.in_(run_ids), events.c.attempt == 2, events.c.type == "tool_started")
        .group_by(events.c.run_id)
    )
    return list(database.read(lambda connection: connection.execute(query).scalars().all()))


def _calls_repeated(database: Database, run_ids: list[str]) -> int:
    """The most calls of one run whose reply was lost with the worker."""
    query = (
        select(func.count())
        .where(model_calls.c.run_id.in_(run_ids), model_calls.c.error.like("worker_lost%"))
        .group_by(model_calls.c.run_id)
    )
    counts = database.read(lambda connection: connection.execute(query).scalars().all())
    return max(counts, default=0)


def _ran_twice(log: Path) -> int:
    """How many calls left their line in a run's log more than once."""
    counts = Counter(log.read_text().split()) if log.exists() else Counter()
    return sum(1 for count in counts.values() if count > 1)

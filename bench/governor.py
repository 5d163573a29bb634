"""(k) Rate limits that halve and double: how much of them four workers use, and how often they are
refused."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.stage.databases import Databases
from bench.stage.material import make_workspace, submit
from bench.stage.processes import worker
from bench.stage.server import reply_to
from bench.tables import Table, held, reached
from runner.store.database import Database
from tests.messages_api import MessagesServer, RateLimits, Received, Reply

WORKERS, SLOTS, FIXED_SLOTS = 4, 16, 2
LATENCY = 0.5
RUNS, TURNS = 160, 10
# Requests and input tokens a minute, which halve and double again.
REQUESTS, TOKENS = (480, 600_000), (2_000, 240_000)
FACTORS = (1.0, 0.5, 1.0)
PHASE_SECONDS, QUICK_SECONDS, WARM_UP_SECONDS = 6.0, 4.0, 3.0
LEAST_USED, MOST_REFUSED = 0.92, 0.01
TEMPORARY = Path(tempfile.gettempdir())


@dataclass(frozen=True)
class Side:
    """The options of the workers, and the limits of the API that they call."""

    name: str
    slots: int
    module: str = "runner"
    limits: tuple[int, int] = REQUESTS


SIDES = (
    Side("governor", SLOTS),
    Side("governor, tokens", SLOTS, limits=TOKENS),
    Side("each worker for itself", SLOTS, "bench.stage.ungoverned"),
    Side("fixed concurrency", FIXED_SLOTS, "bench.stage.ungoverned"),
)


def measure(databases: Databases, folder: Path, *, quick: bool) -> list[Table]:
    """The shares of a changing limit that are used and refused, beside workers that share nothing."""
    table = Table("governor", f"(k) {WORKERS} workers against limits that halve and double")
    workspace, seconds = make_workspace(folder), QUICK_SECONDS if quick else PHASE_SECONDS
    for kind in databases.kinds[-1:]:
        for side in SIDES:
            with _limited(side) as (server, limits):
                row = _measured(databases, kind, folder, workspace, side, server, limits, seconds)
            table.rows.append({"side": f"{side.name}, {kind}", **row})
    table.notes += [
        "requests and input tokens a minute: {:,} and {:,}, ".format(*REQUESTS)
        + "with 'tokens' {:,} and {:,}; ".format(*TOKENS)
        + f"times {', '.join(map(str, FACTORS))}, {seconds:g} s each",
        f"a call takes {LATENCY} s; the buckets are nearly empty at first, and the first "
        f"{WARM_UP_SECONDS:g} s are not counted",
        "used: of what flowed into the API's buckets; refused: of all requests",
        f"fixed concurrency: {FIXED_SLOTS} runs at once in each worker",
    ]
    return [table]


@contextmanager
def _limited(side: Side) -> Iterator[tuple[MessagesServer, RateLimits]]:
    limits = RateLimits(*side.limits, full=0.02)

    def plan(request: Received) -> Reply:
        return reply_to(request.first_text, request.position, "Read", LATENCY)

    with MessagesServer(plan, record=False, limits=limits) as server:
        yield server, limits


def _measured(
    databases: Databases,
    kind: str,
    folder: Path,
    workspace: Path,
    side: Side,
    server: MessagesServer,
    limits: RateLimits,
    seconds: float,
) -> dict[str, Any]:
    with databases.empty(kind) as url, ExitStack() as opened:
        database = Database(url)
        submit(database, workspace, [str(number) for number in range(RUNS)], TURNS)
        processes = []
        for number in range(WORKERS):
            home = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="h-", dir=folder)))
            started = worker(
                *("-c", str(side.slots)),
                home=home,
                database_url=url,
                api_url=server.url,
                temporary=TEMPORARY,
                log=folder / f"worker{number}.log",
                module=side.module,
            )
            processes.append(opened.enter_context(started))
        server.wait_for(lambda server: server.in_flight >= WORKERS, 60.0)
        time.sleep(WARM_UP_SECONDS)
        first = before = limits.reading()
        phases = []
        for factor in FACTORS:
            limits.set(*(factor * limit for limit in side.limits))
            time.sleep(seconds)
            now = limits.reading()
            phases.append(now - before)
            before = now
        for process in processes:
            process.terminate()
        database.close()
    whole = before - first
    asked = whole.admitted + whole.refused
    refused = whole.refused / max(asked, 1)
    return {
        "requests": asked,
        **{f"used, {number}.": phase.share for number, phase in enumerate(phases, 1)},
        "used": whole.share,
        "refused": refused,
        "target, used": reached(whole.share, LEAST_USED),
        "target, refused": held(refused, MOST_REFUSED),
    }

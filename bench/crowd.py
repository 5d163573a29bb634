"""(c) Many runs at once in one worker process, beside the bare loop in as many threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from bench.stage.databases import Databases
from bench.stage.material import make_workspace, submit, wait_for_end
from bench.stage.processes import Memory, watching_memory, worker
from bench.stage.server import HOST_ITEM, serving
from bench.tables import Table, held
from runner.queue.embedded import folder_of
from runner.store.database import Database

LATENCY = 0.2
TURNS = 6
MOST_TIMES_BARE = 1.25
MOST_MIB = {50: 160, 500: 300}
TEMPORARY = Path(tempfile.gettempdir())


def measure(databases: Databases, folder: Path, *, quick: bool) -> list[Table]:
    """Time and memory of 200 runs, 50 at once, and memory of 500 at once."""
    workspace = make_workspace(folder)
    table = Table("crowd", "(c) 200 runs of 6 turns at 200 ms model latency, 50 at once")
    repetitions = 1 if quick else 3
    with serving(latency=LATENCY, replay=True) as server:
        taken = _interleaved(databases, folder, workspace, server.url, repetitions)
    share = 1000 * server.cpu_seconds / server.requests
    table.rows += [_row(side, taken) for side in taken]
    table.notes += [
        "seconds: from the process's start to the end of its last run; working: from the first run's start",
        "MiB: worker, tool host, its children and the embedded queue server; medians",
        f"the server only replays here: {share:.2f} ms of its own processor time a request",
    ]
    many = Table("crowd500", "(c) 500 runs of 6 turns at once in one process: memory")
    for kind in databases.kinds[:1] if quick else databases.kinds:
        with serving(latency=2.0, replay=True) as server:
            numbers = runner_crowd(
                databases, kind, folder, workspace, server.url, runs=500, slots=500
            )
        target = held(numbers["MiB"], MOST_MIB[500])
        many.rows.append({"side": f"runner, {kind}", **numbers, "target": target})
    many.notes.append("at 2 s model latency, so that all of them are under way at once")
    return [table, many]


def _interleaved(
    databases: Databases, folder: Path, workspace: Path, url: str, repetitions: int
) -> dict[str, list[dict[str, float]]]:
    taken: dict[str, list[dict[str, float]]] = {"bare": []}
    for _ in range(repetitions):
        taken["bare"].append(bare_crowd(workspace, url, runs=200, threads=50))
        for kind in databases.kinds:
            numbers = runner_crowd(databases, kind, folder, workspace, url, runs=200, slots=50)
            taken.setdefault(f"runner, {kind}", []).append(numbers)
    return taken


def _row(side: str, taken: Mapping[str, list[dict[str, float]]]) -> dict[str, Any]:
    middle = {name: median(each[name] for each in taken[side]) for name in taken[side][0]}
    row: dict[str, Any] = {"side": side, **middle}
    if side == "bare":
        return row
    for name in ("seconds", "working"):
        row[f"{name} / bare"] = median(
            mine[name] / theirs[name]
            for mine, theirs in zip(taken[side], taken["bare"], strict=True)
        )
    row["time"] = held(row["seconds / bare"], MOST_TIMES_BARE)
    row["memory"] = held(middle["MiB"], MOST_MIB[50])
    return row


def bare_crowd(workspace: Path, url: str, *, runs: int, threads: int) -> dict[str, float]:
    """Return the seconds and MiB of the bare loop in a process of its own."""
    file = str(workspace / "notes.txt")
    command = [
        sys.executable,
        "-m",
        "bench.stage.bare",
        str(threads),
        str(runs),
        str(TURNS),
        file,
        url,
    ]
    began = time.time()
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as process,
        watching_memory(process.pid) as memory,
    ):
        assert process.stdout is not None
        told = json.loads(process.stdout.read())
    return _numbers(began, told["began"], told["ended"], told["cpu_seconds"], memory)


def runner_crowd(
    databases: Databases,
    kind: str,
    folder: Path,
    workspace: Path,
    url: str,
    *,
    runs: int,
    slots: int,
) -> dict[str, float]:
    """Return the seconds and MiB of a worker with an empty database of a kind."""
    with (
        databases.empty(kind) as database_url,
        tempfile.TemporaryDirectory(prefix="home-", dir=folder) as home,
    ):
        database = Database(database_url)
        # The first run calls Bash once, so that the tool host is there to be measured.
        keys = [HOST_ITEM, *(str(number) for number in range(1, runs))]
        run_ids = submit(database, workspace, keys, TURNS, "Read", "Bash")
        began = time.time()
        with worker(
            *("-c", str(slots), "--burst"),
            home=Path(home),
            database_url=database_url,
            api_url=url,
            temporary=TEMPORARY,
            log=folder / "worker.log",
        ) as process:
            with watching_memory(process.pid, folder_of(Path(home))) as memory:
                _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"the worker failed: {(folder / 'worker.log').read_text()[-2000:]}")
        rows = wait_for_end(database, run_ids, 5.0)
        database.close()
    first, last = min(row.started_at for row in rows), max(row.ended_at for row in rows)
    return _numbers(began, first, last, usage.ru_utime + usage.ru_stime, memory)


def _numbers(
    began: float, first: float, last: float, cpu_seconds: float, memory: Memory
) -> dict[str, float]:
    return {
        "seconds": last - began,
        "working": last - first,
        "cpu seconds": cpu_seconds,
        "MiB": memory.proportional,
        "MiB resident": memory.resident,
        "processes": memory.processes,
    }

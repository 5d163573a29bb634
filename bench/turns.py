"""(a) What a turn costs over the bare loop, at conversations of several lengths."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench.disk import flush_milliseconds
from bench.stage import bare
from bench.stage.databases import Databases
from bench.stage.material import make_workspace
from bench.stage.server import serving
from bench.stage.sides import Side, attempts, in_worker
from bench.tables import Table, held
from runner.store.database import Database

MOST_MS_OVER = 4.0
LENGTHS = {10: 11, 50: 5, 200: 3}
QUICK_LENGTHS = {10: 5, 50: 3, 200: 1}


def measure(databases: Databases, folder: Path, *, quick: bool) -> list[Table]:
    """Wall and processor time per turn of each side, conversations taken in turns."""
    table = Table("turns", "(a) milliseconds per turn, Runner beside the bare loop")
    flushes: list[float] = []
    with ExitStack() as opened:
        server = opened.enter_context(serving())
        sides = _sides(databases, folder, server.url, opened)
        for length, repetitions in (QUICK_LENGTHS if quick else LENGTHS).items():
            taken = _interleaved(sides, length, repetitions)
            flushes += flush_milliseconds(10, folder)
            for side in list(sides)[1:]:
                table.rows.append(_row(side, length, taken))
    share = 1000 * server.cpu_seconds / server.requests
    table.notes += [
        "medians over conversations taken in turns; 'over' is the median of the differences within a round",
        "cpu: this process only, all threads; worker: from claim to end of the run by the database",
        f"a flush to the disk took {median(flushes):.2f} ms meanwhile; a turn waits for two",
        f"the server took {share:.1f} ms of its own processor time a request, the same for all sides",
    ]
    return [table]


def _sides(databases: Databases, folder: Path, url: str, opened: ExitStack) -> dict[str, Side]:
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
        sides[f"attempt, {kind}"] = opened.enter_context(attempts(database, workspace, url))
        database_url = opened.enter_context(databases.empty(kind))
        sides[f"worker, {kind}"] = opened.enter_context(in_worker(database_url, workspace, url))
    return sides


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

"""(e) How long ``runner --help`` takes, and what it, ``list`` and ``show`` import."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from bench.stage.databases import Databases
from bench.stage.material import make_workspace, submit
from bench.tables import Table, held
from runner.store.database import Database

MOST_SECONDS = {"--help": 0.15, "list": 0.35}
NEVER_IMPORTED = ("anthropic", "rq")


def measure(databases: Databases, folder: Path, *, quick: bool) -> list[Table]:
    """Seconds of each command, taken in turns with an interpreter that does nothing."""
    table = Table("start", "(e) seconds that a command takes")
    repetitions = 5 if quick else 15
    with databases.empty(databases.kinds[0]) as url:
        database = Database(url)
        (run_id,) = submit(database, make_workspace(folder), ["one"], 1)
        database.close()
        environment = {**os.environ, "RUNNER_HOME": str(folder), "RUNNER_DATABASE_URL": url}
        commands = {"--help": ["--help"], "list": ["list"], "show RUN": ["show", run_id]}
        bare: list[float] = []
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(repetitions):
            bare.append(_seconds(["-c", "pass"], environment))
            for name, arguments in commands.items():
                taken[name].append(_seconds(["-m", "runner", *arguments], environment))
        for name, arguments in commands.items():
            imported = _imported(arguments, environment)
            table.rows.append(
                {
                    "command": f"runner {name}",
                    "seconds": median(taken[name]),
                    "fastest": min(taken[name]),
                    "bare python": median(bare),
                    "time": held(min(taken[name]), MOST_SECONDS[name])
                    if name in MOST_SECONDS
                    else "",
                    "imports": f"NOT ok: {', '.join(imported)}" if imported else "ok",
                }
            )
    table.notes.append(f"imports: neither of {', '.join(NEVER_IMPORTED)} may be loaded")
    table.notes.append("time: the fastest is held against the target; the median shows the load")
    return [table]


def _seconds(arguments: list[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, check=True
    )
    return time.perf_counter() - began


def _imported(arguments: list[str], environment: dict[str, str]) -> list[str]:
    told = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "runner", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    ).stderr
    names = {line.rpartition("|")[2].strip() for line in told.splitlines()}
    return [name for name in NEVER_IMPORTED if name in names]

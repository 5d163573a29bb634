"""(e) How long ``runner --help`` takes, beside an interpreter that does nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from bench.databases import Databases
from bench.tables import Table, held

MOST_SECONDS = 0.2
SLOW_MODULES = ("anthropic", "rq", "redis", "sqlalchemy")
COMMANDS = ("--help", "list --help", "show --help")


def measure(databases: Databases, folder: Path, *, quick: bool) -> list[Table]:
    """Seconds of each command, taken in turns with a bare interpreter, and what it imports."""
    table = Table("start", "(e) seconds until a command has said its help")
    repetitions = 5 if quick else 15
    bare: list[float] = []
    taken: dict[str, list[float]] = {command: [] for command in COMMANDS}
    for _ in range(repetitions):
        bare.append(_seconds("-c", "pass"))
        for command in COMMANDS:
            taken[command].append(_seconds("-m", "runner", *command.split()))
    for command in COMMANDS:
        seconds = median(taken[command])
        table.rows.append(
            {
                "command": f"runner {command}",
                "seconds": seconds,
                "fastest": min(taken[command]),
                "bare python": median(bare),
                "target": held(seconds, MOST_SECONDS),
                "imports": ", ".join(_imported(command)) or "none of them",
            }
        )
    table.notes.append(f"imports: which of {', '.join(SLOW_MODULES)} it loads")
    return [table]


def _seconds(*arguments: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def _imported(command: str) -> list[str]:
    told = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "runner", *command.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    ).stderr
    names = {line.rpartition("|")[2].strip() for line in told.splitlines()}
    return [name for name in SLOW_MODULES if name in names]

"""(g) Milliseconds that a snapshot of a repository of 10,000 files takes, the push aside."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.stage.databases import Databases
from bench.tables import Table, held
from runner.workspace.snapshot_store import make_store
from runner.workspace.snapshots import Snapshots

MOST_MILLISECONDS = 60.0
FILES = 10_000
FOLDERS = 500
LINES = 60
CHANGED = (0, 3, 50)
FEW = 3


def measure(databases: Databases, folder: Path, *, quick: bool) -> list[Table]:
    """Milliseconds of a snapshot after so many files changed, and of what else happens to a run."""
    table = Table("snapshots", f"(g) milliseconds of a snapshot, {FILES:,} files")
    repetitions = 7 if quick else 21
    source, work = folder / "source", folder / "work"
    base = _make_repository(source)
    _git(source, "worktree", "add", "--quiet", "--detach", str(work), base)
    chance = random.Random(5)
    store = make_store(folder / "home", str(source), source / ".git")
    snapshots = Snapshots(store, work, "run_1", 1, environment=os.environ)
    snapshots.start(base)
    first = _milliseconds(snapshots.take)
    start = snapshots.take()
    rows: list[tuple[str, Callable[[], object], float | None]] = [
        (
            f"{count} files changed",
            lambda count=count: _change(work, chance, count),
            MOST_MILLISECONDS if count <= FEW else None,
        )
        for count in CHANGED
    ]
    rows += [
        ("a new file in a new folder", lambda: _add(work, chance), MOST_MILLISECONDS),
        ("a file is removed", lambda: _remove(work, chance), MOST_MILLISECONDS),
    ]
    for what, change, most in rows:
        _row(table, what, [_after(change, snapshots.take) for _ in range(repetitions)], most)
    restored = []
    for _ in range(max(3, repetitions // 4)):
        _change(work, chance, 3)
        restored.append(_milliseconds(lambda: snapshots.restore(start)))
    _row(table, "put back", restored, None)
    _row(table, "the run's first", [first], None)
    table.notes += [
        f"files of {LINES} lines in {FOLDERS} folders, 4 levels deep; objects are flushed to the disk",
        f"more than {FEW} changed files, putting back, and the first, which reads all, have no target",
    ]
    return [table]


def _row(table: Table, what: str, taken: list[float], most: float | None) -> None:
    table.rows.append(
        {
            "after": what,
            "ms": median(taken),
            "fastest": min(taken),
            "slowest": max(taken),
            "time": "" if most is None else held(median(taken), most),
        }
    )


def _after(change: Callable[[], object], work: Callable[[], object]) -> float:
    change()
    return _milliseconds(work)


def _milliseconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def _make_repository(folder: Path) -> str:
    chance = random.Random(4)
    for number in range(FILES):
        path = _path(folder, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"line {chance.random()}\n" for _ in range(LINES)))
    _git(folder, "init", "--quiet")
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--message", "base")
    return _git(folder, "rev-parse", "HEAD").strip()


def _path(folder: Path, number: int) -> Path:
    place = number % FOLDERS
    return folder / f"src/{place % 10}/{place // 10 % 10}/{place // 100}" / f"file{number}.py"


def _change(work: Path, chance: random.Random, count: int) -> None:
    for number in chance.sample(range(0, FILES, 2), count):
        with open(_path(work, number), "a") as file:
            file.write("changed\n")


def _add(work: Path, chance: random.Random) -> None:
    folder = work / f"new{chance.random()}"
    folder.mkdir()
    (folder / "file").write_text("new\n")


def _remove(work: Path, chance: random.Random) -> None:
    left = (_path(work, number) for number in chance.sample(range(1, FILES, 2), FILES // 2))
    next(path for path in left if path.exists()).unlink()


def _git(folder: Path, *arguments: str) -> str:
    named = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]
    done = subprocess.run(
        ["git", *named, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout

"""What all measurements work on: a job whose runs read a file of 1 KB once a turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Row, func, select

from runner.core.budget import Limits
from runner.core.spec import JobSpec, NewRun, Submission
from runner.core.workspace import Workspace
from runner.permissions import Rule
from runner.store import jobs
from runner.store.database import Database, DatabaseClock
from runner.store.tables import runs
from runner.tools.registry import BUILTIN
from runner.workspace.folders import identify

MODEL = "claude-sonnet-5"
MAX_TOKENS = 32_000
SYSTEM = "You look at a file again and again, and say when you are done."
READ = BUILTIN["Read"]
FILE_BYTES = 1024


def prompt(key: str, turns: int) -> str:
    """The first message of a conversation; the server reads the number of turns from it."""
    return f"Look at notes.txt, in {turns} turns, for item {key}."


def make_workspace(folder: Path) -> Path:
    """A workspace with the file that is read."""
    workspace = folder / "workspace"
    workspace.mkdir()
    line = "The quick brown fox jumps over the lazy dog; 0123456789.\n"
    (workspace / "notes.txt").write_text((line * 20)[: FILE_BYTES - 1] + "\n")
    return workspace


def submit(
    database: Database, workspace: Path, keys: Sequence[str], turns: int, *tools: str
) -> list[str]:
    """Submit a job of one run for each key, with builtin tools (Read alone when none is named); the
    runs' ids."""
    names = tools or (READ.name,)
    spec = JobSpec(
        name="bench",
        model=MODEL,
        system=SYSTEM,
        tools=tuple(BUILTIN[name] for name in names),
        rules=tuple(Rule("allow", name) for name in names),
        limits=Limits(max_turns=turns + 1, token_ceiling=10**12, max_output_tokens=MAX_TOKENS),
        workspace=Workspace(str(workspace)),
    )
    new = tuple(NewRun(key, key, prompt(key, turns)) for key in keys)
    clock = DatabaseClock(database)
    clock.measure()
    job_id = jobs.submit(
        database,
        Submission("bench", "bench", spec, new),
        clock.now(),
        workspace_id=identify(workspace),
    )
    query = select(runs.c.id).where(runs.c.job_id == job_id).order_by(runs.c.id)
    return list(database.read(lambda connection: connection.execute(query).scalars().all()))


def wait_for_end(
    database: Database,
    run_ids: Sequence[str],
    seconds: float = 600.0,
    still_alive: Callable[[], bool] = lambda: True,
) -> list[Row[Any]]:
    """The rows of runs once all of them have succeeded.

    Raises:
        RuntimeError: one ended otherwise, it took too long, or ``still_alive`` says that nobody works.
    """
    waiting = select(func.count()).where(runs.c.id.in_(run_ids), runs.c.ended_at.is_(None))
    deadline = time.monotonic() + seconds
    while database.read(lambda connection: connection.execute(waiting).scalar_one()):
        if time.monotonic() > deadline or not still_alive():
            raise RuntimeError("the runs did not end: see what the worker logged above")
        time.sleep(0.05)
    query = select(runs).where(runs.c.id.in_(run_ids)).order_by(runs.c.id)
    rows = list(database.read(lambda connection: connection.execute(query).all()))
    for row in rows:
        if row.state != "succeeded":
            raise RuntimeError(f"{row.id} is {row.state}: {row.reason} {row.detail}")
    return rows

"""(i) Jobs of 10,000 runs: submitting, working and listing them, and others behind them; 100 workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil
from sqlalchemy import func, select, text

from bench.stage.databases import Databases
from bench.stage.processes import MIB, worker
from bench.tables import Table, held, reached
from runner.store.database import Database, connections_for
from runner.store.tables import events, runs, workers

NOBODY = "http://127.0.0.1:9"  # the model is scripted
SUBMIT_SECONDS = {"sqlite": 2.0, "postgresql": 4.0}
RUNS_A_SECOND = {"sqlite": 200.0, "postgresql": 180.0}
LIST_SECONDS = 0.8
FREE_SLOT_SECONDS, NO_SLOT_SECONDS = 2.0, 12.0
RESUME_SECONDS = {"same host": 3.0, "elsewhere": 20.0}
MOST_GROWTH_MIB = 10.0  # of a worker between a fifth of the runs and the last
LONGEST_WAIT = 600.0

SIMULATED, SLOTS, PROCESSES = 100, 16, 4


def measure(databases: Databases, folder: Path, *, quick: bool) -> list[Table]:
    """Each row of the fleet's table, and the simulation of 100 workers against one Postgres."""
    count, repetitions = (2_000, 1) if quick else (10_000, 3)
    table = Table("fleet", f"(i) jobs of {count:,} runs, two workers, scripted model")
    for kind in databases.kinds:
        for look in (_submission, _throughput, _behind, _recovery):
            rows = look(databases, kind, folder, count, repetitions)
            table.rows += [{"database": kind, **row} for row in rows]
    table.notes += [
        "submit, list: the whole process, medians; list: the first page of `runner list JOB`",
        "grown: of the worker that grew most, USS from a fifth of the runs to the last",
        "first turn: of a job of 10 runs, submitted while all slots have runs of the large job",
        "resume: from kill -9 to the first step of the last of the killed worker's runs; every other slot"
        " has a run of half a second, and the next one waits",
    ]
    tables = [table]
    if "postgresql" in databases.kinds:
        tables.append(_simulation(databases, folder, 10 if quick else 60))
    return tables


# --- A place with a database, job files and workers ---


@dataclass(frozen=True)
class Place:
    """An empty database of a kind, and a home."""

    url: str
    folder: Path
    database: Database
    opened: ExitStack = field(default_factory=ExitStack)

    def runner(self, *arguments: str) -> str:
        """Run a command to its end, and return what it prints."""
        environment = {
            **os.environ,
            "RUNNER_DATABASE_URL": self.url,
            "RUNNER_HOME": str(self.folder / "home"),
        }
        command = [sys.executable, "-m", "runner", *arguments]
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout.strip()

    def job(self, name: str, count: int, *, turns: int = 1, delay: float = 0.0) -> Path:
        """Write the file of a job of so many runs, each of so many turns."""
        (self.folder / "work").mkdir(exist_ok=True)
        (self.folder / "work" / "notes.txt").write_text("Nothing.\n")
        items = (
            json.dumps({"key": f"k{number}", "path": f"a/{number}.py"}) for number in range(count)
        )
        (self.folder / f"{name}.jsonl").write_text("\n".join(items))
        call = 'tools = [{ name = "Read", input = { file_path = "notes.txt" } }]\n'
        reply = f'[["*"]]\ntext = "Here it is."\ndelay = {delay}\n'
        script = (reply + call) * (turns - 1) + reply
        (self.folder / f"{name}.script.toml").write_text(script)
        path = self.folder / f"{name}.toml"
        path.write_text(
            f'name = "{name}"\nprovider = "scripted"\nmodel = "scripted"\n'
            f'script = "{name}.script.toml"\ntools = ["Read"]\n'
            'prompt = "Look at {{ item.path }}, and say what is wrong with it."\n'
            f'workspace = {{ path = "work" }}\npermissions = {{ allow = ["Read"] }}\n'
            f'limits = {{ max_turns = {turns + 1} }}\nitems = {{ jsonl = "{name}.jsonl" }}\n'
        )
        return path

    def work(self, slots: int, temporary: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a worker, which ends with the place."""
        started = worker(
            *("-c", str(slots)),
            home=self.folder / "home",
            database_url=self.url,
            api_url=NOBODY,
            temporary=temporary or self.folder / "temporary",
            log=self.folder / "worker.log",
        )
        return self.opened.enter_context(started)

    def wait(self, condition: Callable[[], Any], pause: float = 0.05) -> float:
        """Wait until a condition holds, tried every ``pause`` seconds; return the time."""
        deadline = time.monotonic() + LONGEST_WAIT
        while not condition():
            if time.monotonic() > deadline:
                log = (self.folder / "worker.log").read_text()[-2000:]
                raise RuntimeError(f"it did not happen; the workers logged: {log}")
            time.sleep(pause)
        return time.time()

    def count(self, *conditions: Any) -> int:
        """Return the number of runs that meet the conditions."""
        query = select(func.count()).select_from(runs).where(*conditions)
        return self.database.read(lambda connection: connection.execute(query).scalar_one())


@contextmanager
def _place(databases: Databases, kind: str, folder: Path) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="f-", dir=folder) as name, databases.empty(kind) as url:
        (Path(name) / "temporary").mkdir()
        database = Database(url)
        place = Place(url, Path(name), database)
        with place.opened:
            yield place
        database.close()


# --- The rows ---

Rows = list[dict[str, Any]]


def _submission(
    databases: Databases, kind: str, folder: Path, count: int, repetitions: int
) -> Rows:
    with _place(databases, kind, folder) as place:
        job = place.job("large", count)
        submits, lists = [], []
        for _ in range(repetitions):
            began = time.monotonic()
            job_id = place.runner("submit", str(job))
            submits.append(time.monotonic() - began)
            began = time.monotonic()
            place.runner("list", job_id)
            lists.append(time.monotonic() - began)
    submit, listed = median(submits), median(lists)
    most = SUBMIT_SECONDS[kind]
    return [
        {"what": f"submit {count:,} runs", "seconds": submit, "target": held(submit, most)},
        {"what": f"list {count:,} runs", "seconds": listed, "target": held(listed, LIST_SECONDS)},
    ]


def _throughput(
    databases: Databases, kind: str, folder: Path, count: int, repetitions: int
) -> Rows:
    del repetitions
    with _place(databases, kind, folder) as place:
        place.runner("submit", str(place.job("large", count)))
        processes = [psutil.Process(place.work(SLOTS).pid) for _ in range(2)]
        ended = partial(place.count, runs.c.ended_at.is_not(None))
        # Counting reads all ended runs: often, it would take the server from what is measured.
        place.wait(lambda: ended() >= count // 5, pause=1.0)
        before = [process.memory_full_info().uss for process in processes]
        place.wait(lambda: ended() == count, pause=1.0)
        after = [process.memory_full_info().uss for process in processes]
        cpu = sum(sum(process.cpu_times()[:2]) for process in processes)
        times = select(func.min(runs.c.started_at), func.max(runs.c.ended_at))
        first, last = place.database.rows(times)[0]
    rate = count / (last - first)
    grown = max(now - then for now, then in zip(after, before, strict=True)) / MIB
    worked = f"work {count:,} runs of 1 turn"
    return [
        {"what": worked, "runs/s": rate, "target": reached(rate, RUNS_A_SECOND[kind])},
        {"what": "processor time of a run", "ms": 1000 * cpu / count},
        {
            "what": f"a worker after {count // 5:,} and {count:,} runs",
            "MiB": max(after) / MIB,
            "grown MiB": grown,
            "target": held(grown, MOST_GROWTH_MIB),
        },
    ]


def _behind(databases: Databases, kind: str, folder: Path, count: int, repetitions: int) -> Rows:
    """The first turn of a small job: behind runs of short turns, so that slots become free, and behind
    runs of many turns of a second, so that none does."""
    rows = []
    for what, turns, delay, most in (
        ("a slot becomes free", 1, 0.2, FREE_SLOT_SECONDS),
        ("no slot becomes free", 60, 1.0, NO_SLOT_SECONDS),
    ):
        taken = []
        for _ in range(repetitions):
            with _place(databases, kind, folder) as place:
                place.runner("submit", str(place.job("large", count, turns=turns, delay=delay)))
                small = place.job("small", 10)
                for _ in range(2):
                    place.work(4)
                place.wait(lambda place=place: place.count(runs.c.state == "running") == 8)
                time.sleep(1.0)
                job_id = place.runner("submit", str(small))
                begun = runs.c.job_id == job_id, runs.c.turns > 0
                place.wait(lambda place=place, begun=begun: place.count(*begun) > 0)
                query = (
                    select(func.min(events.c.at), func.min(runs.c.created_at))
                    .join(runs, runs.c.id == events.c.run_id)
                    .where(runs.c.job_id == job_id, events.c.type == "turn_ended")
                )
                ended, submitted = place.database.rows(query)[0]
                taken.append(ended - submitted)
        first = median(taken)
        named = f"first turn of 10 runs behind {count:,}: {what}"
        rows.append({"what": named, "seconds": first, "target": held(first, most)})
    return rows


def _recovery(databases: Databases, kind: str, folder: Path, count: int, repetitions: int) -> Rows:
    rows = []
    for where, most in RESUME_SECONDS.items():
        taken = [_recovered(databases, kind, folder, count, where) for _ in range(repetitions)]
        what = f"resume behind {count:,} after kill -9, {where}"
        rows.append({"what": what, "seconds": max(taken), "target": held(max(taken), most)})
    return rows


def _recovered(databases: Databases, kind: str, folder: Path, count: int, where: str) -> float:
    with _place(databases, kind, folder) as place:
        place.runner("submit", str(place.job("large", count, delay=0.5)))
        first = place.work(4)
        place.wait(lambda: place.count(runs.c.turns > 0) >= 4)
        there = place.folder / "there"
        there.mkdir()
        place.work(4, there if where == "elsewhere" else None)
        place.wait(lambda: place.count(runs.c.turns > 0) >= 8)
        by_age = select(workers.c.id).order_by(workers.c.started_at)
        held_by = runs.c.worker_id == place.database.rows(by_age)[0].id
        place.wait(lambda: place.count(held_by) == 4)
        began = time.time()
        os.kill(first.pid, signal.SIGKILL)
        killed = [row.id for row in place.database.rows(select(runs.c.id).where(held_by))]
        query = (
            select(func.min(events.c.at))
            .where(
                events.c.run_id.in_(killed),
                events.c.attempt == 2,
                events.c.type != "attempt_started",
            )
            .group_by(events.c.run_id)
        )
        place.wait(lambda: len(place.database.rows(query)) == len(killed))
        return float(max(row[0] for row in place.database.rows(query)) - began)


# --- 100 workers ---

_ACTIVITY = text(
    "SELECT count(*), count(*) FILTER (WHERE wait_event_type = 'Lock') AS locked,"
    " count(*) FILTER (WHERE wait_event_type = 'LWLock') AS light,"
    " count(*) FILTER (WHERE state = 'active') AS active"
    " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


def _simulation(databases: Databases, folder: Path, seconds: int) -> Table:
    """Let 100 workers of 16 slots claim and end runs, and watch the server meanwhile."""
    title = f"(i) {SIMULATED} workers of {SLOTS} slots claim and end runs on one Postgres, no model"
    table = Table("fleet100", title)
    with _place(databases, "postgresql", folder) as place:
        place.runner("submit", str(place.job("large", 1_000 * seconds)))
        argv = [place.url, str(SIMULATED // PROCESSES), str(SLOTS), str(seconds)]
        command = [sys.executable, "-m", "bench.stage.simulated", *argv]
        before = _server_seconds(place)
        processes = [
            place.opened.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            for _ in range(PROCESSES)
        ]
        samples: list[Sequence[int]] = []
        while any(process.poll() is None for process in processes):
            samples.append(tuple(place.database.rows(_ACTIVITY)[0]))
            time.sleep(0.1)
        server = _server_seconds(place) - before
        told = [json.loads(process.stdout.read()) for process in processes if process.stdout]
    ended = sum(each["ended"] for each in told)
    claims = quantiles([taken for each in told for taken in each["claims"]], n=20)
    columns = list(zip(*samples, strict=True))
    table.rows.append(
        {
            "claims/s": ended / seconds,
            "claim ms": 1000 * claims[9],
            "slowest 5 % ms": 1000 * claims[18],
            "connections": max(columns[0]),
            "at most": SIMULATED * connections_for(SLOTS),
            "waiting for locks": sum(columns[1]) / len(samples),
            "for the server's own": sum(columns[2]) / len(samples),
            "active": sum(columns[3]) / len(samples),
            "server's ms a run": 1000 * server / max(ended, 1),
            "workers' ms a run": 1000 * sum(each["cpu"] for each in told) / max(ended, 1),
        }
    )
    table.notes += [
        "a claim: choosing (for 32 runs at a time), looking at the run, and the claim itself",
        "waiting, active: sessions, means of samples ten times a second (pg_stat_activity)",
    ]
    return table


def _server_seconds(place: Place) -> float:
    """Processor seconds of the server's processes, those that have ended included."""
    pid = place.database.rows(text("SELECT pg_backend_pid()"))[0][0]
    parent = psutil.Process(pid).parent()
    assert parent is not None
    total = sum(parent.cpu_times()[:4])
    for process in parent.children():
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:2])
    return total

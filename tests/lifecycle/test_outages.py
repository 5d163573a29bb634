"""The database and the queue go away and come back; no run fails."""

from __future__ import annotations

import os
import signal
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import redis

from tests.lifecycle.site import PATIENCE, Site, bash, done, wait_until
from tests.queue.conftest import Server
from tests.runner_process import RunnerProcess
from tests.upgraded import Upgraded

STEPS = 25
OUTAGE = 12.0  # longer than a worker acts without having renewed
STALL = 17.0  # longer than a lease


def steps_job(site: Site, pause: str = "sleep 0.1") -> str:
    steps = [bash(f"echo {n} >> log; {pause}") for n in range(STEPS)]
    return site.submit(site.job({"a": [*steps, done()]}))


def check_done(site: Site, job: str) -> None:
    site.wait_for(job, "a", "succeeded")
    assert (site.workspace / "log").read_text().split() == [str(n) for n in range(STEPS)]


def test_work_goes_on_when_the_queue_was_killed(site: Site) -> None:
    job = steps_job(site)
    site.start("worker")
    site.wait_for_file("log")
    socket = unquote(site.embedded_url().removeprefix("unix://"))
    os.kill(int((Path(socket).parent / "pid").read_text()), signal.SIGKILL)
    check_done(site, job)
    later = site.submit(site.job({"b": [bash("echo b > b"), done()]}, "later"))
    site.wait_for(later, "b", "succeeded")


def test_work_goes_on_when_the_queue_lost_everything(site: Site) -> None:
    site.submit(site.job({"warm": [done()]}, "warm"))
    worker = site.start("worker", "-c", "1")
    job = steps_job(site)
    site.wait_for_file("log")
    waiting = site.submit(site.job({"b": [bash("echo b > b"), done()]}, "waiting"))
    with redis.Redis.from_url(site.embedded_url()) as connection:
        connection.flushall()
    check_done(site, job)
    site.wait_for(waiting, "b", "succeeded")
    assert worker.poll() is None


def said_until(worker: RunnerProcess, words: str) -> str:
    """The lines that a worker writes up to the one with these words."""
    said = ""
    assert worker.stderr is not None
    while words not in said:
        line = worker.stderr.readline()
        assert line, f"it ended: {said}"
        said += line
    return said


def away_and_back(said: str, part: str) -> tuple[str, str]:
    """The lines in which a worker says that a part is away and back. A long outage is told again 15 s
    after it began, 45 s, and so on."""
    away, *again, back = [line for line in said.splitlines() if part in line]
    assert len(again) < 4
    return away, back


@pytest.fixture
def absent() -> Iterator[Server]:
    """A Redis that has not been started."""
    with tempfile.TemporaryDirectory(prefix="rq-") as folder:
        server = Server(Path(folder))
        yield server
        server.kill()


@pytest.mark.slow
def test_worker_and_submit_need_no_redis_and_say_in_one_line_that_it_is_away_and_back(
    tmp_path: Path, empty_url: str, upgraded: Upgraded, absent: Server
) -> None:
    settings = {"RUNNER_DATABASE_URL": empty_url, "RUNNER_REDIS_URL": absent.url}
    site = Site(tmp_path / "site", upgraded, **settings)
    try:
        job = steps_job(site)
        worker = site.start("worker")
        check_done(site, job)
        absent.start()
        with redis.Redis.from_url(absent.url) as connection:
            wait_until(lambda: connection.exists("rq:workers"), "the worker to find Redis")
        said = said_until(worker, "Redis is back")
        later = site.submit(site.job({"b": [bash("echo b > b"), done()]}, "later"))
        site.wait_for(later, "b", "succeeded")
        worker.terminate()
        _, more = worker.communicate(timeout=PATIENCE)
    finally:
        site.stop_all()
    away, back = away_and_back(said + more, "Redis")
    assert "WARNING Redis is away, trying on: " in away
    assert "due runs are taken from the database: check Redis and RUNNER_REDIS_URL" in away
    assert "WARNING Redis is back" in back
    assert worker.returncode == 0


@pytest.mark.slow
def test_a_worker_whose_database_was_replaced_says_so_and_leaves_its_runs_to_the_next(
    site: Site,
) -> None:
    job = steps_job(site)
    worker = site.start("worker")
    site.wait_for_file("log")
    path, backup = site.home / "runner.db", site.home / "backup.db"
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    backup.replace(path)
    for other in ("-wal", "-shm"):
        path.with_name(f"runner.db{other}").unlink(missing_ok=True)
    _, said = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 2
    assert f"the database {path} was replaced while it was open" in said.splitlines()[-1]
    assert "Traceback" not in said
    site.start("worker")
    site.wait_for(job, "a", "succeeded")


@pytest.mark.parametrize(("lock", "seconds"), [("EXCLUSIVE", OUTAGE), ("IMMEDIATE", STALL)])
def test_an_outage_of_the_database_loses_nothing_that_was_not_in_a_tool(
    site: Site, lock: str, seconds: float
) -> None:
    """Or of its writes alone: an idle worker, which only reads, sees that no lease was renewed."""
    steps = [bash(f"echo {n} >> log", delay=1.5) for n in range(6)]
    site.start("worker", "-c", "1")
    job = site.submit(site.job({"a": [*steps, done()]}))
    site.start("worker", "-c", "1")
    site.wait_for_file("log")
    other = sqlite3.connect(site.home / "runner.db", isolation_level=None, timeout=20)
    other.execute(f"BEGIN {lock}")
    threading.Event().wait(seconds)
    other.execute("ROLLBACK")
    other.close()
    run = site.wait_for(job, "a", "succeeded")
    assert (site.workspace / "log").read_text().split() == [str(n) for n in range(6)]
    assert all("unknown" not in result for result in site.tool_results(run["id"]))
    ends = [
        e["data"]["why"] for e in site.json("events", run["id"]) if e["type"] == "attempt_ended"
    ]
    assert ends == ["run ended"]


def test_work_goes_on_when_postgres_was_restarted(tmp_path: Path, own_postgres: Any) -> None:
    site = Site(tmp_path / "site", RUNNER_DATABASE_URL=own_postgres.get_uri())
    try:
        job = steps_job(site, "[ -e down ] || sleep 1")
        worker = site.start("worker")
        site.wait_for_file("log")
        own_postgres.stop()
        (site.workspace / "down").touch()
        reached = (site.workspace / "log").read_text()
        threading.Event().wait(OUTAGE)
        own_postgres.ensure_postgres_running()
        check_done(site, job)
        assert len(reached.split()) < STEPS, "it was down while there was work"
        assert worker.poll() is None
        said = said_until(worker, "the database is back")
        worker.terminate()
        _, more = worker.communicate(timeout=PATIENCE)
        away, back = away_and_back(said + more, "the database")
        assert "WARNING the database is away, trying on: " in away
        assert "WARNING the database is back" in back
    finally:
        site.stop_all()

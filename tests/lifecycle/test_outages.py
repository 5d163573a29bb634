"""The database and the queue go away and come back; no run fails."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import redis

from tests.lifecycle.site import Site, bash, done

STEPS = 25
OUTAGE = 12.0


def steps_job(site: Site) -> str:
    steps = [bash(f"echo {n} >> log; sleep 0.1") for n in range(STEPS)]
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


def test_an_outage_of_the_database_loses_nothing_that_was_not_in_a_tool(site: Site) -> None:
    steps = [bash(f"echo {n} >> log", delay=1.5) for n in range(6)]
    job = site.submit(site.job({"a": [*steps, done()]}))
    site.start("worker")
    site.wait_for_file("log")
    other = sqlite3.connect(site.home / "runner.db", isolation_level=None, timeout=20)
    other.execute("BEGIN EXCLUSIVE")
    threading.Event().wait(OUTAGE)  # longer than a worker acts without having renewed
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
        job = steps_job(site)
        worker = site.start("worker")
        site.wait_for_file("log")
        own_postgres.stop()
        reached = (site.workspace / "log").read_text()
        own_postgres.ensure_postgres_running()
        check_done(site, job)
        assert len(reached.split()) < STEPS, "it was down while there was work"
        assert worker.poll() is None
    finally:
        site.stop_all()

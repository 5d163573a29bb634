"""Workers submit what is scheduled, and wait for the times at which a job may call the model."""

from __future__ import annotations

import signal
import time
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import select, update

from runner.store.database import Database
from runner.store.tables import jobs, schedules
from tests.lifecycle.site import PATIENCE, Site, bash, done, wait_until


def schedule(site: Site, path: Path) -> str:
    """A schedule of each minute that is paused."""
    site.submit(site.job({"warm": [done()]}, "warm"))
    expression = ("--cron", "* * * * *", "--tz", "Europe/Berlin")
    schedule_id = site.run("schedule", "add", str(path), *expression).strip()
    database = Database(
        site.environment.get("RUNNER_DATABASE_URL", f"sqlite:///{site.home}/runner.db")
    )
    database.execute(update(schedules).values(paused_at=time.time()))
    database.close()
    return schedule_id


def fired(site: Site, schedule_id: str) -> list[str]:
    """The jobs that a schedule has submitted."""
    database = Database(
        site.environment.get("RUNNER_DATABASE_URL", f"sqlite:///{site.home}/runner.db")
    )
    try:
        query = select(jobs.c.id).where(jobs.c.key.startswith(schedule_id)).order_by(jobs.c.id)
        return [row.id for row in database.rows(query)]
    finally:
        database.close()


def set_due(site: Site) -> None:
    """Let all schedules be due once, and not again during the test."""
    database = Database(
        site.environment.get("RUNNER_DATABASE_URL", f"sqlite:///{site.home}/runner.db")
    )
    new = {"cron": "0 0 29 2 *", "paused_at": None, "next_at": time.time() - 1}
    database.execute(update(schedules).values(new))
    database.close()


def test_two_workers_submit_a_due_job_once(site_of_either: Site) -> None:
    site = site_of_either
    path = site.job({"a": [bash("echo a >> log"), done()]}, "nightly")
    schedule_id = schedule(site, path)
    path.unlink()  # the schedule holds the job
    workers = [site.start("worker"), site.start("worker")]
    set_due(site)
    (job,) = wait_until(lambda: fired(site, schedule_id), "the schedule to fire")
    site.wait_for(job, "a", "succeeded")
    workers[0].send_signal(signal.SIGKILL)
    time.sleep(2.5)  # two passes of the other
    assert fired(site, schedule_id) == [job]
    assert (site.workspace / "log").read_text() == "a\n"


def test_run_waits_for_the_first_time_and_says_so(site: Site) -> None:
    site.submit(site.job({"warm": [done()]}, "warm"))  # whatever is made first is there
    begins = time.time() + 20  # `run` has begun by then
    path = site.job({"a": [done()]})
    not_before = datetime.fromtimestamp(begins, UTC).isoformat()
    path.write_text(f'not_before = "{not_before}"\n' + path.read_text())
    process = site.start("run", str(path))
    out, err = process.communicate(PATIENCE)
    assert process.returncode == 0, err
    assert "1 until " in err
    assert "(not_before)" in err
    assert "1 succeeded" in out
    assert time.time() >= begins

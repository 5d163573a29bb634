"""Workers of two versions, while the database gets the schema of the newer one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from sqlalchemy import Connection, text

from runner.settings import Settings
from runner.store import migrate
from runner.store.database import Database
from tests.lifecycle.site import PATIENCE, Site, bash, done, wait_until

STEPS = 25
NEWER = "r99"
# The next version: it has one more migration, and is the same but for that.
NEWER_RUNNER = f"""
from runner.store import migrate
migrate.REVISIONS += ("{NEWER}",)
migrate.HEAD = "{NEWER}"
migrate.Status.__init__.__defaults__ = ("{NEWER}",)
from runner.cli.main import main
main()
"""
ADDED = ("ALTER TABLE runs ADD COLUMN mood TEXT", "CREATE TABLE moods (id TEXT PRIMARY KEY)")
RENAMED = ("ALTER TABLE blocks RENAME COLUMN content TO body",)
NAMED_BACK = ("ALTER TABLE blocks RENAME COLUMN body TO content",)


def upgrade(site: Site, *statements: str, to: str = NEWER) -> None:
    """Upgrade the schema in one transaction, as `runner db upgrade` of another version does."""
    with closing(Database(Settings.load(site.environment).database_url)) as database:

        def work(connection: Connection) -> None:
            for statement in (*statements, f"UPDATE alembic_version SET version_num = '{to}'"):
                connection.execute(text(statement))

        database.write(work)


@contextmanager
def newer_worker(site: Site) -> Iterator[None]:
    command = [sys.executable, "-c", NEWER_RUNNER, "worker"]
    with subprocess.Popen(command, cwd=site.folder, env=site.environment) as process:
        try:
            yield
        finally:
            process.terminate()
    assert process.returncode == 0


def begin(site: Site) -> str:
    steps = [bash(f"echo {n} >> log; [ -e upgraded ] || sleep 1") for n in range(STEPS)]
    return site.submit(site.job({"a": [*steps, done()]}))


def states(site: Site, job: str) -> list[str]:
    """The states of a job's runs, in a database that commands of this version do not read."""
    query = text("SELECT state FROM runs WHERE job_id = :job").bindparams(job=job)
    with closing(Database(Settings.load(site.environment).database_url)) as database:
        return database.read(lambda connection: [*connection.execute(query).scalars()])


def steps_done(site: Site) -> list[str]:
    return (site.workspace / "log").read_text().split()


def test_a_worker_at_work_leaves_to_the_next_version_what_it_has_in_hand(
    site_of_either: Site,
) -> None:
    site = site_of_either
    job = begin(site)
    old = site.start("worker")
    site.wait_for_file("log")
    upgrade(site, *ADDED)
    _, said = old.communicate(timeout=PATIENCE)
    assert old.returncode == 2
    newer = f"is of a newer Runner (revision {NEWER}, this one knows {migrate.HEAD})"
    last = said.splitlines()[-1]
    assert newer in last
    assert "install the version that upgraded it" in last
    assert len(said.splitlines()) < 10, said
    assert len(steps_done(site)) < STEPS, "it was at work"
    (site.workspace / "upgraded").touch()
    again = site.start("worker")
    _, said = again.communicate(timeout=PATIENCE)
    assert (again.returncode, len(said.splitlines())) == (2, 1), said
    with newer_worker(site):
        wait_until(lambda: states(site, job) == ["succeeded"], "the newer worker to end the run")
    assert steps_done(site) == [str(n) for n in range(STEPS)]


@pytest.mark.slow
def test_what_a_worker_cannot_read_any_more_is_given_back_without_a_traceback(
    site_of_either: Site,
) -> None:
    site = site_of_either
    job = begin(site)
    old = site.start("worker")
    site.wait_for_file("log")
    upgrade(site, *RENAMED)
    _, said = old.communicate(timeout=PATIENCE)
    assert old.returncode == 2
    assert "Traceback" not in said
    assert len(said.splitlines()) < 10, said
    upgrade(site, *NAMED_BACK, to=migrate.HEAD)
    (run,) = site.runs(job).values()
    assert (run["state"], run["reason"]) in (("queued", "lease_lost"), ("queued", "shutdown")), said
    assert "bug" not in said
    (site.workspace / "upgraded").touch()
    site.run("worker", "--burst")
    assert site.runs(job)["a"]["state"] == "succeeded"
    assert steps_done(site) == [str(n) for n in range(STEPS)]

